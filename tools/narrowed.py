"""A metric source narrowed to one fleet, where its server knows of several.

An arm's name tells the engines of one fleet apart; two fleets may use the same one. The labels that
a person gives here, such as those by which the fleet's own panels ask, go with every question.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from domain.metrics import Query, Reading
from domain.ports import MetricSource


class Narrowed:
    """A MetricSource that asks ``source`` for targets with these ``labels`` alone.

    A label that a query names itself is left to it.
    """

    def __init__(self, source: MetricSource, labels: Mapping[str, str]) -> None:
        self.source = source
        self._labels = dict(labels)

    async def read(self, query: Query, at_s: float) -> Reading:
        return await self.source.read(self._narrowed(query), at_s)

    async def read_range(
        self, query: Query, start_s: float, end_s: float, step_s: float
    ) -> tuple[Reading, ...]:
        return await self.source.read_range(self._narrowed(query), start_s, end_s, step_s)

    def _narrowed(self, query: Query) -> Query:
        named = dict(query.where)
        within = {name: value for name, value in self._labels.items() if name not in named}
        return replace(query, within=tuple(sorted(within.items())))
