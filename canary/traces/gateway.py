"""The gateway's own log as a trace: exact times and sessions, no lengths and no prefixes. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from canary.gateways.haproxy_log import LoggedRequest, read_log
from domain.trace import Trace, TracedRequest


def read(lines: Iterable[str]) -> Trace:
    """The trace in the log's ``lines``; BadInput, with the line's number, for a bad one."""
    return trace_of(read_log(lines))


def trace_of(requests: Sequence[LoggedRequest]) -> Trace:
    """All that came, also what was refused or failed: demand is what a plan must repeat."""
    begun_s = min((request.at_s for request in requests), default=0.0)
    turns: Counter[str] = Counter()
    traced = []
    for request in sorted(requests, key=lambda request: request.at_s):
        turn = 0
        if request.session is not None:
            turn = turns[request.session]
            turns[request.session] += 1
        # Whole milliseconds, as they were logged.
        offset_s = round((request.at_s - begun_s) * 1000) / 1000
        traced.append(
            TracedRequest(offset_s=offset_s, isl=None, osl=None, session=request.session, turn=turn)
        )
    return Trace(requests=tuple(traced), start_s=begun_s if requests else None)
