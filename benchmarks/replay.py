"""How truly real traces are replayed: ``python -m benchmarks.replay``.

Each trace of ``../shared/data/traces`` is read, cut to a window, and sent several times as fast by
the real load client to a stub in its own process. The stub keeps its own stamp of each request's
first byte and the body as it came, and answers soon and in one piece. Held against the trace are
then the stub's times, lengths, and the prefixes that the prompts it got have in common. The last
line printed is one JSON object; the exit code is 1 where a replay missed a limit, and 2 without the
files.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from asyncio.subprocess import PIPE
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, cast

from benchmarks.targets import ended, held, skipped
from canary.loadgen import ProcessLoadGenerator
from canary.prompts import replay
from canary.prompts.caching import shared_of
from canary.traces import ideal_reuse, read_trace
from domain.load import BLOCK_TOKENS, LoadPlan, LoadResult
from domain.trace import Trace

TRACES = Path(__file__).parents[2] / "shared" / "data" / "traces"
SEED = 20_261_202
OFFSET_LIMIT_MS = 10.0
# So many of the requests must have come within it, and share what they should within so much.
LEAST_PUNCTUAL = 0.99
MOST_REUSE_GAP_POINTS = 2.0
# The stub answers so much later, that it is not busy answering when the rest of a burst comes.
ANSWER_S = 0.1
# The stub's last answers, which the plan does not wait for.
TAIL_S = 5.0

_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_MAX_TOKENS = re.compile(rb'"max_tokens":(\d+)')


class Replay(NamedTuple):
    """A window of a trace (seconds of its own time), how much faster, from which file."""

    file: str
    start_s: float
    window_s: float
    speed: float


# Some minute and a half each; windows hold what a plan can (8 million prompt tokens).
REPLAYS = {
    "azure": Replay("azure-2023-conversation.csv", 600.0, 1000.0, 11.0),
    "mooncake": Replay("mooncake-conversation.jsonl", 1200.0, 180.0, 2.0),
}


class Got(NamedTuple):
    """One request as the stub got it: stamped at its first byte, its plan's number, lengths."""

    at_s: float
    number: int
    isl: int
    osl: int
    forced: bool


class Stub(asyncio.Protocol):
    """Answers every request soon; it reads bodies only after the run."""

    def __init__(self, got: list[tuple[float, bytes, bytes]]) -> None:
        self._got = got
        self._parts: list[bytes] = []
        self._missing = 0
        self._head = b""
        self._at_s = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if not self._parts and not self._head:
            self._at_s = time.perf_counter()
        if not self._head:
            self._parts.append(data)
            head, found, body = b"".join(self._parts).partition(b"\r\n\r\n")
            if not found:
                return
            length = re.search(rb"content-length: (\d+)", head)
            self._head, self._parts = head, [body]
            self._missing = int(length[1] if length else 0) - len(body)
        else:
            self._parts.append(data)
            self._missing -= len(data)
        if self._missing <= 0:
            body = b"".join(self._parts)
            asyncio.get_running_loop().call_later(ANSWER_S, self._answer, self._head, body)
            self._head, self._parts = b"", []

    def _answer(self, head: bytes, body: bytes) -> None:
        self._got.append((self._at_s, head, body))
        asked = _MAX_TOKENS.search(body)
        # Ids of one list: as many as commas between them, and one more.
        isl = body.count(b",", body.find(b"["), body.find(b"]")) + 1
        usage = {"prompt_tokens": isl, "completion_tokens": int(asked[1] if asked else 0)}
        token = {"choices": [{"index": 0, "text": " word", "finish_reason": None}]}
        events = (token, {"choices": [], "usage": usage}, None)
        self._transport.write(_HEAD + b"".join(map(_chunk, events)) + b"0\r\n\r\n")


def _chunk(event: object) -> bytes:
    data = b"data: " + (json.dumps(event).encode() if event else b"[DONE]") + b"\n\n"
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


async def serve(block_tokens: int) -> None:
    """Print the port, serve until the input ends, print what came and what it had in common."""
    got: list[tuple[float, bytes, bytes]] = []
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Stub(got), "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    server.close()
    requests, prompts = [], []
    for at_s, head, body in sorted(got, key=lambda row: row[0]):
        asked = json.loads(body)
        number = re.search(rb"x-session-id: (\d+)", head)
        osl = asked["max_tokens"]
        forced = asked["min_tokens"] == osl and asked["ignore_eos"] is True
        isl = len(asked["prompt"])
        requests.append(Got(at_s, int(number[1] if number else -1), isl, osl, forced))
        prompts.append(asked["prompt"])
    shares = {size: shared_of(prompts, size) for size in {BLOCK_TOKENS, block_tokens} if size}
    print(json.dumps({"requests": requests, "shared": shares}))


def numbered(plan: LoadPlan) -> LoadPlan:
    """The plan with each request's number as its session, so that the stub can tell which it is."""
    sessions = (replace(one, name=str(n)) for n, one in enumerate(plan.sessions))
    return replace(plan, sessions=tuple(sessions), duration_s=plan.duration_s + TAIL_S)


