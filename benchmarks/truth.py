"""A truth server that is running, and what a client on it costs."""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TypeVar

import psutil

from benchmarks.truth_server import Truth

Told = TypeVar("Told")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Seconds from the launch of a client to its first request, and CPU seconds after that."""

    first_request_s: float
    cpu_s: float


class Server:
    """A truth server that is running."""

    def __init__(self, process: Process, url: str) -> None:
        assert process.stdin is not None and process.stdout is not None
        self.url = url
        self._process = process
        self._stdin, self._stdout = process.stdin, process.stdout

    async def observe(self, run: Callable[[], Awaitable[Told]]) -> tuple[Told, Cost]:
        """Run a client, and tell what it cost; its processes are all that is started meanwhile."""
        launched_s = time.perf_counter()
        running = asyncio.ensure_future(run())
        reading = asyncio.ensure_future(self._stdout.readline())
        await asyncio.wait({running, reading}, return_when=asyncio.FIRST_COMPLETED)
        if not reading.done():
            reading.cancel()
            await running
            raise ChildProcessError("it sent nothing")
        begun_s = _ended_cpu_s() + self._running_cpu_s()
        told = await running
        cost = Cost(
            first_request_s=float(reading.result()) - launched_s,
            cpu_s=_ended_cpu_s() - begun_s,
        )
        return told, cost

    def _running_cpu_s(self) -> float:
        """CPU seconds of all our descendants but the server's."""
        total = 0.0
        for child in psutil.Process().children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                if child.pid != self._process.pid:
                    times = child.cpu_times()
                    total += times.user + times.system
        return total

    async def truths(self) -> list[Truth]:
        self._stdin.close()
        said = json.loads(await self._stdout.read())
        return [Truth(*row) for row in said]


def _ended_cpu_s() -> float:
    """CPU seconds of all descendants that ended and were waited for."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


@asynccontextmanager
async def server() -> AsyncIterator[Server]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.truth_server", stdin=PIPE, stdout=PIPE
    )
    assert process.stdout is not None and process.stdin is not None
    try:
        yield Server(process, f"http://127.0.0.1:{int(await process.stdout.readline())}")
    finally:
        process.stdin.close()
        await process.wait()
