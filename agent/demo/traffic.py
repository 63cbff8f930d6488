"""The demo's live traffic, in a process of its own: coding agents, many turns, shared prefixes.

``python -m agent.demo.traffic --help`` says how it is called. It ends at SIGTERM, and appends one
line of JSON for each request as it ends.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import uvloop

from canary.loadgen.client import HttpLoadGenerator
from canary.loadgen.codec import read_record
from canary.prompts import agents
from domain.load import LoadPlan, RequestRecord

TURNS = 4
SYSTEM_TOKENS = 360
MESSAGE_TOKENS = 70.0
OSL = 32.0
REQUESTS_A_SECOND = 40.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """All that was sent; record times are seconds since ``started_s`` (Unix seconds)."""

    started_s: float
    records: tuple[RequestRecord, ...]


def read_traffic(path: Path) -> Traffic:
    """What has been written so far; a last line that is still being written is left out."""
    head, *lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    return Traffic(
        started_s=float(json.loads(head)["started_s"]),
        records=tuple(read_record(line) for line in lines),
    )


async def send(plan: LoadPlan, url: str, model: str, path: Path) -> None:
    """Send ``plan`` until it ends or SIGTERM comes, recording each request in ``path``."""
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    await HttpLoadGenerator(records_path=path).run(plan, url, model, ended.is_set)


def main() -> None:
    parser = argparse.ArgumentParser(description="Send live traffic of coding agents.")
    parser.add_argument("--url", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--records", type=Path, required=True)
    parser.add_argument("--streams", type=int, default=48)
    parser.add_argument("--think", type=float, default=0.5, help="mean pause in seconds")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--longest", type=float, default=420.0, help="seconds")
    given = parser.parse_args()
    plan = agents(
        seed=given.seed,
        sessions=int(given.longest * REQUESTS_A_SECOND / TURNS),
        turns=TURNS,
        concurrency=given.streams,
        system_tokens=SYSTEM_TOKENS,
        message_tokens=MESSAGE_TOKENS,
        osl=OSL,
        think_s=given.think,
        duration_s=given.longest,
    )
    given.records.write_text(json.dumps({"started_s": time.time()}) + "\n", encoding="utf-8")
    uvloop.run(send(plan, given.url, given.model, given.records))


if __name__ == "__main__":
    main()
