"""A typed query as PromQL: a pure function, and the only text that reaches a Prometheus server.

Label values come from people and configurations, so they are escaped; names come from code, and
one that is no name is refused. Nothing else of a query can become PromQL.
"""

from __future__ import annotations

import re
from typing import Final

from domain.errors import BadInput
from domain.metrics import Function, Query
from tools.completeness import LEAST_ANSWERED, TARGET_LABELS, target_where
from tools.generations import names
from tools.queries import UP

_METRIC: Final = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")


def promql(query: Query, lookback_s: float = 15.0) -> str:
    """The query as PromQL; samples as old as ``lookback_s`` (seconds) or older are stale.

    A function over a window answers only while one matching series at least is still fresh, so
    that a source that went silent in mid-window gives no data instead of a number too low.

    Each series is taken under the newest of the signal's names that has it: ``or`` matches series
    by all their labels but the name. So engines of several versions are summed whole, and one that
    shows two names counts once.
    """
    selectors = [_selector(name, query.matches) for name in names(query.metric)]
    summed = f"sum by ({', '.join(map(_label, query.by))})" if query.by else "sum"
    fresh = [_fresh(selector, lookback_s) for selector in selectors]
    if query.function is Function.LAST:
        newest = map("{} and {}".format, selectors, fresh)
        return f"{summed} ({' or '.join(newest)})"
    window = _duration(query.window_s)
    over_time = (f"{query.function.value}({selector}[{window}])" for selector in selectors)
    return f"{summed} ({' or '.join(over_time)}) and on () ({' or '.join(fresh)})"


def missed_promql(query: Query, lookback_s: float = 15.0) -> str:
    """Which of the targets that the query covers missed scrapes, see ``tools.completeness``.

    Where the query names no target, every target that has an arm is covered.
    """
    where = target_where(query)
    named = any(name in TARGET_LABELS for name, _ in where)
    selector = _selector(UP, where) if named else _selector(UP, where, 'arm!=""')
    failed = f"({selector} == 0 and {_fresh(selector, lookback_s)})"
    if query.function is Function.LAST:
        return failed
    window = _duration(query.window_s)
    return f"avg_over_time({selector}[{window}]) < {LEAST_ANSWERED} or {failed}"


def _fresh(selector: str, lookback_s: float) -> str:
    return f"time() - timestamp({selector}) < {lookback_s:g}"


def _selector(metric: str, where: tuple[tuple[str, str], ...], *more: str) -> str:
    if not _METRIC.fullmatch(metric):
        raise BadInput(f"{metric!r} is not a metric name.")
    asked = (f'{_label(name)}="{escaped(value)}"' for name, value in where)
    matches = ", ".join((*asked, *more))
    return f"{metric}{{{matches}}}" if matches else metric


def _label(name: str) -> str:
    if not _LABEL.fullmatch(name):
        raise BadInput(f"{name!r} is not a label name.")
    return name


def escaped(value: str) -> str:
    """The text of a label value between its quotes."""
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _duration(seconds: float) -> str:
    milliseconds = round(seconds * 1000)
    if milliseconds <= 0:
        raise BadInput(f"A window must be longer than zero; got {seconds} s.")
    whole, rest = divmod(milliseconds, 1000)
    return f"{milliseconds}ms" if rest else f"{whole}s"
