"""Which panels of a dashboard ask what: a pure reading of Grafana's dashboard document.

A dashboard is data that anybody may have written: of any shape, any size, with any title. What is
no panel of Prometheus is left out; what could not be read is noted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

MOST_QUERIES: Final = 500
"""The most that is read of one dashboard."""

_LONGEST: Final = 10_000
_DEEPEST: Final = 4
_UNSAID: Final = ("prometheus", "datasource", "mixed", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class PanelQuery:
    """One PromQL expression of a panel; titles are cleaned, the expression is as it was written."""

    dashboard: str
    panel: str
    expression: str


class Read(NamedTuple):
    """The queries of a dashboard, and sentences about what was left out."""

    queries: tuple[PanelQuery, ...]
    notes: tuple[str, ...]


def read(document: Mapping[str, Any]) -> Read:
    """The queries in Grafana's answer for one dashboard, those of nested rows too."""
    found = document.get("dashboard")
    dashboard = found if isinstance(found, dict) else {}
    title = cleaned(dashboard.get("title") or "untitled")
    left: Counter[str] = Counter()
    queries: list[PanelQuery] = []
    if "elements" in dashboard:
        left["its newer format is not read"] += 1
    for panel in _panels(dashboard, left, _DEEPEST):
        for expression in _expressions(panel, left):
            if len(queries) < MOST_QUERIES:
                name = cleaned(panel.get("title") or "untitled")
                queries.append(PanelQuery(dashboard=title, panel=name, expression=expression))
            else:
                left["a query beyond the limit"] += 1
    notes = (f"Dashboard {title!r}: {what} ({n} left out)." for what, n in sorted(left.items()))
    return Read(tuple(queries), tuple(notes))


def _panels(holder: Mapping[str, Any], left: Counter[str], depth: int) -> Iterator[dict[str, Any]]:
    """The panels of a dashboard or a row; old dashboards have them in ``rows``."""
    for child in (*_list(holder.get("panels")), *_list(holder.get("rows"))):
        if depth == 0:
            left["rows in rows in rows are not read"] += 1
        elif "libraryPanel" in child:
            left["library panels are not read"] += 1
        else:
            yield child
            yield from _panels(child, left, depth - 1)


def _expressions(panel: Mapping[str, Any], left: Counter[str]) -> Iterator[str]:
    for target in _list(panel.get("targets")):
        expression = target.get("expr")
        asked = _type(target.get("datasource")) or _type(panel.get("datasource"))
        if not isinstance(expression, str) or not expression.strip() or asked not in _UNSAID:
            continue
        if len(expression) > _LONGEST:
            left["a query is too long"] += 1
        else:
            yield expression


def _type(source: Any) -> str:
    """The type of a data source; empty where old dashboards give a name, or nothing."""
    kind = source.get("type") if isinstance(source, dict) else ""
    return kind if isinstance(kind, str) else ""


def _list(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def cleaned(text: object, most: int = 80) -> str:
    """A title or name that others chose, as one short printable line: it is data, never markup."""
    line = " ".join("".join(c if c.isprintable() else " " for c in str(text)).split())
    return line if len(line) <= most else f"{line[: most - 1]}…"
