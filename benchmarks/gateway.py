"""What a gateway adds to a stream, what it costs, and what a shift of traffic through it loses.

``python -m benchmarks.gateway`` sends streams of a token each 20 ms to an engine that stamps them,
once without a gateway and once through each one, and then moves 200 open streams and a stream of
short requests through a whole rollout and back. Client, engine and gateway share this machine's
cores, so compare the columns of one run with each other. The last line is one JSON object; the exit
code is 1 where a stream or a request was lost, or where a change of the weight took longer than
``MOST_CONTROL_MS``.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Protocol

import psutil

from benchmarks.targets import ended, held
from canary.gateways.envoy import EnvoyGateway
from canary.gateways.haproxy import HAProxyGateway
from canary.gateways.topology import Listening
from canary.intervals import quantile
from domain.fleet import Role, Slot
from domain.ports import Gateway
from tests.fakes.loopback import free_port

STREAMS = (64, 256)
ITL_MS = 20
TOKENS = 400
STARTS_S = 2.0
"""In which all streams begin, one after the other."""
SETTLE_TOKENS = round(1000 * STARTS_S / ITL_MS)
"""The first tokens of a stream, whose transit does not count: not all streams are up yet."""

OPEN_STREAMS = 200
OPEN_TOKENS = 600
WEIGHTS = (0, 5, 25, 50, 100, 0)
STEP_S = 1.5
SHORT_RPS = 100
SHORT_TOKENS = 5
FLIPS = 40
MOST_CONTROL_MS = 50.0
_STAMP = re.compile(rb"data: (\d+)\n")
_ARM = re.compile(rb"\r\nx-serinus-arm: (\w+)", re.IGNORECASE)


@dataclass(eq=False)
class Stream(asyncio.Protocol):
    """One request and what came of it; times are seconds of the monotonic clock."""

    tokens: int
    session: str
    itl_ms: int = ITL_MS
    sent_s: float = 0.0
    first_s: float = 0.0
    transit_s: list[float] = field(default_factory=list)
    status: int = 0
    arm: str = ""

    def __post_init__(self) -> None:
        self._rest = b""
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def whole(self) -> bool:
        return self.status == 200 and len(self.transit_s) == self.tokens

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.sent_s = time.monotonic()
        transport.write(
            b"POST /v1/completions HTTP/1.1\r\nHost: bench\r\nx-session-id: %b\r\nx-tokens: %d\r\n"
            b"x-itl-ms: %d\r\nContent-Length: 2\r\n\r\n{}"
            % (self.session.encode(), self.tokens, self.itl_ms)
        )

    def data_received(self, data: bytes) -> None:
        now = time.monotonic()
        self._rest += data
        if not self.status:
            head, ended, self._rest = self._rest.partition(b"\r\n\r\n")
            if not ended:
                self._rest = head
                return
            self.status = int(head[9:12])
            found = _ARM.search(head)
            self.arm = found[1].decode() if found else ""
        last = 0
        for stamp in _STAMP.finditer(self._rest):
            self.first_s = self.first_s or now
            self.transit_s.append(now - int(stamp[1]) / 1e9)
            last = stamp.end()
        self._rest = self._rest[last:]
        if self._rest.endswith(b"0\r\n\r\n") or (self.status and self.status != 200):
            self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.done.done():
            self.done.set_result(None)


async def ask(port: int, tokens: int, session: str, itl_ms: int = ITL_MS) -> Stream:
    """One request to its end; one that found no connection has no status."""
    stream = Stream(tokens, session, itl_ms)
    try:
        await asyncio.get_running_loop().create_connection(lambda: stream, "127.0.0.1", port)
    except OSError:
        return stream
    await stream.done
    return stream


def listener(port: int) -> psutil.Process:
    """The process that listens on the port."""
    [pid] = {
        connection.pid
        for connection in psutil.net_connections("tcp4")
        if connection.status == psutil.CONN_LISTEN and connection.laddr[1:] == (port,)
    }
    return psutil.Process(pid)


def cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


async def streamed(port: int, streams: int, proxy: psutil.Process | None) -> dict[str, Any]:
    """So many streams at once, and the gateway's share of the CPU meanwhile."""
    before_s = cpu_s(proxy) if proxy else 0.0

    async def one(number: int) -> Stream:
        await asyncio.sleep(STARTS_S * number / streams)
        return await ask(port, TOKENS, f"s{number}")

    found = await asyncio.gather(*map(one, range(streams)))
    used_s = cpu_s(proxy) - before_s if proxy else None
    whole = [stream for stream in found if stream.whole]
    transit = [s for stream in whole for s in stream.transit_s[SETTLE_TOKENS:]]
    return {
        "ttft_p50_ms": round(1000 * median(s.first_s - s.sent_s for s in whole), 2),
        "transit_p50_ms": round(1000 * median(transit), 3),
        "transit_p99_ms": round(1000 * quantile(transit, 0.99), 3),
        "cpu_s_a_100k_chunks": None
        if used_s is None
        else round(used_s * 1e5 / (streams * TOKENS), 2),
        "lost": len(found) - len(whole),
    }


