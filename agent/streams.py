"""How long streams have lasted, remembered from the traffic: what a drain has to wait for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from agent import drift_memory
from agent.store.codec import encode
from agent.store.unit_of_work import UnitOfWork
from domain.traffic import TrafficShape

LONGEST: Final = "longest_stream"
REMEMBERED_S: Final = 604_800.0
"""A stream of more than a week ago, longer than all since, is forgotten."""

RENEWED_S: Final = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Longest:
    """The longest stream, in seconds, and when one as long was last seen (Unix seconds)."""

    lasting_s: float
    seen_s: float


def note(uow: UnitOfWork, shape: TrafficShape) -> None:
    """Remember the longest stream of a window, in the caller's transaction."""
    longest_ms = shape.latencies.e2el_longest_ms
    if longest_ms is None:
        return
    seen = _Longest(lasting_s=longest_ms / 1000, seen_s=shape.end_s)
    kept = drift_memory.readable(uow, LONGEST, _Longest)
    if kept is None or _replaces(seen, kept):
        uow.state.set(LONGEST, encode(seen))


def _replaces(seen: _Longest, kept: _Longest) -> bool:
    """One as long renews the memory, though not at every look."""
    age_s = seen.seen_s - kept.seen_s
    if seen.lasting_s == kept.lasting_s:
        return age_s >= RENEWED_S
    return seen.lasting_s > kept.lasting_s or age_s >= REMEMBERED_S


def drain_s(uow: UnitOfWork, least_s: float) -> float:
    """Seconds that an engine may take to drain: ``least_s``, or longer than any stream seen."""
    kept = drift_memory.readable(uow, LONGEST, _Longest)
    return least_s if kept is None else max(least_s, kept.lasting_s)
