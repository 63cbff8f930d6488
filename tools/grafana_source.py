"""Metrics through Grafana, where the Prometheus server behind it cannot be reached itself.

Grafana passes a query on to its data source and the answer back, unchanged: so this finds the data
source, and ``PrometheusSource`` asks it. It never guesses between two that may both be meant.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from domain.errors import BadInput, SerinusError, Temporary
from domain.metrics import Failed, Line, NoData, Query, Reading, moments
from tools import queries
from tools.grafana_api import Denied, Grafana
from tools.grafana_panels import cleaned
from tools.prometheus import PrometheusSource

PROMETHEUS: Final = "prometheus"
_MOST_ASKED: Final = 12
_NAMED: Final = 6
_LIST: Final = "the list of data sources"
_PATIENT_S: Final = 300.0
"""The age of a sample that still tells who has vLLM's metrics: Prometheus' own limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSource:
    """One of Grafana's data sources. ``uid`` names it in addresses, ``name`` to people."""

    uid: str
    name: str
    type: str = PROMETHEUS

    def __str__(self) -> str:
        return f"{cleaned(self.name)!r} (UID {cleaned(self.uid)})"


async def data_sources(grafana: Grafana) -> tuple[DataSource, ...]:
    """Every data source that the token may see, of any type.

    The list itself takes an administrator's permission; a viewer is told the data sources that he
    may query by the settings that Grafana's own pages begin with.
    """
    try:
        rows: Iterable[Any] = await grafana.ask(
            _LIST, lambda api: api.datasource.list_datasources(), list, "datasources:read"
        )
    except Denied as denied:
        try:
            shown = await grafana.ask(
                _LIST, lambda api: api.client.GET("/frontend/settings"), dict, "datasources:read"
            )
        except BadInput:
            raise denied from None
        named = shown.get("datasources")
        rows = named.values() if isinstance(named, dict) else ()
    return tuple(
        DataSource(uid=row["uid"], name=row["name"], type=row["type"])
        for row in rows
        if isinstance(row, dict)
        and all(isinstance(row.get(key), str) and row[key] for key in ("uid", "name", "type"))
    )


def candidates(known: Sequence[DataSource], wanted: str) -> tuple[DataSource, ...]:
    """Those of type prometheus that ``wanted`` (UID or name, empty for any) may mean: pure.

    BadInput where there is none.
    """
    usable = tuple(source for source in known if source.type == PROMETHEUS)
    if not wanted:
        if not usable:
            others = ", ".join(sorted({cleaned(source.type, 30) for source in known})) or "none"
            raise BadInput(
                f"Grafana shows the token no data source of type prometheus (types: {others}); "
                "add one there, or use the token of the organisation that has it."
            )
        return usable
    meant = [source for source in known if source.uid == wanted] or [
        source for source in known if source.name == wanted
    ]
    if not meant:
        raise BadInput(
            f"Grafana shows the token no data source {cleaned(wanted)!r}; set grafana_datasource "
            f"to one of {_listed(usable)}."
        )
    if meant[0].type != PROMETHEUS:
        raise BadInput(
            f"Grafana's data source {meant[0]} is of type {cleaned(meant[0].type, 30)}; set "
            f"grafana_datasource to one of type prometheus: {_listed(usable)}."
        )
    return tuple(meant[:1])


async def find(
    grafana: Grafana, wanted: str, answers: Callable[[DataSource], Awaitable[bool | None]]
) -> DataSource:
    """The data source that is meant: by UID or name, the only one, or the only one that answers.

    ``answers`` says whether a data source has vLLM's metrics, ``None`` where it could not be asked.
    Raises BadInput where a person must choose, and Temporary where that cannot be told now.
    """
    try:
        known = await data_sources(grafana)
    except Denied:
        if not wanted:
            raise
        return DataSource(uid=wanted, name=wanted)
    found = candidates(known, wanted)
    if len(found) == 1:
        return found[0]
    choose = "set grafana_datasource to the one that is meant"
    if len(found) > _MOST_ASKED:
        raise BadInput(
            f"Grafana has {len(found)} data sources of type prometheus, {_listed(found)}; {choose}."
        )
    said = await asyncio.gather(*map(answers, found))
    have = [source for source, has in zip(found, said, strict=True) if has]
    silent = [source for source, has in zip(found, said, strict=True) if has is None]
    if silent:
        raise Temporary(
            f"Grafana's data sources {_listed(silent)} could not be asked for vLLM's metrics; "
            f"{choose}, of {_listed(found)}."
        )
    if len(have) != 1:
        several = f"{len(have)} of them have" if have else "none of them has"
        raise BadInput(
            f"Grafana has {len(found)} data sources of type prometheus, and {several} metrics of "
            f"vLLM; {choose}: {_listed(have or found)}."
        )
    return have[0]


