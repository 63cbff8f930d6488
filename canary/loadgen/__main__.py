"""``python -m canary.loadgen``: one job from standard input, its result on standard output.

The end of the input ends the load early. It must stay quick to start: nothing heavy is imported.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path

from canary.loadgen.client import HttpLoadGenerator
from canary.loadgen.codec import Job, read_job, result_lines
from domain.load import LoadResult


def main() -> None:
    job = read_job(iter(sys.stdin.buffer.readline, b""))
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        result = runner.run(_run(job))
    sys.stdout.writelines(result_lines(result))


async def _run(job: Job) -> LoadResult:
    asked_to_stop = asyncio.Event()

    def on_input() -> None:
        if not os.read(0, 1):
            asyncio.get_running_loop().remove_reader(0)
            asked_to_stop.set()

    asyncio.get_running_loop().add_reader(0, on_input)
    generator = HttpLoadGenerator(
        path=job.path,
        request_timeout_s=job.request_timeout_s,
        session_header=job.session_header,
        headers=job.headers,
        records_path=Path(job.records_path) if job.records_path else None,
    )
    return await generator.run(job.plan, job.url, job.model, asked_to_stop.is_set)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:  # not built for this platform: asyncio's own loop does as well
        return None
    return uvloop.new_event_loop


if __name__ == "__main__":
    main()
