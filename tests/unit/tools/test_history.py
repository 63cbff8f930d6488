"""The recorded past is bounded, forgets in time, and is not fooled by a clock that goes back."""

from collections.abc import Sequence

from domain.metrics import Function, NoData, Partial, Query, Reading, Sample
from tools.exposition import Point
from tools.history import History

RUNNING = "vllm:num_requests_running"
A = (("arm", "production"), ("replica", "a"))
B = (("arm", "production"), ("replica", "b"))
LAST = Query(metric=RUNNING, function=Function.LAST)


def history(*, retention_s: float = 100.0, series_cap: int = 100) -> History:
    return History(retention_s=retention_s, lookback_s=3.0, series_cap=series_cap)


def points(*values: float) -> Sequence[Point]:
    return [Point(RUNNING, (("engine", str(i)),), value) for i, value in enumerate(values)]


def value(reading: Reading) -> float:
    assert isinstance(reading, Sample)
    return reading.total()


def test_memory_is_bounded_in_time():
    kept = history(retention_s=100.0)
    for second in range(10_000):
        kept.record(float(second), {A: points(second)})
    assert kept.series == 2
    recent = Query(metric=RUNNING, function=Function.AVG, window_s=100.0)
    assert value(kept.read(recent, 9_999.0)) == sum(range(9_900, 10_000)) / 100
    everything = Query(metric=RUNNING, function=Function.AVG, window_s=10_000.0)
    assert value(kept.read(everything, 9_999.0)) > 9_900, "older samples are let go"


def test_a_series_without_a_sample_in_the_retention_is_forgotten():
    kept = history(retention_s=100.0)
    kept.record(0.0, {A: points(1, 2, 3), B: points(1)})
    kept.record(1.0, {B: points(1)})
    assert kept.series == 6
    kept.record(50.0, {B: points(1)})
    kept.record(102.0, {B: points(1)})
    assert kept.series == 2


def test_a_target_with_too_many_series_counts_as_failed_and_is_named():
    kept = history(series_cap=6)
    assert kept.record(0.0, {A: points(1, 2), B: points(1)}) == ()
    (fault,) = kept.record(1.0, {A: points(1, 2, 3, 4, 5, 6), B: points(1)})
    assert "6 series" in fault
    assert kept.series == 5
    reading = kept.read(LAST, 1.0)
    assert isinstance(reading, Partial)
    assert "replica=a" in reading.reason
    assert reading.sample.total() == 1


def test_a_clock_that_goes_back_drops_what_cannot_be_told_from_fresh():
    kept = history()
    kept.record(1000.0, {A: points(7)})
    (fault,) = kept.record(500.0, {A: None})
    assert "clock went back" in fault
    assert isinstance(kept.read(LAST, 1000.0), NoData)
    kept.record(501.0, {A: points(3)})
    assert value(kept.read(LAST, 501.0)) == 3


def test_two_scrapes_in_one_millisecond_are_one():
    kept = history()
    kept.record(1.0, {A: points(7)})
    kept.record(1.0, {A: points(9)})
    assert value(kept.read(LAST, 1.0)) == 7


def test_the_targets_labels_win_over_the_engines():
    kept = history()
    kept.record(1.0, {A: [Point(RUNNING, (("arm", "candidate"),), 4.0)]})
    by_arm = Query(metric=RUNNING, function=Function.LAST, by=("arm", "exported_arm"))
    reading = kept.read(by_arm, 1.0)
    assert isinstance(reading, Sample)
    assert reading.series[0].labels == (("arm", "production"), ("exported_arm", "candidate"))


def test_many_missed_targets_are_named_in_part():
    kept = history()
    down = {(("replica", f"r{i}"),): None for i in range(8)}
    kept.record(1.0, {A: points(1), **down})
    reading = kept.read(LAST, 1.0)
    assert isinstance(reading, Partial)
    assert reading.reason.endswith("replica=r4 and 3 more")


def test_no_reading_says_more_than_was_asked():
    kept = history()
    kept.record(1.0, {A: points(1)})
    other = Query(metric=RUNNING, function=Function.LAST, where=(("arm", "candidate"),))
    assert isinstance(kept.read(other, 1.0), NoData)
