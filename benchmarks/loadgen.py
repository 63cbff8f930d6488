"""What the load client adds to what it measures: ``python -m benchmarks.loadgen``.

A truth server in its own process streams 256 answers at once, one token each 20 ms, and keeps its
own stamps: when it read a request, and when it wrote the first and the last token. The client's
figures are held against those. The last line printed is one JSON object.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from asyncio.subprocess import PIPE
from statistics import median
from typing import NamedTuple, cast

from canary.loadgen import ProcessLoadGenerator
from domain.load import Arrival, LoadPlan, LoadResult, RequestSpec, Session

STREAMS = 256
TTFT_S = 0.2
ITL_S = 0.02
OSL = 100
ISL = 512
WARM_UP_S = 3.0
DURATION_S = 10.0

_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def _chunk(value: object) -> bytes:
    data = b"data: " + (value if isinstance(value, bytes) else json.dumps(value).encode()) + b"\n\n"
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


# As vLLM writes it, so that the client has as many bytes to read.
_TOKEN = _chunk(
    {
        "id": "cmpl-0123456789abcdef0123456789abcdef",
        "object": "text_completion",
        "created": 1700000000,
        "model": "truth",
        "choices": [{"index": 0, "text": " word", "logprobs": None, "finish_reason": None}],
        "usage": None,
    }
)


class Truth(NamedTuple):
    """What the server's own stamps say of an answer."""

    ttft_s: float
    tpot_s: float


class TruthServer(asyncio.Protocol):
    """Streams a fixed answer. Only its stamps matter, so it reads no more than it must."""

    def __init__(self, truths: list[Truth]) -> None:
        self._truths = truths
        self._rest = b""
        self._stream: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        read_s = time.perf_counter()
        self._rest += data
        head, found, body = self._rest.partition(b"\r\n\r\n")
        length = int(head.rpartition(b"content-length: ")[2]) if found else 0
        if found and len(body) >= length:
            self._rest = body[length:]
            self._stream = asyncio.create_task(self._answer(read_s))

    def connection_lost(self, exc: Exception | None) -> None:
        if self._stream is not None:
            self._stream.cancel()

    async def _answer(self, read_s: float) -> None:
        await asyncio.sleep(TTFT_S)
        first_s = time.perf_counter()
        self._transport.write(_HEAD + _TOKEN)
        for token in range(1, OSL):
            await asyncio.sleep(first_s + token * ITL_S - time.perf_counter())
            self._transport.write(_TOKEN)
        last_s = time.perf_counter()
        usage = {"prompt_tokens": ISL, "completion_tokens": OSL}
        tail = _chunk({"choices": [], "usage": usage}) + _chunk(b"[DONE]") + b"0\r\n\r\n"
        self._transport.write(tail)
        self._truths.append(Truth(first_s - read_s, (last_s - first_s) / (OSL - 1)))


async def serve() -> None:
    """Print the port, serve until the input ends, print the truths."""
    truths: list[Truth] = []
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: TruthServer(truths), "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    server.close()
    print(json.dumps(truths))


def load_plan() -> LoadPlan:
    spec = RequestSpec(prompt=tuple(range(1000, 1000 + ISL)), osl=OSL)
    # Spread over one answer's time, so that the streams do not write in one burst.
    spread_s = TTFT_S + ITL_S * (OSL - 1)
    count = int(STREAMS * (DURATION_S / spread_s + 1))

    def session(number: int) -> Session:
        think_s = spread_s * number / STREAMS if number < STREAMS else 0.0
        turn = RequestSpec(prompt=spec.prompt, osl=OSL, think_s=think_s)
        return Session(name=f"s{number}", turns=(turn,))

    return LoadPlan(
        level=f"{STREAMS} streams",
        arrival=Arrival.CLOSED,
        concurrency=STREAMS,
        sessions=tuple(map(session, range(count))),
        warm_up_s=WARM_UP_S,
        duration_s=DURATION_S,
        seed=0,
    )


def report(result: LoadResult, truth: Truth, run_s: float) -> dict[str, float | int | str | None]:
    done = [record for record in result.records if record.error is None]
    latencies = [lat for r in done if r.sent_s >= WARM_UP_S and (lat := r.latency)]
    ttft_ms = median(latency.ttft_ms for latency in latencies)
    tpot_ms = median(latency.tpot_ms or 0.0 for latency in latencies)
    tokens = sum(record.osl for record in done)
    first_sent_s = min(record.sent_s for record in result.records)
    return {
        "ttft_p50_bias_ms": round(ttft_ms - truth.ttft_s * 1000, 2),
        "tpot_bias_pct": round((tpot_ms / 1000 / truth.tpot_s - 1) * 100, 2),
        "cpu_us_per_token": round(result.health.cpu * result.duration_s * 1e6 / tokens, 1),
        "first_request_s": round(run_s - result.duration_s + first_sent_s, 3),
        "tokens": tokens,
        "failed": sum(record.failed for record in result.records),
        "client_cpu": round(result.health.cpu, 3),
        "send_lag_p99_ms": round(result.health.send_lag_ms, 2),
        "loop_lag_p99_ms": round(result.health.loop_lag_ms, 2),
        "fault": result.health.fault,
    }


async def main() -> None:
    server = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.loadgen", "--serve", stdin=PIPE, stdout=PIPE
    )
    assert server.stdin is not None and server.stdout is not None
    try:
        url = f"http://127.0.0.1:{int(await server.stdout.readline())}"
        begun_s = time.perf_counter()
        result = await ProcessLoadGenerator().run(load_plan(), url, "truth", lambda: False)
        run_s = time.perf_counter() - begun_s
        server.stdin.close()
        truths = [Truth(*row) for row in json.loads(await server.stdout.read())]
        await server.wait()
    finally:
        if server.returncode is None:
            server.kill()
            await server.wait()
    truth = Truth(median(t.ttft_s for t in truths), median(t.tpot_s for t in truths))
    print(json.dumps(report(result, truth, run_s)))


if __name__ == "__main__":
    if "--serve" in sys.argv:
        import uvloop

        uvloop.run(serve())
    else:
        asyncio.run(main())
