"""An engine that stamps each token with the time at which it left: for ``benchmarks.gateway``.

``python -m benchmarks.stamping_engine PORT…`` answers on each port ``GET /health``, and any POST
with a stream of ``x-tokens`` events, one each ``x-itl-ms`` milliseconds, each with this machine's
monotonic clock in nanoseconds. It does as little as it can: it shares the cores with what is
measured.
"""

from __future__ import annotations

import asyncio
import re
import sys
import time

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
WELL = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
_TOKENS, _ITL_MS, _LENGTH = (
    re.compile(rb"\r\n" + name + rb": *(\d+)", re.IGNORECASE)
    for name in (b"x-tokens", b"x-itl-ms", b"content-length")
)


def _number(pattern: re.Pattern[bytes], text: bytes) -> int:
    found = pattern.search(text)
    return int(found[1]) if found else 0


class Connection(asyncio.Protocol):
    """One connection, which may carry one request after another."""

    def __init__(self) -> None:
        self._received = b""
        self._left, self._itl_s, self._next_s = 0, 0.0, 0.0
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, ended, body = self._received.partition(b"\r\n\r\n")
        if not ended or len(body) < _number(_LENGTH, head):
            return
        self._received = b""
        if head.startswith(b"GET"):
            self._transport.write(WELL)
            return
        self._left, self._itl_s = _number(_TOKENS, head), _number(_ITL_MS, head) / 1000
        self._transport.write(HEAD)
        self._next_s = asyncio.get_running_loop().time()
        self._token()

    def _token(self) -> None:
        event = b"data: %d\n\n" % time.monotonic_ns()
        self._left -= 1
        if self._left <= 0:
            self._transport.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(event), event))
            return
        self._transport.write(b"%x\r\n%b\r\n" % (len(event), event))
        self._next_s += self._itl_s
        self._timer = asyncio.get_running_loop().call_at(self._next_s, self._token)


async def serve(ports: list[int]) -> None:
    loop = asyncio.get_running_loop()
    servers = [
        await loop.create_server(Connection, "127.0.0.1", port, backlog=1024) for port in ports
    ]
    await asyncio.gather(*(server.serve_forever() for server in servers))


if __name__ == "__main__":
    asyncio.run(serve([int(port) for port in sys.argv[1:]]))
