"""A real HTTP server and a real client on asyncio's streams: what a gateway stands between.

The engine answers at once, streams for as long as a test wants, breaks as told, and remembers
which requests it got and which were cancelled. It knows no model and no vLLM.
"""

import asyncio
import re
from contextlib import suppress
from enum import Enum
from typing import NamedTuple

from tests.fakes.loopback import free_port


class Fault(Enum):
    """How an engine answers everything but its health check."""

    NONE = "none"
    ERROR_500 = "error_500"
    OVERLOADED = "overloaded"
    EMPTY = "empty"
    BREAK_OFF = "break_off"
    SILENT = "silent"


class HttpEngine:
    """Listens on a port of its own, also over ``stop`` and ``start``.

    A request to ``/stream`` gets a chunk at once and its last one when ``release`` is called; any
    other one is answered with the number of its body's bytes.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.port = free_port()
        self.fault = Fault.NONE
        self.healthy = True
        self.requests = 0
        self.heads: list[bytes] = []
        self.open = 0
        self.cancelled = 0
        self._release = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(
            self._accept, "127.0.0.1", self.port, backlog=1024
        )

    async def stop(self) -> None:
        """Stop as a killed process does: the port is closed and every connection cut."""
        if self._server is None:
            return
        server, self._server = self._server, None
        server.close()
        await _turns_of_the_loop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await server.wait_closed()
        await _turns_of_the_loop()

    def release(self) -> None:
        """Let every open stream end."""
        self._release.set()
        self._release = asyncio.Event()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        def ended(task: asyncio.Task[None]) -> None:
            # A task that was cancelled before its first step has closed nothing.
            writer.close()
            self._tasks.discard(task)

        if self._server is None:
            writer.close()
            return
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(ended)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            if head.startswith(b"GET /health "):
                writer.write(_answer(200 if self.healthy else 503, b""))
            else:
                self.requests += 1
                self.heads.append(head)
                self.open += 1
                try:
                    await self._answer(head, reader, writer)
                finally:
                    self.open -= 1
            await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    async def _answer(
        self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
        body = await reader.readexactly(int(length[1])) if length else b""
        match self.fault:
            case Fault.ERROR_500:
                writer.write(_answer(500, b"failed"))
            case Fault.OVERLOADED:
                writer.write(_answer(503, b"busy"))
            case Fault.EMPTY:
                return
            case Fault.BREAK_OFF:
                writer.write(_STREAM + b"5\r\nfirst\r\n")
            case Fault.SILENT:
                await self._unless_cancelled(reader, self._release.wait())
            case Fault.NONE if b" /stream " in head.split(b"\r\n")[0]:
                writer.write(_STREAM + b"5\r\nfirst\r\n")
                if await self._unless_cancelled(reader, self._release.wait()):
                    writer.write(b"4\r\nlast\r\n0\r\n\r\n")
            case Fault.NONE:
                writer.write(_answer(200, str(len(body)).encode()))

    async def _unless_cancelled(self, reader: asyncio.StreamReader, until) -> bool:
        waits = asyncio.ensure_future(until)
        closes = asyncio.ensure_future(reader.read(1))
        try:
            await asyncio.wait((waits, closes), return_when=asyncio.FIRST_COMPLETED)
            if not waits.done():
                self.cancelled += 1
            return waits.done()
        finally:
            waits.cancel()
            closes.cancel()
            await asyncio.gather(waits, closes, return_exceptions=True)


class Answer(NamedTuple):
    """An answer's status, headers (names in lower case) and whole body."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def slot(self) -> str:
        return self.headers.get("x-serinus-slot", "")

    @property
    def arm(self) -> str:
        return self.headers.get("x-serinus-arm", "")


class Client:
    """One keep-alive connection, one request at a time."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def ask(
        self, session: str | None = None, *, path: str = "/", body: bytes = b""
    ) -> Answer:
        """Send a request and read its whole answer."""
        answer = await self.begin(session, path=path, body=body)
        return answer._replace(body=answer.body + await self.rest(answer))

    async def begin(
        self, session: str | None = None, *, path: str = "/stream", body: bytes = b""
    ) -> Answer:
        """Send a request and read its headers only."""
        await self.send(session, path=path, body=body)
        assert self._reader is not None
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode()
        status, *lines = head.strip().split("\r\n")
        pairs = (line.split(":", 1) for line in lines)
        headers = {name.lower(): value.strip() for name, value in pairs}
        return Answer(int(status.split()[1]), headers, b"")

    async def send(self, session: str | None, *, path: str = "/", body: bytes = b"") -> None:
        """Send a request and read nothing."""
        if self._writer is None:
            self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self.port)
        named = f"x-session-id: {session}\r\n" if session is not None else ""
        head = f"POST {path} HTTP/1.1\r\nhost: t\r\n{named}content-length: {len(body)}\r\n\r\n"
        self._writer.write(head.encode() + body)
        await self._writer.drain()

    async def rest(self, answer: Answer) -> bytes:
        """The body that follows headers just read; IncompleteReadError where it broke off."""
        assert self._reader is not None
        if answer.headers.get("transfer-encoding") != "chunked":
            body = await self._reader.readexactly(int(answer.headers.get("content-length", "0")))
        else:
            body = b""
            while chunk := await self.chunk():
                body += chunk
        if answer.headers.get("connection") == "close":
            await self.close()
        return body

    async def chunk(self) -> bytes:
        """The next chunk of a stream; empty at its end."""
        assert self._reader is not None
        size = int(await self._reader.readuntil(b"\r\n"), 16)
        return (await self._reader.readexactly(size + 2))[:-2]

    async def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            with suppress(ConnectionError):
                await self._writer.wait_closed()
        self._reader = self._writer = None


async def _turns_of_the_loop() -> None:
    """Enough of them for a connection just accepted to be handed over, or one closed to be gone:
    asyncio has no call that waits for either."""
    for _ in range(8):
        await asyncio.sleep(0)


_STREAM = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n"


def _answer(status: int, body: bytes) -> bytes:
    return (
        b"HTTP/1.1 %d X\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % (status, len(body))
        + body
    )
