"""What proposals expected, beside what was measured, and how often their author was right.

Pure. An expectation decides nothing; it is shown to whoever proposes next, and to people.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from agent.planner.switches import Metric
from canary.intervals import proportion_interval, quantile
from domain.interval import Interval
from domain.study import Expectation, Measurement, Trial

TAIL = 0.95
LEVEL = 0.95


class Seen(NamedTuple):
    """An expectation, and how many times its metric became in truth."""

    expected: Expectation
    times: float

    @property
    def right(self) -> bool:
        """Whether the metric moved the way that was expected."""
        return (self.times - 1) * (self.expected.times - 1) > 0

    def __str__(self) -> str:
        return (
            f"expected {self.expected.metric} times {self.expected.times:.3g}, "
            f"measured times {self.times:.3g}"
        )


class Calibration(NamedTuple):
    """How often an author's expectations came true in direction."""

    author: str
    right: int
    interval: Interval

    def __str__(self) -> str:
        low, high = self.interval.low, self.interval.high
        return (
            f"{self.right} of {self.interval.n} expectations of {self.author} came true in "
            f"direction ({self.interval.percent} interval {low:.0%} to {high:.0%})."
        )


def figure(measurement: Measurement, metric: Metric) -> float | None:
    """The metric as measured; of latencies the 95th percentile."""
    match metric:
        case Metric.OUTPUT_TOK_S:
            return measurement.output_tok_s
        case Metric.GOODPUT_RPS:
            return measurement.goodput_rps
        case Metric.STREAM_RPS:
            return measurement.stream_rps
        case Metric.TTFT_MS:
            return quantile(measurement.ttft_ms, TAIL) if measurement.ttft_ms else None
        case Metric.TPOT_MS:
            return quantile(measurement.tpot_ms, TAIL) if measurement.tpot_ms else None


def seen(trial: Trial, trials: Sequence[Trial]) -> Seen | None:
    """What became of the trial's expectation; ``None`` where it had none, or nothing to hold it
    against was measured in the same study."""
    expected = trial.expected
    if expected is None or trial.measurement is None:
        return None
    before = [
        other.measurement
        for other in trials
        if other.study_id == trial.study_id
        and other.purpose.explores
        and other.config.digest == expected.over
        and other.measurement is not None
    ]
    metric = next((m for m in Metric if m.value == expected.metric), None)
    if not before or metric is None:
        return None
    old, new = figure(before[-1], metric), figure(trial.measurement, metric)
    return Seen(expected, new / old) if old and new is not None else None


def calibrations(found: Iterable[Seen]) -> tuple[Calibration, ...]:
    """One for each author, in order of their names. That nothing moves is no direction."""
    by_author: dict[str, list[bool]] = {}
    for each in found:
        if each.expected.times == 1:
            continue
        by_author.setdefault(each.expected.author, []).append(each.right)
    return tuple(
        Calibration(author, sum(rights), proportion_interval(sum(rights), len(rights), level=LEVEL))
        for author, rights in sorted(by_author.items())
    )
