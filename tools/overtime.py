"""PromQL's functions over the samples of one series in one window; pure.

The embedded scraper must mean by "increase" what a Prometheus server means by it, down to the
extrapolation, or a verdict would depend on which of the two was asked.

Times are milliseconds, in rising order; a window is open at its start and closed at its end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Final, NamedTuple, TypeAlias

from domain.metrics import Function


class Window(NamedTuple):
    """The samples of one series in (``start_ms``, ``end_ms``], stale markers left out."""

    start_ms: int
    end_ms: int
    times_ms: Sequence[int]
    values: Sequence[float]


OverTime: TypeAlias = Callable[[Window], float | None]


def increase(window: Window) -> float | None:
    """The counter's rise, resets added, extrapolated to the window's bounds.

    ``None`` with fewer than two samples. Towards a bound further away than 1.1 sample intervals it
    is extrapolated by half an interval only, and never to before the counter was zero.
    """
    times_ms, values = window.times_ms, window.values
    if len(values) < 2:
        return None
    first, last = values[0], values[-1]
    rise = last - first + sum(before for before, after in pairwise(values) if after < before)
    sampled_ms = times_ms[-1] - times_ms[0]
    interval_ms = sampled_ms / (len(values) - 1)
    to_start_ms: float = times_ms[0] - window.start_ms
    to_end_ms: float = window.end_ms - times_ms[-1]
    if to_start_ms >= 1.1 * interval_ms:
        to_start_ms = interval_ms / 2
    if to_end_ms >= 1.1 * interval_ms:
        to_end_ms = interval_ms / 2
    if rise > 0 and first >= 0:
        to_start_ms = min(to_start_ms, sampled_ms * (first / rise))
    return rise * (sampled_ms + to_start_ms + to_end_ms) / sampled_ms


def rate(window: Window) -> float | None:
    """The increase per second of the whole window."""
    rise = increase(window)
    return None if rise is None else rise * 1000 / (window.end_ms - window.start_ms)


def average(window: Window) -> float | None:
    """The mean of the samples."""
    return sum(window.values) / len(window.values) if window.values else None


def maximum(window: Window) -> float | None:
    """The largest sample; NaN only where all are."""
    numbers = [value for value in window.values if not math.isnan(value)]
    return max(numbers) if numbers else (math.nan if window.values else None)


def samples(window: Window) -> float | None:
    """How many samples there are; ``None`` for none, which is how Prometheus counts."""
    return float(len(window.values)) or None


OVER_TIME: Final[Mapping[Function, OverTime]] = {
    Function.INCREASE: increase,
    Function.RATE: rate,
    Function.AVG: average,
    Function.MAX: maximum,
    Function.COUNT: samples,
}
