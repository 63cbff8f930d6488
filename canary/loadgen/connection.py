"""Connections to one engine: an asyncio protocol that stamps what it reads, and a pool of them.

The stamp is taken first thing at the socket read, before any parsing. It must not retry: a request
that meets a broken connection is a failed request, since a user would have seen it fail as well.
"""

from __future__ import annotations

import asyncio
from time import perf_counter
from typing import cast

from canary.loadgen.answer import Answer
from canary.loadgen.request import Endpoint
from domain.load import RequestError

# An engine that does not take a connection in this time is as good as down.
CONNECT_TIMEOUT_S = 10.0
# Uvicorn closes a connection that was idle for 5 s. One used just then would fail through no fault
# of the engine, so an idle connection is dropped well before.
IDLE_LIMIT_S = 2.0


class Connection(asyncio.Protocol):
    """One connection, one exchange at a time. Used from its own loop only."""

    def __init__(self) -> None:
        self.closed = asyncio.get_running_loop().create_future()
        self.idle_since_s = perf_counter()
        self._transport: asyncio.Transport | None = None
        self._answer: Answer | None = None
        self._over: asyncio.Future[None] | None = None

    @property
    def reusable(self) -> bool:
        """Open, not in use, and used a moment ago."""
        gone = self._transport is None or self._transport.is_closing() or self.closed.done()
        fresh = perf_counter() - self.idle_since_s < IDLE_LIMIT_S
        return fresh and not gone and self._answer is None

    def send(self, request: bytes, answer: Answer) -> float:
        """Write a request whose response goes to ``answer``; returns the stamp of sending."""
        self._answer = answer
        self._over = asyncio.get_running_loop().create_future()
        sent_s = perf_counter()
        if self._transport is not None:
            self._transport.write(request)
        return sent_s

    async def over(self, timeout_s: float) -> None:
        """Wait until the response is over; after ``timeout_s`` it is a TIMEOUT."""
        if self._over is None or self._answer is None:
            return
        answer = self._answer
        timer = asyncio.get_running_loop().call_later(timeout_s, self._expire, answer)
        try:
            await self._over
        finally:
            timer.cancel()
        self.idle_since_s = perf_counter()
        if not answer.keep_alive:
            self.abort()

    def abort(self) -> None:
        """Close now; the engine sees its client gone."""
        if self._transport is not None:
            self._transport.abort()

    def _expire(self, answer: Answer) -> None:
        answer.fail(RequestError.TIMEOUT, perf_counter())
        self._settle()

    def _settle(self) -> None:
        self._answer = None
        if self._over is not None and not self._over.done():
            self._over.set_result(None)

    # What the loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        now_s = perf_counter()
        answer = self._answer
        if answer is None:
            self.abort()  # bytes that no request asked for
            return
        answer.feed(data, now_s)
        if answer.end_s is not None:
            self._settle()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answer is not None:
            self._answer.lose(perf_counter())
            self._settle()
        if not self.closed.done():
            self.closed.set_result(None)


class Pool:
    """Keep-alive connections to one endpoint. Owns every one it opened until ``close``."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._idle: list[Connection] = []
        self._open: set[Connection] = set()

    async def take(self) -> Connection:
        """A connection for one exchange; raises OSError where the engine takes none."""
        while self._idle:
            connection = self._idle.pop()
            if connection.reusable:
                return connection
            connection.abort()
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            _, connection = await asyncio.get_running_loop().create_connection(
                Connection, self._endpoint.host, self._endpoint.port
            )
        self._open.add(connection)
        connection.closed.add_done_callback(lambda _: self._open.discard(connection))
        return connection

    def give_back(self, connection: Connection) -> None:
        """Return a connection; one whose exchange was cut off is closed."""
        if connection.reusable:
            self._idle.append(connection)
        else:
            connection.abort()

    async def close(self) -> None:
        for connection in tuple(self._open):
            connection.abort()
        if self._open:
            await asyncio.wait({connection.closed for connection in self._open})
