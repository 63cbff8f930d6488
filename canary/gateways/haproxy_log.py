"""The gateway's own log: one JSON line a request, kept by HAProxy in memory and read from there.

Only requests for completions are logged; whoever asks for health or models is no demand. It tells
when a request came, where it went, how it ended and how long it took: no content, no address, no
header. The session is a hash salted anew with each HAProxy, so that a name cannot be found again by
trying names, nor across two of them. A ring in HAProxy's memory needs no file and no listener, and
forgets the oldest lines first. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from domain.errors import BadInput

RING = "requests"
# A line has some 230 bytes.
_MOST_LINE = 512
_MOST_LINES = 40_000

_FIELDS = {
    "at_ms": '"%[var(txn.at)]"',
    "arm": '"%b"',
    "slot": '"%s"',
    "status": "%ST",
    "header_ms": "%Tr",
    "total_ms": "%Ta",
    "bytes_in": "%U",
    "bytes_out": "%B",
    "ended": '"%ts"',
    "session": '"%[var(txn.session)]"',
}
# How HAProxy writes that a request did not get so far, or that there is no such thing.
_NONE_MS = -1
_NO_SESSION = "-"
_NO_SLOT = "<NOSRV>"
_NO_TIME = ("", "-")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedRequest:
    """One request as the gateway saw it, begun ``at_s`` (Unix seconds).

    ``header_ms`` is from sending it to an engine to the answer's header, ``total_ms`` from its
    first to its last byte. ``ended`` holds HAProxy's two letters, ``--`` for a whole answer.
    ``slot``, ``header_ms`` and ``session`` are ``None`` where there were none.
    """

    at_s: float
    arm: str
    slot: str | None
    status: int
    header_ms: float | None
    total_ms: float
    bytes_in: int
    bytes_out: int
    ended: str
    session: str | None


def global_lines() -> str:
    """What stands in ``global``: the salt."""
    return "    set-var proc.salt uuid()\n"


def ring_section() -> str:
    """The memory that holds the lines."""
    return f"""\
ring {RING}
    format raw
    maxlen {_MOST_LINE}
    size {_MOST_LINE // 2 * _MOST_LINES}
"""


def frontend_lines(session: str) -> str:
    """What stands in the frontend; ``session`` is the expression of the session's header."""
    line = ",".join(f'"{name}":{value}' for name, value in _FIELDS.items())
    quoted = line.replace('"', '\\"')
    named = f"{{ {session} -m len ge 1 }}"
    return f"""\
    log ring@{RING} local0
    http-request set-log-level silent unless {{ method POST }} {{ path_end /completions }}
    http-request set-var(txn.at) date(0,ms)
    http-request set-var(txn.session) {session},concat(:,proc.salt),xxh64 if {named}
    log-format "{{{quoted}}}"
"""


def read_log(lines: Iterable[str]) -> tuple[LoggedRequest, ...]:
    """The requests in ``lines``, in order of their begin; BadInput names a line that is none.

    What came in and was no HTTP request has no begin, and is left out.
    """
    found = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            if row["at_ms"] not in _NO_TIME:
                found.append(_logged(row))
        except (ValueError, KeyError, TypeError) as error:
            raise BadInput(
                f"Line {number} of the gateway's log is none of its own ({error!r}):"
                f" {line.strip()[:60]}"
            ) from error
    return tuple(sorted(found, key=lambda request: request.at_s))


def _logged(row: dict[str, Any]) -> LoggedRequest:
    return LoggedRequest(
        at_s=int(row["at_ms"]) / 1000,
        arm=str(row["arm"]),
        slot=None if row["slot"] == _NO_SLOT else str(row["slot"]),
        status=int(row["status"]),
        header_ms=None if row["header_ms"] == _NONE_MS else float(row["header_ms"]),
        total_ms=float(row["total_ms"]),
        bytes_in=int(row["bytes_in"]),
        bytes_out=int(row["bytes_out"]),
        ended=str(row["ended"]),
        session=None if row["session"] == _NO_SESSION else str(row["session"]),
    )
