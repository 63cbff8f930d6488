"""What HAProxy itself does with requests, beyond what every gateway promises."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from canary.gateways.haproxy import HAProxyGateway
from canary.gateways.haproxy_config import CONTROL_SOCKET
from canary.gateways.haproxy_log import LoggedRequest
from canary.gateways.haproxy_runtime import ControlSocket, read_kept_log
from canary.traces import read_trace
from canary.traces.gateway import trace_of
from domain.errors import BadInput
from tests.fakes.gateway import bucket
from tests.fakes.gateway_stage import Stage, staged, until
from tests.fakes.http_engine import Fault


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    async with staged(HAProxyGateway, tmp_path / "gateway") as stage:
        yield stage


async def test_the_arm_of_a_session_is_the_hash_of_its_header(stage: Stage):
    await stage.gateway.set_weight(37)
    for number in range(300):
        session = f"agent {number}, turn, of many"
        answer = await stage.client.ask(session)
        assert answer.arm == ("candidate" if bucket(session) < 3700 else "production")
        assert answer.slot == ("canary-0" if answer.arm == "candidate" else "production-0")


async def test_a_body_of_a_megabyte_arrives_also_where_the_arm_is_dead(
    stage: Stage,
):
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


async def test_a_request_that_its_engine_died_of_or_with_is_answered_by_the_other_arm(
    stage: Stage,
):
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


async def test_the_exporter_counts_by_slot(stage: Stage):
    await stage.client.ask("s")
    stage.production.fault = Fault.ERROR_500
    await stage.client.ask("s")
    async with httpx.AsyncClient(trust_env=False) as client:
        metrics = (await client.get(stage.topology.metrics_url)).text.splitlines()
        elsewhere = await client.get(stage.topology.metrics_url.replace("/metrics", "/"))
    server = 'proxy="production",server="production-0"'
    assert f"haproxy_server_loadbalanced_total{{{server}}} 2" in metrics
    assert f"haproxy_server_current_sessions{{{server}}} 0" in metrics
    assert f'haproxy_server_http_responses_total{{{server},code="5xx"}} 1' in metrics
    assert f"haproxy_server_response_errors_total{{{server}}} 0" in metrics
    assert elsewhere.status_code == 404


async def test_what_an_operator_does_by_hand_is_read_and_admitting_undoes_it(
    stage: Stage,
):
    by_hand = ControlSocket(stage.directory / CONTROL_SOCKET)
    await by_hand.order("set map weight.map weight 40")
    await by_hand.order("set server production/production-0 state maint")
    split = await stage.gateway.read()
    assert split.weight == 40
    assert not (await stage.traffic("production-0")).admitted
    await stage.gateway.admit("production-0")
    assert (await stage.traffic("production-0")).admitted
    assert (await stage.gateway.read()).weight == 40


async def test_the_log_tells_times_ends_and_a_hash_of_the_session_and_nothing_else(tmp_path: Path):
    async with staged(HAProxyGateway, tmp_path / "gateway", log_requests=True) as stage:
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
        lines = await read_kept_log(ControlSocket(stage.directory / CONTROL_SOCKET))
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
        async with staged(HAProxyGateway, tmp_path / name, log_requests=True) as stage:
            await stage.client.ask("alice", path="/v1/completions", body=b"words")
            await until(stage.gateway.logged)
            hashes.add((await stage.gateway.logged())[0].session)
    assert len(hashes) == 2


async def test_a_gateway_that_does_not_log_says_so(stage: Stage):
    with pytest.raises(BadInput, match="start it with gateway_log on"):
        await stage.gateway.logged()
