"""What HAProxy itself does with requests, beyond what every gateway promises."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from canary.gateways.haproxy import HAProxyGateway
from canary.gateways.haproxy_log import LoggedRequest
from canary.gateways.haproxy_runtime import ControlSocket, read_kept_log
from canary.traces import read_trace
from canary.traces.gateway import trace_of
from domain.errors import BadInput
from domain.fleet import Role, Slot, SlotTraffic
from tests.fakes.gateway import bucket
from tests.fakes.http_engine import Client, Fault, HttpEngine
from tests.fakes.loopback import free_port

DEADLINE_S = 15.0


async def until(met: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not await met():
            await asyncio.sleep(0.02)


class Stage:
    """One production engine, one candidate, both admitted and healthy, and a client."""

    def __init__(self, directory: Path, *, log_requests: bool = False) -> None:
        self.production, self.candidate = HttpEngine("production-0"), HttpEngine("canary-0")
        self.directory = directory
        self.port = free_port()
        self.client = Client(self.port)
        self.gateway = HAProxyGateway(
            directory=directory,
            port=self.port,
            metrics_port=free_port(),
            slots=(
                Slot(name="production-0", role=Role.PRODUCTION, port=self.production.port),
                Slot(name="canary-0", role=Role.CANARY, port=self.candidate.port),
            ),
            log_requests=log_requests,
        )

    async def traffic(self, slot: str) -> SlotTraffic:
        traffic = (await self.gateway.read()).slot(slot)
        assert traffic is not None
        return traffic

    async def until_up(self) -> None:
        async def met() -> bool:
            return all(slot.up for slot in (await self.gateway.read()).slots)

        await until(met)


@asynccontextmanager
async def staged(directory: Path, *, log_requests: bool = False) -> AsyncIterator[Stage]:
    stage = Stage(directory, log_requests=log_requests)
    await stage.production.start()
    await stage.candidate.start()
    try:
        await stage.gateway.start()
        await stage.gateway.admit("production-0")
        await stage.gateway.admit("canary-0")
        await stage.until_up()
        yield stage
    finally:
        await stage.client.close()
        await stage.gateway.stop()
        await stage.production.stop()
        await stage.candidate.stop()


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    async with staged(tmp_path / "gateway") as stage:
        yield stage


async def test_the_arm_of_a_session_is_the_hash_of_its_header(stage: Stage):
    await stage.gateway.set_weight(37)
    for number in range(300):
        session = f"agent {number}, turn, of many"
        answer = await stage.client.ask(session)
        assert answer.arm == ("candidate" if bucket(session) < 3700 else "production")
        assert answer.slot == ("canary-0" if answer.arm == "candidate" else "production-0")


async def test_an_empty_session_header_counts_as_none(stage: Stage):
    await stage.gateway.set_weight(50)
    assert {(await stage.client.ask("")).arm for _ in range(100)} == {"production", "candidate"}


async def test_a_body_of_a_megabyte_arrives_also_where_the_arm_is_dead(stage: Stage):
    body = b"x" * 1_000_000
    await stage.gateway.set_weight(100)
    answer = await stage.client.ask("s", body=body)
    assert (answer.arm, answer.body) == ("candidate", b"1000000")
    await stage.candidate.stop()
    answer = await stage.client.ask("s", body=body)
    assert (answer.arm, answer.body) == ("production", b"1000000")


@pytest.mark.parametrize("fault", [Fault.NONE, Fault.SILENT])
async def test_a_clients_cancel_reaches_the_engine(stage: Stage, fault: Fault):
    """In mid-stream, and while the engine has not answered at all."""
    stage.production.fault = fault
    if fault is Fault.NONE:
        await stage.client.begin("s", path="/stream")
    else:
        await stage.client.send("s")

    async def arrived() -> bool:
        return stage.production.open == 1

    async def over() -> bool:
        return (await stage.traffic("production-0")).in_flight == 0

    await until(arrived)
    assert (await stage.traffic("production-0")).in_flight == 1
    await stage.client.close()
    await until(over)
    assert stage.production.cancelled == 1
    assert (await stage.traffic("production-0")).errors == 0


async def test_a_token_leaves_as_soon_as_it_comes(stage: Stage):
    answer = await stage.client.begin("s", path="/stream")
    async with asyncio.timeout(DEADLINE_S):
        assert await stage.client.chunk() == b"first"
        stage.production.release()
        assert await stage.client.chunk() == b"last"
    assert answer.status == 200


async def test_a_stream_that_breaks_off_is_an_error_and_is_not_hidden(stage: Stage):
    stage.production.fault = Fault.BREAK_OFF
    with pytest.raises(asyncio.IncompleteReadError):
        await stage.client.ask("s")
    assert (await stage.traffic("production-0")).errors == 1
    assert stage.candidate.requests == 0


async def test_an_engine_that_never_answers_properly_gets_a_bounded_number_of_attempts(
    stage: Stage,
):
    stage.production.fault = Fault.EMPTY
    answer = await stage.client.ask("s")
    assert (answer.status, answer.arm) == (502, "production")
    assert stage.production.requests == 3
    traffic = await stage.traffic("production-0")
    assert traffic.requests == 1
    assert traffic.errors >= 3


async def test_a_request_that_its_engine_died_of_or_with_is_answered_by_the_other_arm(stage: Stage):
    """The engine had the whole request and had sent no byte of an answer."""
    await stage.gateway.set_weight(100)
    stage.candidate.fault = Fault.SILENT
    asking = asyncio.create_task(stage.client.ask("s", body=b"x" * 40_000))

    async def arrived() -> bool:
        return stage.candidate.open == 1

    await until(arrived)
    await stage.candidate.stop()
    answer = await asking
    assert (answer.status, answer.arm, answer.body) == (200, "production", b"40000")
    assert (await stage.traffic("canary-0")).errors == 1


async def test_without_any_engine_the_answer_is_503_and_names_no_arm(stage: Stage):
    await stage.gateway.drain("production-0")
    await stage.gateway.drain("canary-0")
    answer = await stage.client.ask("s")
    assert (answer.status, answer.arm, answer.slot) == (503, "", "")


async def test_an_unhealthy_engine_gets_nothing_until_it_is_healthy(stage: Stage):
    await stage.gateway.set_weight(100)
    stage.candidate.healthy = False

    async def down() -> bool:
        return not (await stage.traffic("canary-0")).up

    await until(down)
    assert (await stage.client.ask("s")).arm == "production"
    stage.candidate.healthy = True
    await stage.until_up()
    assert (await stage.client.ask("s")).arm == "candidate"


async def test_the_exporter_counts_by_slot(stage: Stage):
    await stage.client.ask("s")
    stage.production.fault = Fault.ERROR_500
    await stage.client.ask("s")
    async with httpx.AsyncClient(trust_env=False) as client:
        metrics = (await client.get(stage.gateway.metrics_url)).text.splitlines()
        elsewhere = await client.get(stage.gateway.metrics_url.replace("/metrics", "/"))
    server = 'proxy="production",server="production-0"'
    assert f"haproxy_server_loadbalanced_total{{{server}}} 2" in metrics
    assert f"haproxy_server_current_sessions{{{server}}} 0" in metrics
    assert f'haproxy_server_http_responses_total{{{server},code="5xx"}} 1' in metrics
    assert f"haproxy_server_response_errors_total{{{server}}} 0" in metrics
    assert elsewhere.status_code == 404


async def test_no_request_fails_and_no_stream_breaks_while_the_split_changes(stage: Stage):
    """Reloading proxies drop some of them."""
    streams = [Client(stage.port) for _ in range(50)]
    statuses: Counter[int] = Counter()
    changing = True

    async def keep_asking(client: Client) -> None:
        while changing:
            statuses[(await client.ask()).status] += 1
        await client.close()

    begun = [await client.begin(f"s{n}") for n, client in enumerate(streams)]
    asking = [asyncio.create_task(keep_asking(Client(stage.port))) for _ in range(4)]
    for weight in (5, 50, 100, 0, 75, 25):
        await stage.gateway.set_weight(weight)
        await stage.gateway.drain("canary-0")
        await stage.gateway.admit("canary-0")
        await stage.gateway.drain("production-0")
        await stage.gateway.admit("production-0")
    changing = False
    await asyncio.gather(*asking)
    stage.production.release()
    stage.candidate.release()
    for client, answer in zip(streams, begun, strict=True):
        assert await client.rest(answer) == b"firstlast"
        await client.close()
    assert set(statuses) == {200}
    assert statuses[200] > 50


async def test_what_an_operator_does_by_hand_is_read_and_admitting_undoes_it(stage: Stage):
    by_hand = ControlSocket(stage.directory)
    await by_hand.order("set map weight.map weight 40")
    await by_hand.order("set server production/production-0 state maint")
    split = await stage.gateway.read()
    assert split.weight == 40
    assert not (await stage.traffic("production-0")).admitted
    await stage.gateway.admit("production-0")
    assert (await stage.traffic("production-0")).admitted
    assert (await stage.gateway.read()).weight == 40


async def test_the_log_tells_times_ends_and_a_hash_of_the_session_and_nothing_else(tmp_path: Path):
    async with staged(tmp_path / "gateway", log_requests=True) as stage:
        for session in ("alice@home", "bob", "alice@home", None):
            await stage.client.ask(session, path="/mine/v1/completions", body=b"words of mine")
        await stage.client.ask("carol", path="/v1/models-of-mine")
        for garbage in (b"", b"GARBAGE\r\n\r\n", b"\x16\x03\x01\x02\x00\x01"):
            await thrown(stage.port, garbage)
        stage.production.fault = Fault.ERROR_500
        await stage.client.ask("bob", path="/v1/chat/completions", body=b"words of mine")
        logged: list[LoggedRequest] = []

        async def written() -> bool:
            logged[:] = await stage.gateway.logged()
            return len(logged) == 5

        await until(written)
        assert [request.status for request in logged] == [200, 200, 200, 200, 500]
        assert {(r.arm, r.slot, r.ended) for r in logged} == {("production", "production-0", "--")}
        alice, bob, again, nobody, later = (request.session for request in logged)
        assert (alice, bob, nobody) == (again, later, None)
        assert len({alice, bob, nobody}) == 3
        assert all(r.total_ms >= (r.header_ms or 0) >= 0 for r in logged)
        lines = await read_kept_log(ControlSocket(stage.directory))
        assert read_trace(lines).requests == trace_of(logged).requests
        kept = "\n".join(lines)
        assert "at_ms" in kept
        for content in ("alice", "bob", "mine", "127.0.0.1"):
            assert content not in kept
    assert trace_of(logged).requests[2].turn == 1


async def thrown(port: int, data: bytes) -> None:
    """Something that is no request of HTTP, as from a probe that only connects."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    writer.write_eof()
    await reader.read()
    writer.close()
    await writer.wait_closed()


async def test_a_session_hashes_otherwise_in_another_haproxy(tmp_path: Path):
    hashes = set()
    for name in ("one", "other"):
        async with staged(tmp_path / name, log_requests=True) as stage:
            await stage.client.ask("alice", path="/v1/completions", body=b"words")
            await until(stage.gateway.logged)
            hashes.add((await stage.gateway.logged())[0].session)
    assert len(hashes) == 2


async def test_a_gateway_that_does_not_log_says_so(stage: Stage):
    with pytest.raises(BadInput, match="start it with gateway_log on"):
        await stage.gateway.logged()
