"""``python -m canary.loadgen``: one job from standard input, its result on standard output.

Between the two it says that it is ready, and is told when to begin. Then each request is told as it
ends, and after an empty line what else the result holds. The end of the input ends the load early.
It must stay quick to start: nothing heavy is imported.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from typing import cast

from canary.loadgen.client import HttpLoadGenerator
from canary.loadgen.codec import Job, closing_line, read_job, record_line
from domain.load import RequestRecord


def main() -> None:
    job = read_job(iter(sys.stdin.buffer.readline, b""))
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    start = sys.stdin.buffer.readline()
    if not start:
        return  # whoever wanted the load is gone
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(_run(job, float(start)))


async def _run(job: Job, start_at_s: float) -> None:
    output, asked_to_stop = await _Output.opened(), asyncio.Event()

    def heard(record: RequestRecord) -> None:
        output.write(record_line(record))

    def on_input() -> None:
        if not os.read(0, 1):
            asyncio.get_running_loop().remove_reader(0)
            asked_to_stop.set()

    asyncio.get_running_loop().add_reader(0, on_input)
    result = await HttpLoadGenerator(job.options).run(
        job.plan, job.url, job.model, asked_to_stop.is_set, heard, start_at_s=start_at_s
    )
    output.write("\n" + closing_line(result))
    await output.close()


class _Output(asyncio.BaseProtocol):
    """Standard output. A reader that is slow keeps nothing waiting here: what it has not taken yet
    is kept in memory."""

    def __init__(self) -> None:
        self._closed = asyncio.get_running_loop().create_future()

    @classmethod
    async def opened(cls) -> _Output:
        _, output = await asyncio.get_running_loop().connect_write_pipe(cls, sys.stdout)
        return output

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are none by type.
        self._transport = cast(asyncio.WriteTransport, transport)

    def write(self, line: str) -> None:
        self._transport.write(line.encode())

    async def close(self) -> None:
        """Return once all is taken, or the reader is gone."""
        self._transport.close()
        await self._closed

    def connection_lost(self, error: Exception | None) -> None:
        self._closed.set_result(None)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:  # not built for this platform: asyncio's own loop does as well
        return None
    return uvloop.new_event_loop


if __name__ == "__main__":
    main()
