"""A typed question to a metric source and the four answers it can give.

The same query means the same thing to a Prometheus server and to the embedded scraper: what it
says is what PromQL's function of that name says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias


class Function(Enum):
    """What is done to each series over the window; LAST takes its newest fresh value."""

    LAST = "last"
    INCREASE = "increase"
    RATE = "rate"
    AVG = "avg_over_time"
    MAX = "max_over_time"


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
        return {series.label(label): series.value for series in self.series}


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
