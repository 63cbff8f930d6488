"""The formats of traces that are known, and which of them a file has. Pure: callers read files."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from functools import partial
from typing import NamedTuple

from canary.traces import azure, gateway, jsonl
from domain.errors import BadInput
from domain.trace import Trace


class TraceFormat(Enum):
    MOONCAKE = "mooncake"
    TIMED = "timed"
    AZURE = "azure"
    GATEWAY = "gateway"


class Handling(NamedTuple):
    """How a format is read and, where that makes sense, written."""

    read: Callable[[Iterable[str]], Trace]
    write: Callable[[Trace], Iterator[str]] | None


FORMATS = {
    TraceFormat.MOONCAKE: Handling(
        partial(jsonl.read, dialect=jsonl.MOONCAKE), partial(jsonl.write, dialect=jsonl.MOONCAKE)
    ),
    TraceFormat.TIMED: Handling(
        partial(jsonl.read, dialect=jsonl.TIMED), partial(jsonl.write, dialect=jsonl.TIMED)
    ),
    TraceFormat.AZURE: Handling(azure.read, azure.write),
    TraceFormat.GATEWAY: Handling(gateway.read, None),
}
# Lines that are looked at to tell a format.
_SAMPLE = 200


def read_trace(lines: Sequence[str], trace_format: str | None = None) -> Trace:
    """The trace in a file's ``lines``, in the format of that name, else in the one they show.

    BadInput for an unknown format, for a bad line (with its number), and for lines of no request.
    """
    trace = FORMATS[_named(trace_format) if trace_format else format_of(lines)].read(lines)
    if not trace.requests:
        raise BadInput("The trace holds no request; give a file with at least one.")
    return trace


def write_trace(trace: Trace, trace_format: str) -> Iterator[str]:
    """``trace`` as lines in the format of that name; BadInput where that cannot hold it."""
    if (write := FORMATS[_named(trace_format)].write) is None:
        raise BadInput(f"Traces cannot be written as {trace_format!r}; choose another format.")
    return write(trace)


def format_of(lines: Sequence[str]) -> TraceFormat:
    """The format that ``lines`` are in, by what they hold.

    Mooncake's and timed traces have the same fields; the number of blocks tells them apart.
    BadInput where nothing does, with the names to choose from.
    """
    rows = [row for line in lines[:_SAMPLE] if line.strip() and (row := _object(line))]
    first = next((line for line in lines if line.strip()), "")
    if "".join(first.split()).lstrip("\ufeff") == ",".join(azure.HEAD):
        return TraceFormat.AZURE
    if rows and "at_ms" in rows[0]:
        return TraceFormat.GATEWAY
    told = {_by_blocks(row) for row in rows} - {None}
    if len(told) == 1 and (found := told.pop()):
        return found
    raise BadInput(f"The trace's format cannot be told from its lines; name it: {_known()}.")


def _by_blocks(row: dict[str, object]) -> TraceFormat | None:
    """The dialect whose blocks the prompt fills exactly; none where both or neither are."""
    isl, ids = row.get("input_length"), row.get("hash_ids")
    if not isinstance(isl, int) or not isinstance(ids, list) or not ids:
        return None
    dialects = {TraceFormat.MOONCAKE: jsonl.MOONCAKE, TraceFormat.TIMED: jsonl.TIMED}
    fitting = [
        name
        for name, dialect in dialects.items()
        if len(ids) in (isl // dialect.block_tokens, -(-isl // dialect.block_tokens))
    ]
    return fitting[0] if len(fitting) == 1 else None


def _object(line: str) -> dict[str, object]:
    try:
        row = json.loads(line)
    except ValueError:
        return {}
    return row if isinstance(row, dict) else {}


def _named(name: str) -> TraceFormat:
    try:
        return TraceFormat(name)
    except ValueError as error:
        raise BadInput(f"There is no trace format {name!r}; known are {_known()}.") from error


def _known() -> str:
    return ", ".join(known.value for known in TraceFormat)
