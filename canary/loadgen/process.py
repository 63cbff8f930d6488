"""The load client in a process of its own, so that neither it nor the caller disturbs the other.

A controller's cycle would make stamps late, and a thousand streams would make its cycles late. The
job goes in by standard input, so that no header is seen in a list of processes, and the input
staying open is the order to go on: a caller that dies ends the load with itself.
"""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from canary.loadgen.codec import Job, job_lines, read_result
from canary.loadgen.request import Endpoint
from domain.errors import Temporary
from domain.load import LoadPlan, LoadResult

POLL_S = 0.1


class ProcessLoadGenerator:
    """A LoadGenerator that runs ``python -m canary.loadgen``; options as HttpLoadGenerator's.

    Cancelling ``run`` kills the process. A client that could not run raises Temporary.
    """

    def __init__(
        self,
        *,
        path: str = "/v1/completions",
        request_timeout_s: float = 120.0,
        session_header: str = "x-session-id",
        headers: Mapping[str, str] | None = None,
        records_path: Path | None = None,
    ) -> None:
        self._path = path
        self._request_timeout_s = request_timeout_s
        self._session_header = session_header
        self._headers = dict(headers or {})
        self._records_path = records_path

    async def run(
        self, plan: LoadPlan, url: str, model: str, stop: Callable[[], bool]
    ) -> LoadResult:
        Endpoint.parse(url)
        job = Job(
            plan=plan,
            url=url,
            model=model,
            path=self._path,
            request_timeout_s=self._request_timeout_s,
            session_header=self._session_header,
            headers=self._headers,
            records_path=str(self._records_path) if self._records_path else None,
        )
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "canary.loadgen", stdin=PIPE, stdout=PIPE, stderr=PIPE
        )
        try:
            said, complaint = await _converse(process, job, stop)
        finally:
            await _end(process)
        if process.returncode != 0 or not said:
            last = (complaint.decode(errors="replace").strip().splitlines() or ["no message"])[-1]
            raise Temporary(f"The load client ended with code {process.returncode}: {last}")
        return await asyncio.to_thread(read_result, said.splitlines())


async def _converse(process: Process, job: Job, stop: Callable[[], bool]) -> tuple[bytes, bytes]:
    """Hand the job over, ask ``stop`` now and then, and give back both outputs."""
    stdin, stdout, stderr = process.stdin, process.stdout, process.stderr
    assert stdin is not None and stdout is not None and stderr is not None
    async with asyncio.TaskGroup() as group:
        said, complaint = group.create_task(stdout.read()), group.create_task(stderr.read())
        with suppress(ConnectionError):  # it ended already, and its complaint says why
            for line in job_lines(job):
                stdin.write(line)
                await stdin.drain()
        while not said.done():
            if stop():
                stdin.close()
            await asyncio.wait({said}, timeout=POLL_S)
    await process.wait()
    return said.result(), complaint.result()


async def _end(process: Process) -> None:
    if process.stdin is not None:
        process.stdin.close()
    if process.returncode is None:
        with suppress(ProcessLookupError):
            process.kill()
    await process.wait()
