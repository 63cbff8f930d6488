"""Which engines of an arm answer, which do not, and which were started anew in a window.

Read from ``up`` and from a counter that an engine never lowers. An answer that is partial since an
engine is down is just what is looked for here, so it is read; nothing else may lean on it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from domain.metrics import Failed, Function, Partial, Query, Reading, Sample, Series
from domain.ports import MetricSource
from tools import queries

_MOMENTS: Final = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Engines:
    """Names by replica or address. ``up`` answer at the window's end and ``down`` do not;
    ``restarted`` were started anew in the window. ``seen`` were there at any time in it, ``most``
    of them at once. ``fault`` says why nothing is known, and is empty where a source answered, if
    only that it knows no engine."""

    up: tuple[str, ...] = ()
    down: tuple[str, ...] = ()
    restarted: tuple[str, ...] = ()
    seen: tuple[str, ...] = ()
    most: int = 0
    fault: str = ""

    @property
    def known(self) -> bool:
        return bool(self.up or self.down)


async def read_engines(
    source: MetricSource, *, model: str, arm: str | None, end_s: float, window_s: float
) -> Engines:
    """The engines of the ``window_s`` seconds before ``end_s`` (Unix seconds)."""
    alive = Query(
        metric=queries.UP,
        function=Function.LAST,
        where=queries.where(arm=arm),
        by=queries.ENGINE,
    )
    read = Query(
        metric=queries.PROMPT_TOKENS,
        function=Function.LAST,
        where=queries.where(model_name=model, arm=arm),
        by=queries.ENGINE,
    )
    now, counts = await asyncio.gather(
        source.read(alive, end_s),
        source.read_range(read, end_s - window_s, end_s, window_s / _MOMENTS),
    )
    if isinstance(now, Failed):
        return Engines(fault=now.reason)
    alive_now = _series(now)
    at_once = [_names(_series(reading)) for reading in counts]
    return Engines(
        up=_names(one for one in alive_now if one.value > 0),
        down=_names(one for one in alive_now if one.value <= 0),
        restarted=_restarted(counts),
        seen=tuple(sorted({name for names in at_once for name in names})),
        most=max(map(len, at_once), default=0),
    )


def _restarted(moments: Sequence[Reading]) -> tuple[str, ...]:
    """The engines whose counter fell."""
    counts: dict[str, list[float]] = {}
    for reading in moments:
        for one in _series(reading):
            counts.setdefault(_name(one), []).append(one.value)
    fell = (name for name, values in counts.items() if any(b < a for a, b in pairwise(values)))
    return tuple(sorted(fell))


def _series(reading: Reading) -> tuple[Series, ...]:
    match reading:
        case Sample():
            return reading.series
        case Partial():
            return reading.sample.series
    return ()


def _names(series: Iterable[Series]) -> tuple[str, ...]:
    return tuple(sorted({_name(one) for one in series}))


def _name(one: Series) -> str:
    return one.label("replica") or one.label("instance") or "an engine without a name"