async def shifted(gateway: Gateway, port: int) -> dict[str, Any]:
    """Streams that are open across all weights, and short requests beside them."""
    await gateway.set_weight(WEIGHTS[0])
    opened = [asyncio.create_task(ask(port, OPEN_TOKENS, f"o{n}")) for n in range(OPEN_STREAMS)]
    short: list[asyncio.Task[Stream]] = []

    async def requests() -> None:
        while True:
            short.append(asyncio.create_task(ask(port, SHORT_TOKENS, f"n{len(short)}", 1)))
            await asyncio.sleep(1 / SHORT_RPS)

    sending = asyncio.create_task(requests())
    for weight in WEIGHTS:
        await gateway.set_weight(weight)
        await asyncio.sleep(STEP_S)
    sending.cancel()
    streams = await asyncio.gather(*opened)
    answers = await asyncio.gather(*short)
    return {
        "open_streams": len(streams),
        "lost_streams": sum(not stream.whole for stream in streams),
        "short_requests": len(answers),
        "failed_requests": sum(not answer.whole for answer in answers),
        "on_the_candidate": sum(answer.arm == "candidate" for answer in answers),
    }


async def controlled(gateway: Gateway, port: int) -> dict[str, Any]:
    """How long a change of the weight takes until the next request goes by it."""
    took_ms, wrong = [], 0
    for flip in range(FLIPS):
        weight, arm = ((100, "candidate"), (0, "production"))[flip % 2]
        begun_s = time.monotonic()
        await gateway.set_weight(weight)
        took_ms.append(1000 * (time.monotonic() - begun_s))
        wrong += (await ask(port, 1, f"f{flip}")).arm != arm
    return {
        "changes": FLIPS,
        "ms_p50": round(median(took_ms), 2),
        "ms_most": round(max(took_ms), 2),
        "next_request_by_the_old_weight": wrong,
    }


async def until(true: Callable[[], Awaitable[bool]]) -> None:
    """Wait until it is so; TimeoutError after half a minute."""
    async with asyncio.timeout(30):
        while True:
            if await true():
                return
            await asyncio.sleep(0.1)


async def _answers(port: int) -> bool:
    return (await ask(port, 1, "up")).whole


async def _all_up(gateway: Gateway) -> bool:
    return all(slot.up for slot in (await gateway.read()).slots)


class Runs(Gateway, Protocol):
    async def start(self) -> None: ...

    async def stop(self) -> None: ...


GATEWAYS: dict[str, Callable[..., Runs]] = {"haproxy": HAProxyGateway, "envoy": EnvoyGateway}


def made(name: str, directory: Path, port: int, slots: tuple[Slot, ...]) -> Runs:
    topology = Listening(port=port, metrics_port=free_port(), slots=slots)
    return GATEWAYS[name](directory=directory, topology=topology)


@asynccontextmanager
async def engines(ports: Sequence[int]) -> AsyncIterator[None]:
    """A stamping engine on each port, in one process."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.stamping_engine", *map(str, ports)
    )
    try:
        for port in ports:
            await until(partial(_answers, port))
        yield
    finally:
        process.terminate()
        await process.wait()


async def through(name: str, slots: tuple[Slot, ...]) -> dict[str, Any]:
    """The figures of one gateway."""
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="serinus-gateway-") as directory:
        gateway = made(name, Path(directory), port, slots)
        await gateway.start()
        try:
            for slot in slots:
                await gateway.admit(slot.name)
            await until(lambda: _all_up(gateway))
            proxy = listener(port)
            return {
                "streams": {str(n): await streamed(port, n, proxy) for n in STREAMS},
                "shift": await shifted(gateway, port),
                "control": await controlled(gateway, port),
            }
        finally:
            await gateway.stop()


def beside(found: dict[str, Any], direct: dict[str, Any]) -> dict[str, Any]:
    """The figures with what the gateway adds to those without one."""
    for streams, ours in found["streams"].items():
        for figure in ("ttft_p50_ms", "transit_p50_ms", "transit_p99_ms"):
            ours[f"added_{figure}"] = round(ours[figure] - direct[streams][figure], 3)
    return found


async def measured(names: Sequence[str]) -> dict[str, Any]:
    roles = (Role.PRODUCTION, Role.CANARY)
    slots = tuple(Slot(name=f"{r.value}-0", role=r, port=free_port()) for r in roles)
    async with engines([slot.port for slot in slots]):
        direct = {str(n): await streamed(slots[0].port, n, None) for n in STREAMS}
        gateways = {name: beside(await through(name, slots), direct) for name in names}
    lost = [g["shift"]["lost_streams"] + g["shift"]["failed_requests"] for g in gateways.values()]
    lost += [one["lost"] for g in gateways.values() for one in g["streams"].values()]
    controls = [g["control"] for g in gateways.values()]
    targets = {
        "nothing is lost": not any(lost),
        f"a change takes less than {MOST_CONTROL_MS:g} ms": all(
            c["ms_most"] < MOST_CONTROL_MS and not c["next_request_by_the_old_weight"]
            for c in controls
        ),
    }
    return held({"direct": direct, "gateways": gateways}, targets)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gateways", nargs="+", default=list(GATEWAYS), choices=list(GATEWAYS))
    arguments = parser.parse_args()
    sys.exit(ended(asyncio.run(measured(arguments.gateways))))


if __name__ == "__main__":
    main()
