"""Which PromQL a language model may ask: an allow-list over the parsed expression. Pure.

The parser only reads. What is asked is written anew from the parts that were allowed, with every
label value escaped here, since the parser's own writing does not escape them; what is not named
below is refused, and whatever a server understands by it never reaches one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Final

import promql_parser as parser

from domain.errors import BadInput
from domain.figure import Unit
from tools.catalog.series import SHOWN_LABELS
from tools.promql import escaped

LONGEST: Final = 600
DEEPEST: Final = 12
MOST_SELECTORS: Final = 4
LONGEST_RANGE_S: Final = 86_400.0

FUNCTIONS: Final = frozenset(
    {"abs", "avg_over_time", "clamp_max", "clamp_min", "count_over_time", "delta", "deriv"}
    | {"histogram_quantile", "increase", "irate", "last_over_time", "max_over_time"}
    | {"min_over_time", "quantile_over_time", "rate", "resets", "stddev_over_time"}
    | {"sum_over_time"}
)
AGGREGATIONS: Final = frozenset({"avg", "bottomk", "count", "max", "min", "quantile", "stddev"}) | {
    "sum",
    "topk",
}
OPERATORS: Final = frozenset({"+", "-", "*", "/", ">", "<", ">=", "<=", "==", "!="})
METRICS: Final = re.compile(
    r"up|(vllm:|process_|haproxy_|envoy_|DCGM_FI_|nvidia_|node_)[a-zA-Z0-9_:]{1,120}"
)
"""Metrics of engines, gateways, GPUs and hosts; others are not this service's business."""

_SIGNS: Final = (
    (parser.MatchOp.Equal, "="),
    (parser.MatchOp.NotEqual, "!="),
    (parser.MatchOp.Re, "=~"),
    (parser.MatchOp.NotRe, "!~"),
)
_NUMBERS: Final = 1e12
_PATTERN: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Expression:
    """PromQL that was allowed; ``unit`` is of its values, as far as its form tells."""

    text: str
    unit: Unit


def allowed(text: str, within: Mapping[str, str]) -> Expression:
    """The expression, narrowed to series with the labels ``within``; BadInput says what it may not.

    A label of ``within`` that the expression names too must match both.
    """
    if len(text) > LONGEST:
        raise BadInput(f"A PromQL expression may have {LONGEST} characters at most.")
    root = _parsed(text)
    writer = _Writer(within)
    written = writer.vector(root)
    if writer.selectors == 0:
        raise BadInput("A PromQL expression must ask for a metric.")
    return Expression(text=written, unit=_unit(root))


def _parsed(text: str) -> Any:
    """The parser's tree. What it panics on, as on ``up offset NaN``, is no expression either."""
    try:
        return parser.parse(text)
    except BaseException as error:
        # A panic is no Exception, and its class cannot be imported.
        if not isinstance(error, ValueError) and type(error).__name__ != "PanicException":
            raise
        raise BadInput("That is no PromQL expression; write one such as rate(up[5m]).") from None