class GrafanaSource:
    """A MetricSource through Grafana's data source ``wanted`` (UID or name; empty: find it).

    Finds it once, at the first reading that can; until then a reading is Failed and says why. A
    reading takes ``timeout_s`` at most, one that has to find it four times that. Samples as old as
    ``lookback_s`` are stale.
    """

    def __init__(
        self, grafana: Grafana, wanted: str = "", timeout_s: float = 5.0, *, lookback_s: float
    ) -> None:
        self._grafana = grafana
        self._wanted = wanted
        self._timeout_s = timeout_s
        self._lookback_s = lookback_s
        self._finding: asyncio.Task[DataSource] | None = None
        self._source: PrometheusSource | None = None

    async def read(self, query: Query, at_s: float) -> Reading:
        source = await self._ready(at_s)
        if isinstance(source, Failed):
            return source
        return _told(await source.read(query, at_s))

    async def read_range(
        self, query: Query, start_s: float, end_s: float, step_s: float
    ) -> tuple[Reading, ...]:
        source = await self._ready(end_s)
        if isinstance(source, Failed):
            return (source,) * len(moments(start_s, end_s, step_s))
        return tuple(map(_told, await source.read_range(query, start_s, end_s, step_s)))

    async def evaluate(
        self, expression: str, start_s: float, end_s: float, step_s: float, most: int
    ) -> tuple[Line, ...] | Failed:
        """As ``PrometheusSource`` does."""
        source = await self._ready(end_s)
        if isinstance(source, Failed):
            return source
        found = await source.evaluate(expression, start_s, end_s, step_s, most)
        return (
            Failed(reason=f"through Grafana: {found.reason}")
            if isinstance(found, Failed)
            else found
        )

    async def _ready(self, at_s: float) -> PrometheusSource | Failed:
        """The data source once it is found, or why it is not."""
        if self._source is None:
            try:
                await self.find(at_s)
            except SerinusError as error:
                return Failed(reason=str(error).removesuffix("."))
        assert self._source is not None
        return self._source

    async def find(self, at_s: float) -> DataSource:
        """The data source that is read, as of ``at_s``; all that wait for it ask Grafana once.

        Raises as the function ``find`` does.
        """
        if self._finding is None or (self._source is None and self._finding.done()):
            self._finding = asyncio.create_task(self._found(at_s), name="grafana data source")
            # Whoever waited may have been cancelled; a fault that nobody took is no news then.
            self._finding.add_done_callback(lambda task: task.cancelled() or task.exception())
        return await asyncio.shield(self._finding)

    def close(self) -> None:
        """Let go of the threads; a request under way ends at its own timeout."""
        if self._finding is not None:
            self._finding.cancel()
        if self._source is not None:
            self._source.close()

    async def _found(self, at_s: float) -> DataSource:
        async def answers(candidate: DataSource) -> bool | None:
            source = self._behind(candidate, _PATIENT_S)
            try:
                reading = await source.read(queries.now(queries.RUNNING), at_s)
            finally:
                source.close()
            return None if isinstance(reading, Failed) else not isinstance(reading, NoData)

        found = await find(self._grafana, self._wanted, answers)
        self._source = self._behind(found, self._lookback_s)
        return found

    def _behind(self, found: DataSource, lookback_s: float) -> PrometheusSource:
        return PrometheusSource(
            f"{self._grafana.url}/api/datasources/proxy/uid/{quote(found.uid, safe='')}",
            self._timeout_s,
            self._grafana.headers,
            lookback_s=lookback_s,
        )


def _told(reading: Reading) -> Reading:
    """A failure says by which way it came."""
    if isinstance(reading, Failed):
        return Failed(reason=f"through Grafana: {reading.reason}")
    return reading


def _listed(sources: Sequence[DataSource]) -> str:
    more = f" and {len(sources) - _NAMED} more" if len(sources) > _NAMED else ""
    return (", ".join(map(str, sources[:_NAMED])) or "none") + more
