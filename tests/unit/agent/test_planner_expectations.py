"""Expectations beside what was measured: how far, and whether the direction was right."""

from dataclasses import replace

import pytest

from agent.planner.expectations import Seen, calibrations, seen
from domain.engine import EngineConfig
from domain.study import Expectation, Measurement, Trial, TrialPurpose, TrialState
from tests.fakes.records import measurement

HOME = EngineConfig()
OTHER = EngineConfig.of({"async_scheduling": True})


def expected(metric: str, times: float, author: str = "model m") -> Expectation:
    return Expectation(author=author, metric=metric, times=times, over=HOME.digest)


def trial(
    number: int, config: EngineConfig, found: Measurement, expects: Expectation | None = None
) -> Trial:
    return Trial(
        id=f"t{number}",
        study_id="s1",
        number=number,
        purpose=TrialPurpose.SEARCH,
        config=config,
        hypothesis="",
        state=TrialState.MEASURED,
        measurement=found,
        expected=expects,
    )


BEFORE = trial(1, HOME, measurement(good=50, ttft_ms=(100.0,) * 100, tpot_ms=(20.0,) * 100))
AFTER = measurement(good=60, ttft_ms=(50.0,) * 100, tpot_ms=(30.0,) * 100)


@pytest.mark.parametrize(
    ("metric", "times", "measured", "right"),
    [
        ("goodput_rps", 1.5, 1.2, True),
        ("goodput_rps", 0.9, 1.2, False),
        ("output_tok_s", 1.2, 1.0, False),
        ("ttft_ms", 0.8, 0.5, True),
        ("tpot_ms", 0.8, 1.5, False),
    ],
)
def test_the_metric_is_held_against_the_config_that_was_the_best(
    metric: str, times: float, measured: float, right: bool
) -> None:
    after = trial(2, OTHER, AFTER, expected(metric, times))
    found = seen(after, (BEFORE, after))
    assert found is not None
    assert found.times == pytest.approx(measured)
    assert found.right is right
    assert str(found) == f"expected {metric} times {times:.3g}, measured times {measured:.3g}"


def test_nothing_is_said_where_nothing_was_expected_or_measured() -> None:
    hopeful = trial(2, OTHER, AFTER, expected("goodput_rps", 1.5))
    assert seen(replace(hopeful, expected=None), (BEFORE, hopeful)) is None
    assert seen(replace(hopeful, measurement=None), (BEFORE, hopeful)) is None
    assert seen(hopeful, (hopeful,)) is None
    elsewhere = replace(BEFORE, study_id="s0")
    assert seen(hopeful, (elsewhere, hopeful)) is None
    unknown = replace(hopeful, expected=expected("beauty", 1.5))
    assert seen(unknown, (BEFORE, unknown)) is None


def test_each_author_is_counted_by_its_own_with_an_interval() -> None:
    found = [
        Seen(expected("goodput_rps", 1.5, author), times)
        for author, times in (("b", 1.1), ("a", 1.2), ("a", 0.7), ("a", 1.01))
    ]
    found.append(Seen(expected("goodput_rps", 1.0, "a"), 1.0))
    one, other = calibrations(found)
    assert (one.author, one.right, one.interval.n) == ("a", 2, 3)
    assert str(one) == (
        "2 of 3 expectations of a came true in direction (95 % interval 21% to 94%)."
    )
    assert (other.author, other.right, other.interval.n) == ("b", 1, 1)
    assert calibrations([]) == ()
