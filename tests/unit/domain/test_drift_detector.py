"""When drift is declared and when it is over, on made-up windows and under interruption."""

import json
import random
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.store import decode, encode
from domain.drift import Component, DriftRules, DriftState, Window, advance
from domain.drift.detector import ENOUGH, LONGER, MOST, RELEASE, UNLEARNED
from domain.drift.noise import from_centres, noise_limit, sampling_limit
from domain.traffic import TrafficShape
from tests.fakes.shapes import shape

WINDOW_S = 120.0
RULES = DriftRules(least=0.6, run=3)
LONG = LONGER * RULES.run
TUNED = shape(requests=5000.0)


def window(octaves: float, number: int, base: TrafficShape = TUNED) -> TrafficShape:
    """The window ``number`` after the tuned one, its demand so many doublings from it."""
    return replace(base, rate_rps=base.rate_rps * 2**octaves, end_s=1000.0 + WINDOW_S * number)


def states(demand: Iterable[float], start: DriftState | None = None) -> list[DriftState]:
    state, found = start, []
    first = 1 if start is None else round((start.judged_s - 1000.0) / WINDOW_S) + 1
    for number, octaves in enumerate(demand, first):
        state = advance(state, TUNED, window(octaves, number), RULES)
        found.append(state)
    return found


def noisy(windows: int, spread: float, seed: int = 7) -> list[float]:
    draw = random.Random(seed)
    return [draw.gauss(0.0, spread) for _ in range(windows)]


QUIET = states(noisy(ENOUGH, 0.02))[-1]


@pytest.mark.parametrize(
    ("octaves", "after"),
    [(1.0, RULES.run), (0.7, LONG), (-0.7, LONG), (0.55, None)],
    ids=["large", "small", "less demand", "nothing to mind"],
)
def test_a_large_change_is_found_soon_and_a_small_one_later(octaves: float, after: int | None):
    found = states([octaves] * 20, QUIET)
    declared = [number for number, state in enumerate(found, 1) if state.drift]
    assert declared[:1] == ([] if after is None else [after])
    if after is not None:
        drift = found[after - 1].drift
        assert (drift.component, drift.run) == (Component.DEMAND, after)
        assert drift.distance == pytest.approx(abs(octaves))
        assert drift.noise < 0.2 and drift.calm == ENOUGH


def test_before_the_noise_is_known_the_floor_is_higher():
    assert states([0.8] * 20)[-1].drift is None
    drift = states([UNLEARNED * RULES.least + 0.01] * LONG)[-1].drift
    assert drift.noise is None and drift.limit == UNLEARNED * RULES.least


def test_noisy_traffic_raises_its_own_limit():
    restless = states(noisy(ENOUGH + LONG, 0.7))[-1]
    assert restless.drift is None
    assert states([1.0] * RULES.run, QUIET)[-1].drift is not None
    assert states([1.0] * RULES.run, restless)[-1].drift is None
    drift = states([3.0] * RULES.run, restless)[-1].drift
    assert drift.limit == drift.noise > RULES.least


def test_windows_beyond_that_come_back_were_noise_and_those_of_drift_were_not():
    back = states([2.0, 2.0, 0.0], QUIET)[-1]
    assert sum(map(len, back.calm)) == ENOUGH + 3
    assert sum(map(len, states([2.0] * 9, QUIET)[-1].calm)) == ENOUGH


def test_runs_of_different_components_are_no_run():
    def live(number: int) -> TrafficShape:
        changed = replace(TUNED, prefix_hit_rate=0.95 if number % 2 else 0.5)
        return window(0.0 if number % 2 else 2.0, number, changed)

    state = None
    for number in range(1, 40):
        state = advance(state, TUNED, live(number), RULES)
        assert state.drift is None
    assert len(state.pending) == LONG - 1


def test_drift_is_over_only_after_a_run_below_the_lower_limit():
    drifted = states([1.5] * RULES.run, QUIET)[-1]
    between = RULES.least * (1 + RELEASE) / 2
    assert all(state.drift for state in states([between] * 30, drifted))
    ends = [bool(state.drift) for state in states([0.0, 0.0, between, 0.0, 0.0, 0.0], drifted)]
    assert ends == [True] * 5 + [False]


def test_what_is_told_follows_the_traffic_while_it_is_beyond():
    drifted = states([1.5] * RULES.run, QUIET)[-1]
    told = [state.drift.distance for state in states([2.0, 0.7, 0.1, 1.2], drifted)]
    assert told == pytest.approx([2.0, 2.0, 2.0, 1.2])