async def sent(plan: LoadPlan, block_tokens: int) -> tuple[LoadResult, dict[str, Any]]:
    """The client's result of ``plan``, and what the stub says of it."""
    server = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.replay", "--serve", str(block_tokens)),
        stdin=PIPE,
        stdout=PIPE,
        limit=1 << 28,
    )
    assert server.stdin is not None and server.stdout is not None
    try:
        url = f"http://127.0.0.1:{int(await server.stdout.readline())}"
        result = await ProcessLoadGenerator().run(plan, url, "stub", lambda: False)
        server.stdin.close()
        told = json.loads(await server.stdout.read())
        await server.wait()
    finally:
        if server.returncode is None:
            server.kill()
            await server.wait()
    return result, told


def report(trace: Trace, speed: float, result: LoadResult, told: dict[str, Any]) -> dict[str, Any]:
    """The stub's times, lengths and prefixes against those of ``trace``, the window replayed."""
    got = {row[1]: Got(*row) for row in told["requests"]}
    pairs = [(request, got[n]) for n, request in enumerate(trace.requests) if n in got]
    # Nothing is sent before it is due, so the most punctual request tells when the plan began.
    begun_s = min(g.at_s - r.offset_s / speed for r, g in pairs)
    errors_ms = sorted((g.at_s - r.offset_s / speed - begun_s) * 1000 for r, g in pairs)
    known = ideal_reuse(trace)
    found = {int(size): share for size, share in told["shared"].items()}
    n = len(trace.requests)
    return {
        "requests": n,
        "got": len(told["requests"]),
        "failed": sum(record.failed for record in result.records),
        "replayed_s": round(trace.length_s / speed, 1),
        "speed": speed,
        "offset_p50_ms": round(errors_ms[len(errors_ms) // 2], 2),
        "offset_p99_ms": round(errors_ms[int(len(errors_ms) * 0.99)], 2),
        "offset_max_ms": round(errors_ms[-1], 2),
        "offset_within_10_ms": round(sum(e <= OFFSET_LIMIT_MS for e in errors_ms) / n, 5),
        "isl_exact": sum(r.isl == g.isl for r, g in pairs) / n,
        "osl_exact": sum(r.osl == g.osl and g.forced for r, g in pairs) / n,
        "prompt_tokens": sum(g.isl for _, g in pairs),
        "reuse_of_trace": None if known is None else round(known, 5),
        "reuse_in_blocks_of_16": round(found[BLOCK_TOKENS], 5),
        "reuse_in_blocks_of_trace": round(found.get(trace.block_tokens, 0.0), 5),
        "reuse_gap_points": round(abs(found[BLOCK_TOKENS] - (known or 0.0)) * 100, 3),
        "client_cpu": round(result.health.cpu, 3),
        "send_lag_p99_ms": round(result.health.send_lag_ms, 2),
        "loop_lag_p99_ms": round(result.health.loop_lag_ms, 2),
        "fault": result.health.fault,
    }


def targets(figures: Mapping[str, Any]) -> dict[str, bool]:
    """Which limits a replay met; a request that never came meets none."""
    return {
        "complete": figures["got"] == figures["requests"] and figures["failed"] == 0,
        "offsets": figures["offset_within_10_ms"] >= LEAST_PUNCTUAL,
        "isl": figures["isl_exact"] == 1,
        "osl": figures["osl_exact"] == 1,
        "reuse": figures["reuse_gap_points"] <= MOST_REUSE_GAP_POINTS,
    }


async def measured(of: Replay) -> dict[str, Any]:
    lines = (TRACES / of.file).read_text(encoding="utf-8").splitlines()
    begun_s = time.process_time()
    trace = read_trace(lines)
    read_s = time.process_time() - begun_s
    plan = replay(trace, seed=SEED, start_s=of.start_s, window_s=of.window_s, speed=of.speed)
    planned_s = time.process_time() - begun_s - read_s
    window = trace.window(of.start_s, of.window_s)
    result, told = await sent(numbered(plan), trace.block_tokens)
    figures = report(window, of.speed, result, told)
    return {
        "trace_requests": len(trace.requests),
        "read_cpu_s": round(read_s, 3),
        "plan_cpu_s": round(planned_s, 3),
        **figures,
    }


async def main() -> int:
    missing = [of.file for of in REPLAYS.values() if not (TRACES / of.file).exists()]
    if missing:
        return skipped(f"There is no {missing[0]} in {TRACES}; put it there.")
    found = {name: await measured(of) for name, of in REPLAYS.items()}
    met = {f"{name} {of}": ok for name, row in found.items() for of, ok in targets(row).items()}
    return ended(held(found, met))


if __name__ == "__main__":
    if "--serve" in sys.argv:
        import uvloop

        uvloop.run(serve(int(sys.argv[-1])))
    else:
        sys.exit(asyncio.run(main()))
