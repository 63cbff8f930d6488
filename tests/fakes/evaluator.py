"""An Evaluator that tests script: the series that every expression has, and what was asked."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from domain.metrics import Failed, Line


class Evaluation(NamedTuple):
    expression: str
    start_s: float
    end_s: float
    step_s: float
    most: int

    @property
    def points(self) -> float:
        return (self.end_s - self.start_s) / self.step_s + 1


class FakeEvaluator:
    """Counts ``lines`` where it is asked how many there are; hangs where they are ``None``."""

    def __init__(self, lines: Sequence[Line] | Failed | None = ()) -> None:
        self.lines = lines
        self.asked: list[Evaluation] = []

    async def evaluate(
        self, expression: str, start_s: float, end_s: float, step_s: float, most: int
    ) -> tuple[Line, ...] | Failed:
        self.asked.append(Evaluation(expression, start_s, end_s, step_s, most))
        if self.lines is None:
            await asyncio.Event().wait()
            raise AssertionError
        if isinstance(self.lines, Failed):
            return self.lines
        if expression.startswith("count(") and start_s == end_s:
            counted = Line(labels={}, points=((end_s, float(len(self.lines))),))
            return (counted,) if self.lines else ()
        return tuple(self.lines)
