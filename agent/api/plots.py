"""Where the marks of a small picture stand, in parts of a hundred of its width (pure)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from agent.api.report_schemas import FrontRowView
from agent.api.verdict_schemas import EffectView

FRONT_WIDTH, FRONT_HEIGHT = 100, 60


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


class FrontMark(NamedTuple):
    """One config; ``label`` is the number of its first trial, ``kept`` says it is on the front."""

    x: float
    y: float
    label: str
    kept: bool


class FrontPicture(NamedTuple):
    """Rates upwards to ``most_rate``, a tail to the right to ``most_ms``; both begin at zero."""

    marks: tuple[FrontMark, ...]
    most_rate: float
    most_ms: float


def front_marks(rows: Sequence[FrontRowView], tail: str) -> FrontPicture | None:
    """The rates against ``tail``, which names a figure of the rows; ``None`` where nothing of it
    is known."""
    known = [(row, ms) for row in rows if (ms := getattr(row, tail)) is not None]
    most_ms = max((ms for _, ms in known), default=0.0)
    most_rate = max((row.rate for row, _ in known), default=0.0)
    if most_ms <= 0 or most_rate <= 0:
        return None
    marks = (
        FrontMark(
            x=round(FRONT_WIDTH * ms / most_ms, 2),
            y=round(FRONT_HEIGHT * (1 - row.rate / most_rate), 2),
            label=str(row.trials[0]),
            kept=row.kept,
        )
        for row, ms in known
    )
    return FrontPicture(tuple(marks), most_rate, most_ms)
