"""One real vLLM engine: what it is started with, what it counts, and what it leaves behind."""

import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest
import pytest_asyncio

from canary.prompts import agents, corpus_text
from canary.tokenization import token_ids
from domain.fleet import Replica
from tests.fakes import real_vllm
from tests.fakes.real_vllm import Lane

pytestmark = [real_vllm.needs_real_vllm, pytest.mark.asyncio(loop_scope="module")]


class Running(NamedTuple):
    lane: Lane
    replica: Replica


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    lane = Lane(tmp_path_factory.mktemp("engines"), "tiny-llama", *real_vllm.RANDOM_WEIGHTS)
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    try:
        yield Running(lane, await lane.warm({"enable_prefix_caching": False}))
    finally:
        await lane.close()
        os.close(reader)
        os.close(writer)


async def test_the_client_and_the_engine_count_the_same(engine: Running) -> None:
    before = await engine.lane.counters()
    result = await engine.lane.send(
        real_vllm.plan(streams=4, sessions=12, turns=2, isl=200, osl=24)
    )
    after = await engine.lane.counters()
    assert {(r.error, r.isl, r.osl) for r in result.records} == {(None, 200, 24)}
    assert after.requests - before.requests == len(result.records) == 24
    assert after.prompt_tokens - before.prompt_tokens == 24 * 200
    assert after.generation_tokens - before.generation_tokens == 24 * 24
    assert all(record.latency is not None for record in result.records)


async def test_without_prefix_caching_no_prefix_is_looked_up(engine: Running) -> None:
    await engine.lane.send(real_vllm.plan(streams=1, sessions=1, turns=3, isl=300, osl=2))
    counters = await engine.lane.counters()
    assert not counters.prefix_queries
    assert not counters.prefix_hits


async def test_natural_prompts_are_as_long_as_planned(engine: Running) -> None:
    """The engine's own ids of the shipped text, cut to a plan, are so many tokens to it."""
    async with httpx.AsyncClient(timeout=60.0) as client:
        corpus = await token_ids(client, engine.lane.slot.url, real_vllm.MODEL, corpus_text())
    assert corpus is not None and len(corpus) > 100_000
    plan = agents(
        seed=3,
        sessions=3,
        turns=2,
        concurrency=3,
        system_tokens=100,
        message_tokens=50,
        osl=4,
        think_s=0.0,
        corpus=corpus,
    )
    result = await engine.lane.send(plan)
    planned = {(s.name, n): t.isl for s in plan.sessions for n, t in enumerate(s.turns)}
    assert {(r.session, r.turn): r.isl for r in result.records} == planned
    assert not any(record.failed for record in result.records)


async def test_no_process_of_the_engine_holds_a_file_of_the_controller(engine: Running) -> None:
    family = real_vllm.processes(engine.replica)
    assert len(family) > 1
    ours = real_vllm.open_files("self")
    assert ours
    for process in family:
        assert not real_vllm.open_files(process.pid) & ours


async def test_a_stopped_engine_leaves_no_process_and_no_port(tmp_path: Path) -> None:
    lane = Lane(tmp_path, "tiny-llama", *real_vllm.RANDOM_WEIGHTS)
    family = real_vllm.processes(await lane.warm({}))
    assert len(family) > 1
    await lane.launcher.stop(lane.slot, 5.0)
    assert await lane.launcher.observe() == ()
    assert not [process for process in family if real_vllm.runs(process)]
    with socket.create_server(("127.0.0.1", lane.slot.port)):
        pass
    await lane.close()
