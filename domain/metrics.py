"""A typed question to a metric source and the four answers it can give.

The same query means the same thing to a Prometheus server and to the embedded scraper: what it
says is what PromQL's function of that name says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

from domain.errors import BadInput

MOST_MOMENTS: Final = 11_000
"""The most moments that one range may have; a Prometheus server answers no more."""


class Function(Enum):
    """What is done to each series over the window; LAST takes its newest fresh value, COUNT tells
    how many samples there are."""

    LAST = "last"
    INCREASE = "increase"
    RATE = "rate"
    AVG = "avg_over_time"
    MAX = "max_over_time"
    COUNT = "count_over_time"


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """Function of a metric over a window, for the series whose labels match, summed ``by`` labels.

    ``where`` holds exact label matches. With ``by`` empty the answer is one series, the sum over
    all that matched. ``window_s`` is ignored by LAST. ``within`` holds exact matches of labels that
    the targets carry, such as a cluster's: they tell one fleet from others, for ``up`` as well.
    """

    metric: str
    function: Function
    window_s: float = 60.0
    where: tuple[tuple[str, str], ...] = ()
    by: tuple[str, ...] = ()
    within: tuple[tuple[str, str], ...] = ()

    @property
    def matches(self) -> tuple[tuple[str, str], ...]:
        """Every label match, of a series' own labels and of its target's."""
        return (*self.within, *self.where)


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One answer row: the values of the ``by`` labels, and a finite number."""

    labels: tuple[tuple[str, str], ...]
    value: float

    def label(self, name: str) -> str:
        return dict(self.labels).get(name, "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A complete answer of one series or more at ``at_s`` (Unix seconds); all values finite."""

    at_s: float
    series: tuple[Series, ...]

    def total(self) -> float:
        return sum(series.value for series in self.series)

    def by(self, label: str) -> Mapping[str, float]:
        """The sum over the series of each value of the label."""
        sums: dict[str, float] = {}
        for series in self.series:
            value = series.label(label)
            sums[value] = sums.get(value, 0.0) + series.value
        return sums


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A series over time: its labels, and values at Unix seconds, which need not be finite."""

    labels: Mapping[str, str]
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NoData:
    """The source answered and nothing matched, or what matched is stale, NaN or infinite."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Partial:
    """An answer that its source itself calls incomplete; never enough to advance on."""

    reason: str
    sample: Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The source could not be asked, or answered with an error."""

    reason: str


Reading: TypeAlias = Sample | NoData | Partial | Failed


def moments(start_s: float, end_s: float, step_s: float) -> tuple[float, ...]:
    """The times of a range: from ``start_s`` (Unix seconds) every ``step_s``, to ``end_s`` at most.

    All are whole milliseconds, as Prometheus counts. A range that is none, or one of more than
    ``MOST_MOMENTS``, raises BadInput.
    """
    start_ms, end_ms, step_ms = (round(1000 * seconds) for seconds in (start_s, end_s, step_s))
    if step_ms <= 0 or end_ms < start_ms:
        raise BadInput(
            "A range needs a step of a millisecond or more and an end that is not before its start;"
            f" got steps of {step_s:g} s over {end_s - start_s:g} s."
        )
    if (end_ms - start_ms) // step_ms >= MOST_MOMENTS:
        raise BadInput(
            f"A range may have {MOST_MOMENTS} moments at most; take longer steps than {step_s:g} s"
            f" for {end_s - start_s:g} s."
        )
    return tuple(at_ms / 1000 for at_ms in range(start_ms, end_ms + 1, step_ms))
