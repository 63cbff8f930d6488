"""An HTTP server on loopback that streams completions as vLLM does, or as badly as a test wants.

A script is a coroutine function that gets one request and writes raw bytes. It imports no Serinus
code, so that the load client is held against the protocol and not against itself.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

Script = Callable[["Exchange"], Awaitable[None]]


@dataclass(slots=True)
class Exchange:
    """One request and the way to answer it. ``number`` counts requests from 0."""

    number: int
    headers: dict[str, str]
    body: dict
    writer: asyncio.StreamWriter

    @property
    def osl(self) -> int:
        return self.body["max_tokens"]

    async def raw(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def head(self, status: str = "200 OK", *headers: str) -> None:
        lines = [f"HTTP/1.1 {status}", "Content-Type: text/event-stream", *headers]
        await self.raw("\r\n".join([*lines, "Transfer-Encoding: chunked"]).encode() + b"\r\n\r\n")

    async def chunk(self, data: bytes) -> None:
        await self.raw(chunked(data))

    async def token(self, text: str = "a") -> None:
        await self.chunk(event({"choices": [{"index": 0, "text": text}], "usage": None}))

    async def usage(self, completion_tokens: int | None = None) -> None:
        await self.chunk(event(usage_of(len(self.body["prompt"]), completion_tokens or self.osl)))

    async def done(self) -> None:
        await self.chunk(b"data: [DONE]\n\n")
        await self.raw(b"0\r\n\r\n")

    async def refuse(self, status: str) -> None:
        body = b'{"error":{"message":"no"}}'
        await self.raw(f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)


def chunked(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def event(value: object) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def usage_of(prompt_tokens: int, completion_tokens: int) -> dict:
    usage = {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens}
    return {"choices": [], "usage": usage}


def steady(ttft_s: float = 0.01, itl_s: float = 0.002, arm: str = "") -> Script:
    """Every request gets all its tokens, evenly spaced, one a chunk."""

    async def script(exchange: Exchange) -> None:
        await exchange.head("200 OK", *([f"X-Serinus-Arm: {arm}"] if arm else []))
        for token in range(exchange.osl):
            await asyncio.sleep(itl_s if token else ttft_s)
            await exchange.token()
        await exchange.usage()
        await exchange.done()

    return script


@dataclass(slots=True)
class StreamingEngine:
    """``async with StreamingEngine(steady()) as engine`` serves at ``engine.url``.

    ``seen`` lists the requests, ``connections`` counts those ever opened, ``live`` those open now,
    ``cut_off`` the requests whose client went away while they were being answered.
    """

    script: Script
    url: str = ""
    seen: list[Exchange] = field(default_factory=list)
    connections: int = 0
    live: int = 0
    cut_off: int = 0
    _server: asyncio.Server | None = None
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def __aenter__(self) -> StreamingEngine:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=1024)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._server.wait_closed()

    async def until(self, holds: Callable[[], bool], within_s: float = 5.0) -> None:
        async with asyncio.timeout(within_s):
            while not holds():
                await asyncio.sleep(0.01)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        self._tasks.add(task)
        self.connections += 1
        self.live += 1
        try:
            while not writer.is_closing():
                await self._exchange(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self.live -= 1
            self._tasks.discard(task)
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
        body = json.loads(await reader.readexactly(int(headers["content-length"])))
        exchange = Exchange(len(self.seen), headers, body, writer)
        self.seen.append(exchange)
        answering = asyncio.ensure_future(self.script(exchange))
        leaving = asyncio.ensure_future(_gone(reader))
        try:
            await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not answering.done():
                self.cut_off += 1
                raise ConnectionResetError
            answering.result()
        finally:
            for task in (answering, leaving):
                task.cancel()
            await asyncio.gather(answering, leaving, return_exceptions=True)


async def _gone(reader: asyncio.StreamReader) -> None:
    """Until the client has closed; it sends nothing while it waits for an answer."""
    while not reader.at_eof() and reader.exception() is None:
        await asyncio.sleep(0.01)
