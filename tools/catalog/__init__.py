"""The catalog: the bounded, read-only callables that may be shown to a language model.

It is given ports that read, and functions that return what was read; no client, no path, no address
and no command. So nothing in it can change anything, whatever it is called with.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from domain.engine import EngineConfig, Knob
from domain.errors import BadInput, Temporary
from domain.ports import MetricSource
from tools.catalog import asking, knobs, panels, studies
from tools.catalog.asking import Evaluator
from tools.catalog.knobs import Simulate
from tools.catalog.panels import ReadAlerts, ReadDashboards
from tools.catalog.studies import ReadStudies
from tools.catalog.tool import Told, Tool
from tools.catalog.traffic import traffic

CALL_S: Final = 20.0
"""The longest that one call may take, in seconds."""

__all__ = ["CALL_S", "Catalog", "Fleet", "Reads", "Told", "Tool", "catalog"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """What is looked at: a served model and an arm (``None`` for all), ``within`` the labels that
    tell this fleet from others, the ``config`` that production runs, and what can be turned."""

    model: str
    arm: str | None
    within: Mapping[str, str]
    scrape_s: float
    knobs: tuple[Knob, ...]
    config: EngineConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Reads:
    """All that a catalog may read by; ``None`` where there is no such thing to read."""

    metrics: MetricSource | None = None
    evaluator: Evaluator | None = None
    dashboards: ReadDashboards | None = None
    alerts: ReadAlerts | None = None
    studies: ReadStudies | None = None
    simulate: Simulate | None = None


class Catalog:
    """Tools by name. One caller at a time; a call takes ``call_s`` seconds at most."""

    def __init__(self, tools: Sequence[Tool], call_s: float = CALL_S) -> None:
        self.tools: Mapping[str, Tool] = {tool.name: tool for tool in tools}
        self._call_s = call_s

    async def call(self, name: str, arguments: object) -> Told:
        """What the tool tells, cut to size. Raises a SerinusError with the reason: BadInput where
        the call can be mended, Temporary where the same call may work later."""
        tool = self.tools.get(name)
        if tool is None:
            raise BadInput(f"There is no such tool; there are {', '.join(self.tools) or 'none'}.")
        try:
            async with asyncio.timeout(self._call_s):
                told = await tool.run(tool.checked(arguments))
        except TimeoutError:
            raise Temporary(f"{name} took longer than {self._call_s:g} s.") from None
        return told.fitted()


def catalog(reads: Reads, fleet: Fleet, now: float, call_s: float = CALL_S) -> Catalog:
    """The tools for what can be read; ranges are counted back from ``now`` (Unix seconds)."""
    tools: list[Tool] = []
    if reads.metrics is not None:
        tools.append(
            traffic(
                reads.metrics,
                model=fleet.model,
                arm=fleet.arm,
                scrape_s=fleet.scrape_s,
                now=now,
            )
        )
    if reads.evaluator is not None:
        tools.append(
            asking.promql(
                reads.evaluator, within=fleet.within, now=now, least_step_s=fleet.scrape_s
            )
        )
    if reads.dashboards is not None:
        tools.append(panels.dashboards(reads.dashboards))
        if reads.evaluator is not None:
            tools.append(
                panels.panel(
                    reads.dashboards,
                    reads.evaluator,
                    within=fleet.within,
                    now=now,
                    least_step_s=fleet.scrape_s,
                )
            )
    if reads.alerts is not None:
        tools.append(panels.alerts(reads.alerts))
    if reads.studies is not None:
        tools.append(studies.trials(reads.studies))
    if fleet.knobs:
        tools.append(knobs.knob(fleet.knobs, fleet.config))
        if reads.simulate is not None:
            tools.append(knobs.what_if(fleet.knobs, fleet.config, reads.simulate))
    return Catalog(tools, call_s)
