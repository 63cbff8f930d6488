"""Which models and which LoRA adapters a fleet serves, by the names that its engines show.

Request metrics carry the model's name, so every figure can be told for one model. They carry no
adapter's name: of adapters an engine tells only which ones had requests running or waiting, hence
names and no figures.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from domain.metrics import Function, Query, Sample
from domain.ports import MetricSource
from tools import queries
from tools.profiler import Missing, missing

_ADAPTERS = ("running_lora_adapters", "waiting_lora_adapters")


class Served(NamedTuple):
    """Names of models and of LoRA adapters; none where they are not known."""

    models: tuple[str, ...] = ()
    adapters: tuple[str, ...] = ()


async def read_served(source: MetricSource, *, arm: str, end_s: float, window_s: float) -> Served:
    """What the engines of the arm served in the ``window_s`` seconds before ``end_s``."""
    models, adapters = await asyncio.gather(
        read_models(source, arm=arm, end_s=end_s, window_s=window_s),
        read_adapters(source, arm=arm, end_s=end_s, window_s=window_s),
    )
    return Served(
        () if isinstance(models, Missing) else models,
        () if isinstance(adapters, Missing) else adapters,
    )


async def read_models(
    source: MetricSource, *, arm: str | None, end_s: float, window_s: float
) -> tuple[str, ...] | Missing:
    """The names of the models that engines served in the ``window_s`` seconds before ``end_s``."""
    query = Query(
        metric=queries.RUNNING,
        function=Function.COUNT,
        window_s=window_s,
        where=queries.where(arm=arm),
        by=("model_name",),
    )
    reading = await source.read(query, end_s)
    if fault := missing({"models": reading}, ("models",)):
        return fault
    assert isinstance(reading, Sample)
    return tuple(sorted(name for name in reading.by("model_name") if name))


async def read_adapters(
    source: MetricSource, *, arm: str | None, end_s: float, window_s: float
) -> tuple[str, ...] | Missing:
    """The names of the LoRA adapters that had requests in the ``window_s`` before ``end_s``.

    Missing where no engine serves adapters, and from the embedded scraper: an engine keeps a series
    for every set of adapters that ever ran together, too many to hold in memory.
    """
    # The value is when the engine last saw that set, so no two series may be summed.
    query = Query(
        metric=queries.ADAPTERS,
        function=Function.LAST,
        where=queries.where(arm=arm),
        by=("instance", "replica", "max_lora", *_ADAPTERS),
    )
    reading = await source.read(query, end_s)
    if fault := missing({"adapters": reading}, ("adapters",)):
        return fault
    assert isinstance(reading, Sample)
    seen = {
        name.strip()
        for series in reading.series
        if series.value >= end_s - window_s
        for label in _ADAPTERS
        for name in series.label(label).split(",")
    }
    return tuple(sorted(seen - {""}))
