"""Traces as Azure publishes them: CSV of ``TIMESTAMP,ContextTokens,GeneratedTokens``. Pure.

Its times are dates to a ten-millionth of a second, with or without a zone (UTC where there is
none). It tells nothing of prefixes or conversations.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from fractions import Fraction

from canary.traces.fields import bad_line, numbered, ordered, whole
from domain.trace import Trace, TracedRequest

HEAD = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_TIME = re.compile(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(\.\d+)?(Z|[+-]\d\d:\d\d)?")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TICKS = 10_000_000


def read(lines: Iterable[str]) -> Trace:
    """The trace in ``lines``; BadInput, with the line's number, where one cannot be read."""
    rows = [(number, next(csv.reader([line]))) for number, line in numbered(lines)]
    if not rows or tuple(cell.strip().lstrip("\ufeff") for cell in rows[0][1]) != HEAD:
        number = rows[0][0] if rows else 1
        raise bad_line(number, f"an Azure trace begins with the columns {','.join(HEAD)}")
    found = []
    for number, row in rows[1:]:
        if len(row) != len(HEAD):
            raise bad_line(number, f"it must hold {len(HEAD)} columns; got {len(row)}")
        lengths = {name: _int(cell) for name, cell in zip(HEAD[1:], row[1:], strict=True)}
        isl = whole(number, lengths, HEAD[1], least=1)
        found.append((_ticks(number, row[0]), isl, whole(number, lengths, HEAD[2], least=1)))
    zero = min((ticks for ticks, _, _ in found), default=0)
    return Trace(
        requests=ordered(
            TracedRequest(offset_s=(ticks - zero) / _TICKS, isl=isl, osl=osl)
            for ticks, isl, osl in found
        ),
        start_s=zero / _TICKS if found else None,
    )


def write(trace: Trace) -> Iterator[str]:
    """``trace`` as lines; blocks and sessions are lost, and a start unknown is that of 1970.

    Offsets are rounded to a ten-millionth of a second, the start, which is a float of some 10
    digits before its point, to a millionth. BadInput where lengths are unknown.
    """
    yield ",".join(HEAD) + "\n"
    zero = round(Fraction(trace.start_s or 0) * 1_000_000) * (_TICKS // 1_000_000)
    for number, request in enumerate(trace.requests, 2):
        if request.isl is None or request.osl is None:
            raise bad_line(number, "a request without its lengths cannot be written in this format")
        ticks = zero + round(Fraction(request.offset_s) * _TICKS)
        date = _EPOCH + timedelta(seconds=ticks // _TICKS)
        stamp = f"{date:%Y-%m-%d %H:%M:%S}.{ticks % _TICKS:07d}"
        yield f"{stamp},{request.isl},{request.osl}\n"


def _ticks(number: int, text: str) -> int:
    """Ten-millionths of a second since 1970; a date of Python keeps a tenth of that."""
    if (match := _TIME.fullmatch(text.strip())) is None:
        raise bad_line(number, f"TIMESTAMP must be like 2023-11-16 18:15:46.6805900; got {text!r}")
    try:
        date = datetime.fromisoformat(match[1] + (match[3] or "+00:00"))
    except ValueError as error:
        raise bad_line(number, f"TIMESTAMP {text!r} is no date: {error}") from error
    return round((date - _EPOCH).total_seconds()) * _TICKS + round(
        Fraction(match[2] or "0") * _TICKS
    )


def _int(text: str) -> int | str:
    return int(text) if text.strip().isdecimal() else text
