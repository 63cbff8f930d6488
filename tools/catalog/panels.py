"""The tools that look at Grafana: its dashboards, what a panel shows, and its alerts.

Titles, expressions and texts are other people's. A panel's expression is asked only if the
allow-list lets it through, as if the language model had written it itself.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeAlias

from domain.errors import BadInput, SerinusError
from tools.catalog.asking import Evaluator, evaluated
from tools.catalog.expression import allowed
from tools.catalog.range import AGO, LENGTH, range_of
from tools.catalog.series import rows
from tools.catalog.tool import Row, Told, Tool, text_of
from tools.grafana_alerts import Alert
from tools.grafana_dashboards import Dashboards
from tools.grafana_panels import PanelQuery

MOST_PANELS: Final = 40
MOST_QUERIES: Final = 4
MOST_ALERTS: Final = 20
_TITLE: Final = 80
_INTERVAL: Final = re.compile(r"\$__(rate_interval|interval|range)\b|\$\{__(rate_)?interval\}")

ReadDashboards: TypeAlias = Callable[[], Awaitable[Dashboards]]
ReadAlerts: TypeAlias = Callable[[], Awaitable[tuple[Alert, ...]]]


def dashboards(read: ReadDashboards) -> Tool:
    async def run(given: Mapping[str, Any]) -> Told:
        wanted = given["search"].strip().lower()
        found = await read()
        panels: dict[tuple[str, str], int] = {}
        for query in found.queries:
            if wanted in f"{query.dashboard} {query.panel} {query.expression}".lower():
                panel = (query.dashboard, query.panel)
                panels[panel] = panels.get(panel, 0) + 1
        about = {"dashboards": str(found.listed), "panels found": str(len(panels))}
        lines = [
            Row(words={"dashboard": dashboard, "panel": panel, "queries": str(count)})
            for (dashboard, panel), count in list(panels.items())[:MOST_PANELS]
        ]
        return Told(about=about, rows=tuple(lines))

    return Tool(
        name="dashboards",
        about="Lists Grafana's dashboards and panels of Prometheus whose texts hold a word.",
        arguments={"search": text_of(_TITLE, "a word to look for; empty for all")},
        run=run,
    )


def panel(
    read: ReadDashboards,
    evaluator: Evaluator,
    *,
    within: Mapping[str, str],
    now: float,
    least_step_s: float,
) -> Tool:
    async def run(given: Mapping[str, Any]) -> Told:
        span = range_of(given, now)
        found = _of_panel((await read()).queries, given["dashboard"], given["panel"])
        told: list[Row] = []
        for number, query in enumerate(found[:MOST_QUERIES], start=1):
            words = {"query": query.expression}
            try:
                expression = allowed(_INTERVAL.sub("5m", query.expression), within)
                lines = await evaluated(evaluator, expression, span, least_step_s)
            except SerinusError as error:
                told.append(Row(words=words | {"not read": str(error)}))
                continue
            about = rows(lines, expression.unit, f"{expression.text}, {span}")
            named = Told(about={}, rows=about).renamed(f"q{number}_").rows
            told += [Row(words=words | {"series": str(len(lines))}), *named]
        about_all = {"dashboard": given["dashboard"], "panel": given["panel"], "range": str(span)}
        return Told(about=about_all, rows=tuple(told))

    return Tool(
        name="panel",
        about="Tells the queries of one Grafana panel and their min, mean, max, last and slope.",
        arguments={
            "dashboard": text_of(_TITLE, "the dashboard's title, as listed"),
            "panel": text_of(_TITLE, "the panel's title, as listed"),
            "minutes_ago": AGO,
            "minutes": LENGTH,
        },
        run=run,
    )


def alerts(read: ReadAlerts) -> Tool:
    async def run(given: Mapping[str, Any]) -> Told:
        found = await read()
        lines = tuple(
            Row(words={"alert": alert.name, "state": alert.state, "text": alert.text})
            for alert in found[:MOST_ALERTS]
        )
        return Told(about={"alerts": str(len(found))}, rows=lines)

    return Tool(
        name="alerts",
        about="Tells Grafana's alerts that are pending or firing, with their texts.",
        arguments={},
        run=run,
    )


def _of_panel(queries: tuple[PanelQuery, ...], dashboard: str, panel: str) -> list[PanelQuery]:
    found = [query for query in queries if (query.dashboard, query.panel) == (dashboard, panel)]
    if not found:
        raise BadInput("There is no such panel; ask dashboards for the titles first.")
    return found
