"""The load client in processes of its own, so that neither it nor the caller disturbs the other.

A controller's cycle would make stamps late, and a thousand streams would make its cycles late. More
than one process is for loads beyond what one core carries. The job goes in by standard input, so
that no header is seen in a list of processes, and the input staying open is the order to go on: a
caller that dies ends the load with itself.
"""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import perf_counter

from canary.loadgen.codec import Job, job_lines, read_closing, read_record
from canary.loadgen.options import Options
from canary.loadgen.request import Endpoint, check
from canary.loadgen.shards import deal, merge, shards_for
from domain.errors import BadInput, Temporary
from domain.load import LoadPlan, LoadResult, RequestRecord, StopCause
from domain.ports import unheard

POLL_S = 0.1
READY = b"ready\n"
ALL_TOLD = b"\n"
# All clients hear of the common start before it comes.
START_MARGIN_S = 0.02


class ProcessLoadGenerator:
    """A LoadGenerator that runs ``python -m canary.loadgen`` in ``shards`` processes at once.

    They share the plan and begin at one instant; with ``None`` there are as many as its streams
    and this machine's cores ask for. Cancelling ``run`` kills them. A client that could
    not run raises Temporary.
    """

    def __init__(self, options: Options | None = None, *, shards: int | None = 1) -> None:
        if shards is not None and shards < 1:
            raise BadInput(f"A load needs a process to send it; got {shards} shards.")
        self._options = options or Options()
        self._shards = shards

    async def run(
        self,
        plan: LoadPlan,
        url: str,
        model: str,
        stop: Callable[[], bool],
        heard: Callable[[RequestRecord], None] = unheard,
    ) -> LoadResult:
        Endpoint.parse(url)
        check(plan, self._options)
        shards = shards_for(plan, _cores()) if self._shards is None else self._shards
        jobs = [
            Job(plan=share.plan, url=url, model=model, options=share.options)
            for share in deal(plan, self._options, shards)
        ]
        clients: list[_Client] = []
        try:
            for _ in jobs:
                clients.append(_Client(await _launch()))  # noqa: PERF401 what started must be ended
            ready = zip(clients, jobs, strict=True)
            await asyncio.gather(*(client.prepare(job) for client, job in ready))
            start_at_s = perf_counter() + (START_MARGIN_S if len(clients) > 1 else 0.0)
            for client in clients:
                client.start(start_at_s)
            return merge(await _results(clients, stop, heard))
        finally:
            await asyncio.gather(*(client.end() for client in clients))


def _cores() -> int:
    """The cores that this process may use, which in a container may be few of the machine's."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


async def _launch() -> Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "canary.loadgen", stdin=PIPE, stdout=PIPE, stderr=PIPE
    )


async def _results(
    clients: Sequence[_Client], stop: Callable[[], bool], heard: Callable[[RequestRecord], None]
) -> list[LoadResult]:
    """What all clients say, in their order. One that gives up for over-saturation ends them all."""
    tasks = [asyncio.create_task(client.result(heard)) for client in clients]
    try:
        while under_way := [task for task in tasks if not task.done()]:
            if stop() or any(task.done() and _gave_up(task.result()) for task in tasks):
                for client in clients:
                    client.stop()
            await asyncio.wait(under_way, timeout=POLL_S, return_when=asyncio.FIRST_COMPLETED)
        return [task.result() for task in tasks]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _gave_up(result: LoadResult) -> bool:
    return result.stopped is not None and result.stopped.cause is StopCause.OVER_SATURATED


class _Client:
    """One process: gets its job, waits for the start, plays its plan, tells its result."""

    def __init__(self, process: Process) -> None:
        assert process.stdin and process.stdout and process.stderr
        self._process = process
        self._stdin, self._stdout = process.stdin, process.stdout
        self._complaint = asyncio.create_task(process.stderr.read())

    async def prepare(self, job: Job) -> None:
        """Hand the job over; returns once the client could begin."""
        with suppress(ConnectionError):  # it ended already, and its complaint says why
            for line in job_lines(job):
                self._stdin.write(line)
                await self._stdin.drain()
        if await self._stdout.readline() != READY:
            raise await self._failed()

    def start(self, at_s: float) -> None:
        """Begin at that time of ``perf_counter``, which is one clock for all processes."""
        self._stdin.write(f"{at_s!r}\n".encode())

    def stop(self) -> None:
        self._stdin.close()

    async def result(self, heard: Callable[[RequestRecord], None]) -> LoadResult:
        """What it tells at its end; ``heard`` is told of each request at the request's own."""
        records: list[RequestRecord] = []
        async for line in self._stdout:
            # A client that was killed may leave half a line.
            if line == ALL_TOLD or not line.endswith(b"\n"):
                break
            records.append(read_record(line))
            heard(records[-1])
        closing = await self._stdout.readline()
        await self._process.wait()
        if self._process.returncode != 0 or not closing:
            raise await self._failed()
        return read_closing(closing, records)

    async def end(self) -> None:
        self._stdin.close()
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.kill()
        await self._process.wait()
        await asyncio.gather(self._complaint, return_exceptions=True)

    async def _failed(self) -> Temporary:
        complaint = (await self._complaint).decode(errors="replace").strip()
        code = await self._process.wait()
        last = (complaint.splitlines() or ["no message"])[-1]
        return Temporary(f"The load client ended with code {code}: {last}")
