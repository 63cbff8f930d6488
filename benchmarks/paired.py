"""Two clients measured side by side, again and again: how far they differ, and if that is proven.

Pure. Ratios are compared by their logarithms, so that neither side is the yardstick, and only the
scatter between pairs makes the interval: what is the same for both of a pair cancels out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from statistics import fmean, stdev
from typing import Any, Generic, NamedTuple, TypeVar

from benchmarks.accounting import ByEngine, Figures

Measured = TypeVar("Measured")

# Student's 0.975 quantile by degrees of freedom, for an even number of pairs.
STUDENT = {
    1: 12.706,
    3: 3.182,
    5: 2.571,
    7: 2.365,
    9: 2.262,
    11: 2.201,
    13: 2.160,
    15: 2.131,
    17: 2.110,
    19: 2.093,
    21: 2.080,
    23: 2.069,
    25: 2.060,
    27: 2.052,
    29: 2.045,
    31: 2.040,
}
# Beyond the table its last value makes intervals a little too wide.
LEAST_STUDENT = min(STUDENT.values())
MOST_PAIRS = 100


class Pair(NamedTuple, Generic[Measured]):
    """What both gave side by side."""

    ours: Measured
    theirs: Measured


class Difference(NamedTuple):
    """How far the first of two is above the second, in percent, with its 95 % interval."""

    percent: float
    low: float
    high: float


class Agreement(Enum):
    """What an interval says of a limit; UNPROVEN where it reaches across it."""

    MET = "met"
    UNPROVEN = "unproven"
    MISSED = "missed"


def difference(pairs: Sequence[Pair[float]]) -> Difference:
    """Of an even number of pairs, two at least."""
    logs = [math.log(pair.ours / pair.theirs) for pair in pairs]
    middle = fmean(logs)
    margin = STUDENT.get(len(logs) - 1, LEAST_STUDENT) * stdev(logs) / math.sqrt(len(logs))

    def percent(log: float) -> float:
        return round(math.expm1(log) * 100, 2)

    return Difference(percent(middle), percent(middle - margin), percent(middle + margin))


def agreement(found: Difference, limit_pct: float) -> Agreement:
    """Whether the two are within ``limit_pct`` of each other, as far as the interval tells."""
    if -limit_pct <= found.low and found.high <= limit_pct:
        return Agreement.MET
    if found.low > limit_pct or found.high < -limit_pct:
        return Agreement.MISSED
    return Agreement.UNPROVEN


def joined(words: Iterable[Agreement]) -> Agreement:
    """Of several looks at one figure: one that is outside decides, else one that is inside.

    Each look takes a figure outside the limit for one inside in 2.5 % of cases at most, so two
    looks do in 5 %.
    """
    found = set(words)
    for word in (Agreement.MISSED, Agreement.MET):
        if word in found:
            return word
    return Agreement.UNPROVEN


def table(
    pairs: Sequence[Pair[Figures]] | Sequence[Pair[ByEngine]], limit_pct: float
) -> dict[str, Any]:
    """Each figure of both, ours first, how far they differ, and what that says of the limit."""
    rows: dict[str, Any] = {"pairs": len(pairs)}
    for place, name in enumerate(pairs[0].ours._fields):
        values = [Pair(pair.ours[place], pair.theirs[place]) for pair in pairs]
        found = difference(values)
        rows[name] = {
            "ours": round(fmean(value.ours for value in values), 4),
            "vllm_bench_serve": round(fmean(value.theirs for value in values), 4),
            "difference_pct": found.percent,
            "interval_95": [found.low, found.high],
            "agreement": agreement(found, limit_pct).value,
        }
    return rows


def agreements(looks: Iterable[Mapping[str, Any]]) -> dict[str, Agreement]:
    """One word for each figure, of all tables that have it."""
    tables = list(looks)
    return {
        name: joined(Agreement(each[name]["agreement"]) for each in tables if name in each)
        for name in Figures._fields
    }


def another(now_s: float, longest_s: float | None, until_s: float) -> bool:
    """Whether there is time for two more pairs. Figures must have no say in when to stop."""
    return longest_s is None or now_s + longest_s <= until_s
