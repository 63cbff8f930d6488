"""A server that streams fixed answers and keeps stamps: ``python -m benchmarks.truth_server``.

It answers as vLLM does, one token a chunk at a fixed pace, or as badly as a session's name asks for
(``"<fault>-<number>"``). It prints its port, then the time of ``perf_counter`` at which it read the
first request, and once its input ends its stamps of all answers as one JSON list. Only those
matter, so it reads no more of a request than it must.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, cast

TTFT_S = 0.2
ITL_S = 0.02
OSL = 100
ISL = 512
# A faulty answer is short, since only its end matters.
FAULTY_OSL = 4
FAULTY_ITL_S = 0.002
HANG_S = 3600.0

_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_NOTHING = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_SESSION = re.compile(rb"\r\nx-session-id: *([a-z0-9_]+)-\d+", re.IGNORECASE)


class Fault(Enum):
    """What may be wrong with an answer; MERGED, SPLIT and ROLE_FIRST are unusual and yet right."""

    NONE = "none"
    HTTP_500 = "http_500"
    HTTP_429 = "http_429"
    CLOSED_BEFORE = "closed_before"
    CLOSED_IN_MID_STREAM = "closed_in_mid_stream"
    HANG = "hang"
    TRUNCATED_JSON = "truncated_json"
    MERGED = "merged"
    SPLIT = "split"
    ROLE_FIRST = "role_first"
    NO_USAGE = "no_usage"
    EMPTY = "empty"


class Truth(NamedTuple):
    """What the server's own stamps say of one answer; ``read_s`` is ``perf_counter``'s."""

    read_s: float
    ttft_s: float
    tpot_s: float


def event(value: object) -> bytes:
    return b"data: " + (value if isinstance(value, bytes) else json.dumps(value).encode()) + b"\n\n"


def chunked(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def usage(osl: int) -> bytes:
    return event({"choices": [], "usage": {"prompt_tokens": ISL, "completion_tokens": osl}})


# As vLLM writes it, so that a client has as many bytes to read.
TOKEN = event(
    {
        "id": "cmpl-0123456789abcdef0123456789abcdef",
        "object": "text_completion",
        "created": 1700000000,
        "model": "truth",
        "choices": [{"index": 0, "text": " word", "logprobs": None, "finish_reason": None}],
        "usage": None,
    }
)
ROLE = event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
DONE = event(b"[DONE]")
END = b"0\r\n\r\n"


@dataclass(slots=True)
class Known:
    """What the server knows of all that it was asked."""

    answers: list[Truth] = field(default_factory=list)
    asked: bool = False


class TruthServer(asyncio.Protocol):
    """One connection, one request at a time."""

    def __init__(self, known: Known) -> None:
        self._known = known
        self._rest = b""
        self._answering: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        read_s = time.perf_counter()
        self._rest += data
        head, found, body = self._rest.partition(b"\r\n\r\n")
        if not found:
            return
        if not head.startswith(b"POST"):
            self._rest = body
            self._transport.write(_NOTHING)
            return
        length = _LENGTH.search(head)
        size = int(length[1]) if length else 0
        if len(body) < size:
            return
        self._rest = body[size:]
        session = _SESSION.search(head)
        fault = Fault(session[1].decode()) if session else Fault.NONE
        if not self._known.asked:
            self._known.asked = True
            print(read_s, flush=True)
        answer = self._answer(read_s) if fault is Fault.NONE else self._misbehave(fault)
        self._answering = asyncio.create_task(answer)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answering is not None:
            self._answering.cancel()

    async def _answer(self, read_s: float) -> None:
        token = chunked(TOKEN)
        await asyncio.sleep(TTFT_S)
        first_s = time.perf_counter()
        self._transport.write(_HEAD + token)
        for number in range(1, OSL):
            await asyncio.sleep(first_s + number * ITL_S - time.perf_counter())
            self._transport.write(token)
        last_s = time.perf_counter()
        self._transport.write(chunked(usage(OSL)) + chunked(DONE) + END)
        self._known.answers.append(Truth(read_s, first_s - read_s, (last_s - first_s) / (OSL - 1)))

    async def _misbehave(self, fault: Fault) -> None:
        write = self._transport.write
        tail = usage(FAULTY_OSL) + DONE
        match fault:
            case Fault.HTTP_500:
                write(b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 2\r\n\r\n{}")
            case Fault.HTTP_429:
                write(b"HTTP/1.1 429 Too Many Requests\r\ncontent-length: 2\r\n\r\n{}")
            case Fault.CLOSED_BEFORE:
                self._transport.close()
            case Fault.CLOSED_IN_MID_STREAM:
                write(_HEAD + chunked(TOKEN))
                await asyncio.sleep(FAULTY_ITL_S)
                self._transport.close()
            case Fault.HANG:
                write(_HEAD + chunked(TOKEN))
                await asyncio.sleep(HANG_S)
            case Fault.TRUNCATED_JSON:
                write(_HEAD + chunked(b'data: {"choices":[{"text":"a"\n\n') + chunked(tail) + END)
            case Fault.MERGED:
                write(_HEAD + chunked(TOKEN * FAULTY_OSL + tail) + END)
            case Fault.SPLIT:
                write(_HEAD)
                stream = TOKEN * FAULTY_OSL + tail
                for start in range(0, len(stream), 7):
                    write(chunked(stream[start : start + 7]))
                    await asyncio.sleep(0)
                write(END)
            case Fault.ROLE_FIRST:
                write(_HEAD + chunked(ROLE))
                await asyncio.sleep(FAULTY_ITL_S)
                write(chunked(TOKEN * FAULTY_OSL + tail) + END)
            case Fault.NO_USAGE:
                write(_HEAD + chunked(TOKEN * FAULTY_OSL + DONE) + END)
            case Fault.EMPTY:
                write(_HEAD + chunked(DONE) + END)


async def serve() -> None:
    known = Known()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: TruthServer(known), "127.0.0.1", 0, backlog=2048)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    server.close()
    print(json.dumps(known.answers))


if __name__ == "__main__":
    import uvloop

    uvloop.run(serve())
