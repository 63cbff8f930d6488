"""The part of a trace that one of several engines would have got: whole sessions. Pure, seeded."""

from __future__ import annotations

import hashlib
from dataclasses import replace

from canary.traces.prefixes import with_sessions
from domain.errors import BadInput
from domain.trace import Trace


def part_of(trace: Trace, engines: int, *, seed: int) -> Trace:
    """The trace of one of so many engines, to which a gateway sends whole sessions by their hash.

    Which sessions these are is drawn by ``seed``: those of the trace, or those that its prefixes
    betray. BadInput where none of them is left.
    """
    if engines == 1:
        return trace
    named = with_sessions(trace)
    kept = tuple(r for r in named.requests if _drawn(r.session or "", seed) % engines == 0)
    if trace.requests and not kept:
        sessions = len({request.session for request in named.requests})
        raise BadInput(
            f"The trace has {sessions} sessions, too few to tell what one of {engines} replicas"
            " gets; give a trace of more sessions, or none."
        )
    return replace(named, requests=kept)


def _drawn(session: str, seed: int) -> int:
    """The same number for the same session and seed, whatever else the trace holds."""
    return int.from_bytes(hashlib.sha256(f"{seed} {session}".encode()).digest()[:8])
