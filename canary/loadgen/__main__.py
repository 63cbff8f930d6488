"""``python -m canary.loadgen``: one job from standard input, its result on standard output.

Between the two it says that it is ready, and is told when to begin. The end of the input ends the
load early. It must stay quick to start: nothing heavy is imported.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable

from canary.loadgen.client import HttpLoadGenerator
from canary.loadgen.codec import Job, read_job, result_lines
from domain.load import LoadResult


def main() -> None:
    job = read_job(iter(sys.stdin.buffer.readline, b""))
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    start = sys.stdin.buffer.readline()
    if not start:
        return  # whoever wanted the load is gone
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        result = runner.run(_run(job, float(start)))
    sys.stdout.writelines(result_lines(result))


async def _run(job: Job, start_at_s: float) -> LoadResult:
    asked_to_stop = asyncio.Event()

    def on_input() -> None:
        if not os.read(0, 1):
            asyncio.get_running_loop().remove_reader(0)
            asked_to_stop.set()

    asyncio.get_running_loop().add_reader(0, on_input)
    return await HttpLoadGenerator(job.options).run(
        job.plan, job.url, job.model, asked_to_stop.is_set, start_at_s=start_at_s
    )


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:  # not built for this platform: asyncio's own loop does as well
        return None
    return uvloop.new_event_loop


if __name__ == "__main__":
    main()
