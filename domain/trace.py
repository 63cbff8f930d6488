"""Requests as they really came: when, how long, and which prefix each shared. Never what they said.

A trace is exact where a TrafficShape sums up: a replay of it repeats bursts, and prompts that come
back, as they were. Times are seconds, lengths are tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedRequest:
    """One request, ``offset_s`` after its trace's start.

    ``isl`` and ``osl`` are ``None`` where the source does not tell them, as a gateway's log.
    ``session`` names the conversation, ``turn`` counts from 0 in it. ``blocks`` are ids of the
    prompt's parts in order, the last one perhaps a part of a block: equal ids stand for equal
    tokens after equal prefixes.
    """

    offset_s: float
    isl: int | None
    osl: int | None
    session: str | None = None
    turn: int = 0
    blocks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Requests in order of their offsets.

    A block is ``block_tokens`` long (0 where the trace has none); ``start_s`` is when the trace
    began in Unix seconds, ``None`` where it does not tell.
    """

    requests: tuple[TracedRequest, ...]
    block_tokens: int = 0
    start_s: float | None = None

    @property
    def length_s(self) -> float:
        """Seconds from the start to the last request."""
        return self.requests[-1].offset_s if self.requests else 0.0

    def window(self, start_s: float, length_s: float = math.inf) -> Trace:
        """The requests in [``start_s``, ``start_s + length_s``), as a trace that begins there."""
        return Trace(
            requests=tuple(
                replace(request, offset_s=request.offset_s - start_s)
                for request in self.requests
                if start_s <= request.offset_s < start_s + length_s
            ),
            block_tokens=self.block_tokens,
            start_s=None if self.start_s is None else self.start_s + start_s,
        )
