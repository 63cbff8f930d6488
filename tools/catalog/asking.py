"""The tool that asks PromQL: an allowed expression, over a bounded range, told in a few figures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol

from domain.errors import BadInput, Temporary
from domain.figure import Unit
from domain.metrics import Failed, Line
from tools.catalog.expression import LONGEST, Expression, allowed
from tools.catalog.range import AGO, LENGTH, Range, range_of
from tools.catalog.series import MOST_SERIES, rows
from tools.catalog.tool import Told, Tool, text_of

MOST_POINTS: Final = 120
CARDINALITY: Final = 200
"""Most series that an expression may have, told or not."""


class Evaluator(Protocol):
    """Evaluates PromQL over a range, and changes nothing. Safe to call concurrently; within its own
    deadline; Failed where it cannot. ``most`` bounds the series that it hands over."""

    async def evaluate(
        self, expression: str, start_s: float, end_s: float, step_s: float, most: int
    ) -> tuple[Line, ...] | Failed: ...


def promql(
    evaluator: Evaluator, *, within: Mapping[str, str], now: float, least_step_s: float
) -> Tool:
    """``within`` are the labels that tell this fleet; ``now`` is when ranges are counted from."""

    async def run(given: Mapping[str, Any]) -> Told:
        span = range_of(given, now)
        expression = allowed(given["expression"], within)
        found = await evaluated(evaluator, expression, span, least_step_s)
        about = {"expression": expression.text, "range": str(span), "series": str(len(found))}
        if not found:
            about["note"] = "Nothing matched: no series has these names and labels in that range."
        if expression.unit is Unit.NONE:
            about["unit"] = "that of the expression"
        return Told(about=about, rows=rows(found, expression.unit, f"{expression.text}, {span}"))

    return Tool(
        name="promql",
        about=f"Asks Prometheus; min, mean, max, last and slope of {MOST_SERIES} series at most.",
        arguments={
            "expression": text_of(LONGEST, "PromQL with metrics by their names"),
            "minutes_ago": AGO,
            "minutes": LENGTH,
        },
        run=run,
    )


async def evaluated(
    evaluator: Evaluator, expression: Expression, span: Range, least_step_s: float
) -> tuple[Line, ...]:
    """The series; BadInput where they are too many, Temporary where the server does not answer.

    How many there are is asked first, of one moment, since a range of them is dear.
    """
    counted = await evaluator.evaluate(
        f"count({expression.text})", span.end_s, span.end_s, least_step_s, 1
    )
    if isinstance(counted, Failed):
        raise Temporary(f"Prometheus could not be asked: {counted.reason}.")
    series = counted[0].points[-1][1] if counted and counted[0].points else 0.0
    if series > CARDINALITY:
        raise BadInput(
            f"That has {series:.0f} series, and {CARDINALITY} are the most; sum by fewer labels."
        )
    step_s = max(span.seconds / MOST_POINTS, least_step_s)
    found = await evaluator.evaluate(
        expression.text, span.start_s, span.end_s, step_s, CARDINALITY + 1
    )
    if isinstance(found, Failed):
        raise Temporary(f"Prometheus could not be asked: {found.reason}.")
    if len(found) > CARDINALITY:
        raise BadInput(f"That has more than {CARDINALITY} series; sum by fewer labels.")
    return found
