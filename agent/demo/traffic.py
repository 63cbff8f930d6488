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
from dataclasses import asdict, dataclass
from pathlib import Path

import uvloop

from canary.loadgen.client import HttpLoadGenerator
from canary.loadgen.codec import read_record
from canary.loadgen.options import Options
from canary.prompts import agents
from domain.load import LoadPlan, RequestRecord

TURNS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Agents:
    """``streams`` coding agents at once, with the means of what they send (tokens, seconds).

    All conversations open with the same ``system_tokens``. No engine of the demo answers more than
    ``most_rps`` requests a second: so many are made ready.
    """

    streams: int
    think_s: float
    system_tokens: int
    message_tokens: float
    osl: float
    most_rps: float

    def plan(self, *, seed: int, longest_s: float) -> LoadPlan:
        return agents(
            seed=seed,
            sessions=self.streams + int(longest_s * self.most_rps / TURNS),
            turns=TURNS,
            concurrency=self.streams,
            system_tokens=self.system_tokens,
            message_tokens=self.message_tokens,
            osl=self.osl,
            think_s=self.think_s,
            duration_s=longest_s,
        )

    def written(self) -> str:
        return json.dumps(asdict(self))


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
    await HttpLoadGenerator(Options(records_path=path)).run(plan, url, model, ended.is_set)


def main() -> None:
    parser = argparse.ArgumentParser(description="Send live traffic of coding agents.")
    parser.add_argument("--url", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--records", type=Path, required=True)
    parser.add_argument("--agents", required=True, help="fields of Agents as a JSON object")
    parser.add_argument("--longest", type=float, required=True, help="seconds")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    plan = Agents(**json.loads(given.agents)).plan(seed=given.seed, longest_s=given.longest)
    given.records.write_text(json.dumps({"started_s": time.time()}) + "\n", encoding="utf-8")
    uvloop.run(send(plan, given.url, given.model, given.records))


if __name__ == "__main__":
    main()
