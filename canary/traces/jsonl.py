"""Traces as JSON lines: Mooncake's, and those that ``vllm bench serve`` replays as timed traces.

Both have ``timestamp``, ``input_length``, ``output_length`` and ``hash_ids`` on each line, and
differ in the unit of the time and the length of a block. Fields of other tools are left alone, but
for ``chat_id`` and ``parent_chat_id``, by which published timed traces tell conversations. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, NamedTuple

from canary.traces.fields import bad_line, numbered, ordered, whole
from domain.trace import Trace, TracedRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """Units of a ``timestamp`` in one second, tokens in one block, whether lines tell chats."""

    per_s: int
    block_tokens: int
    chats: bool


# https://github.com/kvcache-ai/Mooncake, FAST25-release: milliseconds, blocks of 512 tokens.
MOONCAKE = Dialect(per_s=1000, block_tokens=512, chats=False)
# vLLM 0.32, vllm/benchmarks/datasets, class TimedTrace, by its default options: seconds, blocks of
# 16 tokens, as in Alibaba's traces of Qwen, which name chats.
TIMED = Dialect(per_s=1, block_tokens=16, chats=True)

_LATEST = 10**15


class _Place(NamedTuple):
    """Where a request stands: its conversation, if it has one, and its turn in it."""

    session: str | None
    turn: int


_ALONE = _Place(None, 0)


def read(lines: Iterable[str], dialect: Dialect) -> Trace:
    """The trace in ``lines``; BadInput, with the line's number, where one cannot be read."""
    places: dict[Any, _Place] = {}
    requests = []
    for number, line in numbered(lines):
        row = parsed(number, line)
        place = _chat(row, places) if dialect.chats else _ALONE
        isl = whole(number, row, "input_length", least=1)
        requests.append(
            TracedRequest(
                offset_s=_offset_s(number, row, dialect),
                isl=isl,
                osl=whole(number, row, "output_length", least=1),
                session=place.session,
                turn=place.turn,
                blocks=_blocks(number, row, isl, dialect),
            )
        )
    return Trace(
        requests=ordered(requests),
        block_tokens=dialect.block_tokens if any(r.blocks for r in requests) else 0,
    )


def write(trace: Trace, dialect: Dialect) -> Iterator[str]:
    """``trace`` as lines that ``read`` gives back the same, but for sessions and the start's date.

    BadInput where lengths are unknown or blocks have another size than the dialect's.
    """
    if trace.block_tokens not in (0, dialect.block_tokens):
        raise bad_line(
            1,
            f"blocks of {trace.block_tokens} tokens cannot be written where a reader takes them"
            f" for {dialect.block_tokens}",
        )
    for number, request in enumerate(trace.requests, 1):
        if request.isl is None or request.osl is None:
            raise bad_line(number, "a request without its lengths cannot be written in this format")
        # As decimals: the binary fraction of a second would not come back the same.
        time = format(Decimal(repr(request.offset_s)) * dialect.per_s, "f")
        time = time.rstrip("0").rstrip(".") if "." in time else time
        yield (
            f'{{"timestamp": {time}, "input_length": {request.isl},'
            f' "output_length": {request.osl}, "hash_ids": {json.dumps(request.blocks)}}}\n'
        )


def parsed(number: int, line: str) -> dict[str, Any]:
    """The object of one line; fractions come as Decimal, so that times stay exact."""
    try:
        row = json.loads(line, parse_float=Decimal)
    except ValueError as error:
        raise bad_line(number, f"it is no JSON: {error}") from error
    if not isinstance(row, dict):
        raise bad_line(number, f"it must hold a JSON object; got {line.strip()[:40]!r}")
    return row


def _offset_s(number: int, row: Mapping[str, Any], dialect: Dialect) -> float:
    time = row.get("timestamp")
    if isinstance(time, bool) or not isinstance(time, int | Decimal) or not 0 <= time < _LATEST:
        raise bad_line(number, f"timestamp must be a number from 0 up; got {time!r}")
    return float(Decimal(time) / dialect.per_s)


def _blocks(number: int, row: Mapping[str, Any], isl: int, dialect: Dialect) -> tuple[int, ...]:
    ids = row.get("hash_ids", [])
    if not isinstance(ids, list) or not all(type(block) is int for block in ids):
        raise bad_line(number, "hash_ids must be a list of whole numbers")
    if len(ids) > -(-isl // dialect.block_tokens):
        raise bad_line(
            number,
            f"{len(ids)} hash_ids are more than {isl} tokens fill"
            f" in blocks of {dialect.block_tokens}",
        )
    return tuple(ids)


def _chat(row: Mapping[str, Any], places: dict[Any, _Place]) -> _Place:
    """The place of a chat, whose conversation is its first chat's; it is added to ``places``."""
    chat, parent = row.get("chat_id"), row.get("parent_chat_id")
    if not isinstance(chat, int | str):
        return _ALONE
    before = places.get(parent) if isinstance(parent, int | str) else None
    places[chat] = _Place(before.session, before.turn + 1) if before else _Place(str(chat), 0)
    return places[chat]