@given(st.lists(st.sampled_from([0.0, 0.3, 0.5, 0.62, 0.9, 1.4, -2.0]), max_size=60))
@settings(deadline=None)
def test_it_never_flaps_and_interrupted_it_finds_the_same(demand: list[float]):
    found = states(demand, QUIET)
    turns = [
        number
        for number, (before, after) in enumerate(pairwise([QUIET, *found]))
        if bool(before.drift) != bool(after.drift)
    ]
    assert all(b - a >= RULES.run for a, b in pairwise(turns))
    state = QUIET
    for number, octaves in enumerate(demand, ENOUGH + 1):
        stored = json.loads(json.dumps(encode(state), allow_nan=False))
        state = advance(decode(DriftState, stored), TUNED, window(octaves, number), RULES)
        assert state == found[number - ENOUGH - 1]


def test_overlapping_windows_count_once():
    live = window(2.0, 1)
    first = advance(None, TUNED, live, RULES)
    assert len(first.pending) == 1
    for later_s in (0.0, 2.0, WINDOW_S - 1):
        assert advance(first, TUNED, replace(live, end_s=live.end_s + later_s), RULES) is first
    assert len(advance(first, TUNED, window(2.0, 2), RULES).pending) == 2


def test_a_clock_that_is_set_back_deafens_nothing():
    ahead = states([0.0] * 30)[-1]
    assert advance(ahead, TUNED, window(2.0, 3), RULES).pending


def test_another_tuned_shape_begins_anew_and_keeps_the_noise():
    drifted = states([2.0] * RULES.run, QUIET)[-1]
    learned = window(2.0, ENOUGH + RULES.run)
    state = advance(drifted, learned, window(2.0, ENOUGH + RULES.run + 1), RULES)
    assert (state.drift, state.pending) == (None, ())
    assert list(map(len, state.calm)) == [ENOUGH, 1]


def test_only_the_latest_windows_are_kept():
    state = states([0.0] * (MOST + 40), QUIET)[-1]
    assert [len(stretch) for stretch in state.calm] == [MOST]
    learned = window(2.0, 2 * MOST)
    for number in range(1, 5):
        state = advance(state, learned, window(2.0, 2 * MOST + number), RULES)
    assert list(map(len, state.calm)) == [MOST - 4, 4]
    assert state.calm[-1][-1].end_s == state.judged_s


def calm(demand: Iterable[float]) -> list[Window]:
    return [Window.of(window(octaves, number)) for number, octaves in enumerate(demand)]


def test_noise_grows_with_the_spread_and_shrinks_with_the_run():
    def limit(spread: float, run: int) -> float:
        pieces = from_centres(Component.DEMAND, [calm(noisy(200, spread))])
        found = noise_limit(pieces, run=run, blocks=5040 / run, ways=12)
        assert found is not None
        return found

    assert limit(0.1, 3) < limit(0.2, 3) < limit(0.4, 3)
    assert limit(0.4, 3) == pytest.approx(4 * limit(0.1, 3), rel=0.05)
    assert limit(0.2, 12) < limit(0.2, 6) < limit(0.2, 3) < limit(0.2, 1)


def test_a_level_that_moved_between_stretches_is_no_noise():
    quiet, higher = calm(noisy(60, 0.05)), calm(2 + x for x in noisy(60, 0.05, seed=8))

    def limit(*stretches: list[Window], of: Component = Component.DEMAND) -> float | None:
        return noise_limit(from_centres(of, stretches), run=3, blocks=1680, ways=12)

    assert limit(quiet, higher) == pytest.approx(limit(quiet), rel=0.5)
    assert limit(quiet + higher) is not None
    assert limit(quiet[:2]) is None
    assert limit(quiet, of=Component.ACCEPTANCE) is None


def test_the_fewer_the_requests_the_further_chance_alone_carries():
    def limit(component: Component, requests: float) -> float:
        few = Window.of(replace(shape(requests=requests), draft_acceptance=0.5))
        return sampling_limit(component, few, few, run=6, blocks=840, ways=12)

    for component in set(Component) - {Component.CONCURRENCY}:
        assert limit(component, 50) == pytest.approx(3 * limit(component, 450))
    assert limit(Component.ISL, 50) > 0.6 > limit(Component.ISL, 450)
