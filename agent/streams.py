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
    """The longest stream of a window, in seconds, and when one as long was last seen (Unix
    seconds)."""

    lasting_s: float
    seen_s: float


def note(uow: UnitOfWork, shape: TrafficShape) -> None:
    """Remember the longest stream of a window, in the caller's transaction."""
    longest_ms = shape.latencies.e2el_longest_ms
    if longest_ms is None:
        return
    kept = _kept(uow)
    after = _with(kept, _Longest(lasting_s=longest_ms / 1000, seen_s=shape.end_s))
    if after != kept:
        uow.state.set(LONGEST, [encode(one) for one in after])


def _kept(uow: UnitOfWork) -> tuple[_Longest, ...]:
    return drift_memory.readable(uow, LONGEST, tuple[_Longest, ...]) or ()


def _with(kept: tuple[_Longest, ...], seen: _Longest) -> tuple[_Longest, ...]:
    """Those that count yet, the longest first: where it is forgotten, the next one of the week
    takes its place. One as long renews the memory, though not at every look."""
    now = seen.seen_s
    same = (one for one in kept if one.lasting_s == seen.lasting_s)
    renewed = next((one for one in same if now - one.seen_s < RENEWED_S), seen)
    longer = (one for one in kept if one.lasting_s > seen.lasting_s)
    return *(one for one in longer if now - one.seen_s < REMEMBERED_S), renewed


def drain_s(uow: UnitOfWork, least_s: float) -> float:
    """Seconds that an engine may take to drain: ``least_s``, or longer than any stream seen."""
    return max(least_s, *(one.lasting_s for one in _kept(uow)), 0.0)
