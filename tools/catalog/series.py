"""Series over time as a few figures each: a language model gets no raw points. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Final, NamedTuple

from domain.figure import Figure, Unit
from domain.metrics import Line
from tools.catalog.tool import Row

MOST_SERIES: Final = 20
"""Most series that are told, those with the largest values first."""

SHOWN_LABELS: Final = frozenset(
    {"arm", "config", "engine", "finished_reason", "gpu", "instance", "job", "le", "model_name"}
    | {"proxy", "quantile", "reason", "replica", "slot", "status"}
)
"""Labels that may be asked for and are told; what any other holds, a secret perhaps, is not."""

_VALUE: Final = 60


class Summary(NamedTuple):
    """Of the finite values of one series; ``slope`` is of the least-squares line, a minute."""

    least: float
    mean: float
    most: float
    last: float
    slope: float


def rows(lines: Sequence[Line], unit: Unit, source: str) -> tuple[Row, ...]:
    """A row for each series that has a finite value, the largest means first."""
    known = [(line, found) for line in lines if (found := summary(line)) is not None]
    known.sort(key=lambda one: -abs(one[1].mean))
    return tuple(
        Row(words=_labels(line.labels), figures=_figures(f"s{n}", found, unit, source))
        for n, (line, found) in enumerate(known[:MOST_SERIES], start=1)
    )


def summary(line: Line) -> Summary | None:
    """``None`` where no value is finite."""
    points = [(at_s, value) for at_s, value in line.points if math.isfinite(value)]
    if not points:
        return None
    values = [value for _, value in points]
    middle_s, mean = fmean(at_s for at_s, _ in points), fmean(values)
    spread = sum((at_s - middle_s) ** 2 for at_s, _ in points)
    rise = sum((at_s - middle_s) * (value - mean) for at_s, value in points)
    slope = 60 * rise / spread if spread > 0 else 0.0
    found = Summary(min(values), mean, max(values), values[-1], slope)
    return found if all(map(math.isfinite, found)) else None


def _labels(labels: Mapping[str, str]) -> dict[str, str]:
    return {name: labels[name][:_VALUE] for name in sorted(labels.keys() & SHOWN_LABELS)}


def _figures(name: str, found: Summary, unit: Unit, source: str) -> tuple[Figure, ...]:
    parts = {
        "min": (found.least, unit, "least of"),
        "mean": (found.mean, unit, "mean of"),
        "max": (found.most, unit, "most of"),
        "last": (found.last, unit, "last of"),
        # A slope has a unit of its own, which no name of ours stands for.
        "slope": (found.slope, Unit.A_MINUTE, "rise a minute of"),
    }
    return tuple(
        Figure(name=f"{name}_{part}", value=value, unit=of, source=f"{what} {source}")
        for part, (value, of, what) in parts.items()
    )
