"""Which measured configs are beaten by no other at everything: the Pareto front (pure).

More of the rate is better, and less of each tail. Figures are taken as measured: the front says
what was seen, and nothing of what chance did; whether one config is better is the judge's business.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple


class Point(NamedTuple):
    """``rate`` is a second's; a tail that is ``None`` is unknown and counts as the worst."""

    rate: float
    ttft_p95_ms: float | None
    tpot_p95_ms: float | None


def on_front(points: Sequence[Point]) -> tuple[bool, ...]:
    """For each point, whether none of the others is as good in all and better in something."""
    return tuple(not any(_beats(other, point) for other in points) for point in points)


def _beats(one: Point, other: Point) -> bool:
    ours, theirs = _losses(one), _losses(other)
    return ours != theirs and all(a <= b for a, b in zip(ours, theirs, strict=True))


def _losses(point: Point) -> tuple[float, float, float]:
    """What should be small."""
    tails = (point.ttft_p95_ms, point.tpot_p95_ms)
    ttft, tpot = (math.inf if tail is None else tail for tail in tails)
    return -point.rate, ttft, tpot
