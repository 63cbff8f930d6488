"""Where the marks of a small picture stand, as percentages of its width (pure)."""

from __future__ import annotations

import math
from typing import NamedTuple

from agent.api.verdict_schemas import EffectView


class IntervalMarks(NamedTuple):
    """An interval on an axis whose middle, at 50, means no effect."""

    low: float
    estimate: float
    high: float


def interval_marks(effect: EffectView) -> IntervalMarks | None:
    """``None`` where a number is missing, so that nothing can be drawn honestly."""
    neutral = 1.0 if effect.unit == "ratio" else 0.0
    offsets = [value - neutral for value in (effect.low, effect.estimate, effect.high)]
    if not all(map(math.isfinite, offsets)):
        return None
    largest = max(map(abs, offsets)) or 1.0
    return IntervalMarks(*(round(50 + 44 * (offset / largest), 2) for offset in offsets))