class _Writer:
    """Writes allowed parts, and counts what they ask for."""

    def __init__(self, within: Mapping[str, str]) -> None:
        self._within = within
        self._kinds: Mapping[type, Callable[[Any, int], str]] = {
            parser.ParenExpr: lambda node, depth: f"({self.vector(node.expr, depth)})",
            parser.UnaryExpr: lambda node, depth: f"-({self.vector(node.expr, depth)})",
            parser.NumberLiteral: lambda node, _: _number(node.val),
            parser.VectorSelector: lambda node, _: self._selector(node),
            parser.Call: self._call,
            parser.AggregateExpr: self._aggregate,
            parser.BinaryExpr: self._binary,
        }
        self.selectors = 0

    def vector(self, node: Any, depth: int = 0) -> str:
        if depth > DEEPEST:
            raise BadInput(f"A PromQL expression may be {DEEPEST} levels deep at most.")
        write = self._kinds.get(type(node))
        if write is None:
            raise BadInput(
                "Subqueries, texts and ranges of their own are not allowed in PromQL here; give a "
                "range to a function such as rate(metric[5m])."
            )
        return write(node, depth + 1)

    def _call(self, node: Any, depth: int) -> str:
        name = node.func.name
        if name not in FUNCTIONS:
            raise BadInput(f"PromQL functions may be {', '.join(sorted(FUNCTIONS))}; no other.")
        return f"{name}({', '.join(self._argument(each, depth) for each in node.args)})"

    def _argument(self, node: Any, depth: int) -> str:
        if not isinstance(node, parser.MatrixSelector):
            return self.vector(node, depth)
        seconds = _seconds(node.range)
        return f"{self._selector(node.vector_selector)}[{seconds:.0f}s]"

    def _aggregate(self, node: Any, depth: int) -> str:
        operation = str(node.op)
        if operation not in AGGREGATIONS:
            names = ", ".join(sorted(AGGREGATIONS))
            raise BadInput(f"PromQL aggregations may be {names}; no other.")
        inner = [self.vector(each, depth) for each in (node.param, node.expr) if each is not None]
        by = ""
        if node.modifier is not None:
            including = node.modifier.type == parser.AggModifierType.By
            labels = ", ".join(map(_label, node.modifier.labels))
            by = f" {'by' if including else 'without'} ({labels})"
        return f"{operation}{by} ({', '.join(inner)})"

    def _binary(self, node: Any, depth: int) -> str:
        operator, modifier = str(node.op), node.modifier
        if operator not in OPERATORS:
            names = " ".join(sorted(OPERATORS))
            raise BadInput(f"PromQL operators may be {names}; no other.")
        match = ""
        if modifier is not None:
            if modifier.card != parser.VectorMatchCardinality.OneToOne or modifier.group_labels:
                raise BadInput("PromQL may match one series to one only; aggregate both sides.")
            fill = modifier.fill_values
            if fill is not None and (fill.lhs, fill.rhs) != (None, None):
                raise BadInput("PromQL may fill in no values.")
            match = " bool" if modifier.return_bool else ""
            if modifier.matching is not None:
                on = modifier.matching.type == parser.LabelModifierType.Include
                labels = ", ".join(map(_label, modifier.matching.labels))
                match += f" {'on' if on else 'ignoring'} ({labels})"
        left, right = (f"({self.vector(each, depth)})" for each in (node.lhs, node.rhs))
        return f"{left} {operator}{match} {right}"

    def _selector(self, node: Any) -> str:
        if node.at is not None or node.offset is not None:
            raise BadInput("PromQL may have no offset and no @; ask with another time range.")
        if node.matchers.or_matchers:
            raise BadInput("PromQL may have no 'or' between label matches.")
        if node.name is None or not METRICS.fullmatch(node.name):
            raise BadInput(
                "PromQL may ask for metrics of engines, gateways, GPUs and hosts alone, each by "
                "its name before the braces, such as vllm:num_requests_running."
            )
        self.selectors += 1
        if self.selectors > MOST_SELECTORS:
            raise BadInput(f"A PromQL expression may ask for {MOST_SELECTORS} metrics at most.")
        own = [_matcher(matcher) for matcher in node.matchers.matchers]
        fixed = [f'{name}="{escaped(value)}"' for name, value in sorted(self._within.items())]
        matchers = ", ".join((*own, *fixed))
        return f"{node.name}{{{matchers}}}" if matchers else node.name


def _matcher(matcher: Any) -> str:
    if len(matcher.value) > _PATTERN:
        raise BadInput(f"The value of a label match may have {_PATTERN} characters at most.")
    sign = next(sign for operation, sign in _SIGNS if matcher.op == operation)
    return f'{_label(matcher.name)}{sign}"{escaped(matcher.value)}"'


def _label(name: str) -> str:
    """Others may hold secrets, which could be guessed by matching them too."""
    if name not in SHOWN_LABELS:
        raise BadInput(f"PromQL may name these labels alone: {', '.join(sorted(SHOWN_LABELS))}.")
    return name


def _number(value: float) -> str:
    if not math.isfinite(value) or abs(value) > _NUMBERS:
        raise BadInput(f"Numbers in PromQL must be finite, and {_NUMBERS:.0f} at most.")
    return repr(value)


def _seconds(span: timedelta) -> float:
    seconds = span.total_seconds()
    if not 1 <= seconds <= LONGEST_RANGE_S:
        raise BadInput("A range in PromQL may be from a second to a day, such as [5m].")
    return seconds


def _unit(node: Any) -> Unit:
    """What the form of the expression tells of its unit; NONE where it tells nothing."""
    match node:
        case parser.ParenExpr() | parser.AggregateExpr() if str(getattr(node, "op", "")) not in (
            "count",
            "stddev",
        ):
            return _unit(node.expr)
        case parser.Call() if node.func.name == "histogram_quantile":
            return _of_name(_metric(node.args[-1]))
        case parser.Call() if node.func.name in ("rate", "irate"):
            unit = _of_name(_metric(node.args[0]))
            return Unit.TOKENS_A_SECOND if unit is Unit.TOKENS else Unit.A_SECOND
        case parser.Call() if node.func.name in _KEEPING:
            return _of_name(_metric(node.args[-1]))
        case parser.VectorSelector():
            return _of_name(_metric(node))
    return Unit.NONE


_KEEPING: Final = frozenset(
    {"avg_over_time", "delta", "increase", "last_over_time", "max_over_time", "min_over_time"}
    | {"quantile_over_time"}
)


def _metric(node: Any) -> str:
    """The first metric below the node."""
    names: list[str] = []
    parser.walk(node, partial(_note, names))
    return next(iter(names), "")


def _note(names: list[str], node: Any) -> None:
    if isinstance(node, parser.VectorSelector) and node.name:
        names.append(node.name)


def _of_name(metric: str) -> Unit:
    for ending, unit in (
        (("_seconds", "_seconds_bucket", "_seconds_sum", "_seconds_total"), Unit.SECONDS),
        (("_tokens", "_tokens_bucket", "_tokens_sum", "_tokens_total"), Unit.TOKENS),
        (("_perc",), Unit.SHARE),
        (("_requests_running", "_requests_waiting", "_success_total"), Unit.REQUESTS),
    ):
        if metric.endswith(ending):
            return unit
    return Unit.NONE
