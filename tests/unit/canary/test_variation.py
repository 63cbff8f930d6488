"""Arms of two times differ by the times alone; intervals and verdicts know by how much."""

import math
from dataclasses import replace

import numpy as np
import pytest

from canary.live import judge_live
from canary.variation import SAME_TIME, USUAL, Elsewhen, variation_of
from domain.interval import Interval
from domain.live import Compared, LiveTerms
from domain.verdict import Outcome
from tests.unit.canary.test_judge_live import NOTHING, arm

INTERVAL = Interval(low=-10.0, high=30.0, level=0.95, method="exact", n=9)


def test_a_baseline_that_varies_makes_a_wide_interval_and_a_steady_one_a_narrower() -> None:
    restless = variation_of([arm(n, n=2000, ttft_s=s) for n, s in enumerate((0.2, 0.4) * 3)])
    steady = variation_of([arm(n, n=2000) for n in range(6)])
    assert restless.windows == steady.windows == 6
    assert restless.ttft > 3 * steady.ttft
    assert restless.ttft == pytest.approx(math.log(2) / 2, rel=0.15)
    assert steady.tpot < USUAL


@pytest.mark.parametrize("windows", [[arm(1)], [replace(arm(1), ttft=NOTHING, tpot=NOTHING)]])
def test_one_window_or_an_empty_one_is_taken_to_vary_as_usual(windows: list) -> None:
    found = variation_of(windows)
    assert (found.ttft, found.tpot, found.windows) == (USUAL, USUAL, 1)


def test_a_prediction_holds_the_next_window_as_often_as_it_says() -> None:
    generator = np.random.default_rng(7)
    spread, held = 0.2, 0
    for _ in range(1000):
        logs = spread * generator.normal(size=7)
        seen = math.sqrt((logs[:6].var(ddof=1) * 5 + 2 * USUAL**2) / 7)
        share = Elsewhen.of(seen, 6, 0.95).share
        held += abs(logs[6] - logs[:6].mean()) <= share
    assert held / 1000 >= 0.95


def test_an_interval_is_widened_by_a_share_of_the_baseline() -> None:
    found = Elsewhen(share=0.3, windows=4).widened(INTERVAL, 10.0, 100.0)
    assert found.low == pytest.approx(10 - math.hypot(20, 30))
    assert found.high == pytest.approx(10 + math.hypot(20, 30))
    assert found.method == "exact, and for what 4 windows of time differ"
    assert SAME_TIME.widened(INTERVAL, 10.0, 100.0) is INTERVAL


@pytest.mark.parametrize(("ttft_s", "outcome"), [(0.7, Outcome.INCONCLUSIVE), (3.0, Outcome.FAIL)])
def test_harm_at_another_time_must_be_beyond_what_times_differ_by(
    ttft_s: float, outcome: Outcome
) -> None:
    windows = [arm(n, n=2000, ttft_s=s) for n, s in enumerate((0.25, 0.45, 0.3, 0.5))]
    compared = Compared(
        candidate=arm(9, n=2000, ttft_s=ttft_s),
        baseline=windows[0].with_also(windows[1]).with_also(windows[2]).with_also(windows[3]),
        terms=LiveTerms(min_requests=50),
        variation=variation_of(windows),
    )
    assert judge_live(compared, start_s=0.0, end_s=60.0).outcome is outcome
    then = replace(compared, variation=None)
    assert judge_live(then, start_s=0.0, end_s=60.0).outcome is Outcome.FAIL


def test_windows_of_other_buckets_are_left_out() -> None:
    one, other = arm(1), replace(arm(2), ttft=NOTHING)
    both = one.with_also(other)
    assert both.requests == one.requests + other.requests
    assert both.ttft == one.ttft
    assert both.tpot.n == one.tpot.n + other.tpot.n
