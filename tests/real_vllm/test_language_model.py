"""A real language model: it answers, and the shape of its traffic is read from its own metrics."""

from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio

from domain.fleet import Role
from domain.traffic import TrafficShape
from tests.fakes import real_vllm
from tests.fakes.clock import SystemClock
from tests.fakes.real_vllm import Lane
from tools.profiler import read_shape
from tools.scrape import Scraper, Target

pytestmark = [real_vllm.needs_real_vllm, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def lane(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Lane]:
    lane = Lane(tmp_path_factory.mktemp("engines"), "smollm2-135m")
    try:
        # In half precision some CPUs, with matrix units, give answers that are wrong.
        await lane.warm({"enable_prefix_caching": True, "dtype": "float32"})
        yield lane
    finally:
        await lane.close()


async def test_it_answers_a_question(lane: Lane) -> None:
    question = {"role": "user", "content": "What is the capital of France?"}
    async with httpx.AsyncClient(trust_env=False, timeout=120.0) as client:
        response = await client.post(
            f"{lane.slot.url}/v1/chat/completions",
            json={
                "model": real_vllm.MODEL,
                "messages": [question],
                "temperature": 0,
                "max_tokens": 24,
            },
        )
    assert "Paris" in response.json()["choices"][0]["message"]["content"]


async def test_the_shape_of_its_traffic_is_what_was_sent(lane: Lane) -> None:
    clock = SystemClock()
    target = Target(url=lane.slot.url, arm=Role.PRODUCTION.arm, config="c0", replica="production-0")
    scraper = Scraper(lambda: [target], interval_s=100.0, retention_s=600.0, clock=clock)
    start_s = clock.now()
    await scraper.scrape_once(start_s)
    # A counter's rise needs two samples inside the window, which leaves out its start.
    await scraper.scrape_once(clock.now())
    result = await lane.send(real_vllm.plan(streams=2, sessions=4, turns=4, isl=384, osl=8))
    end_s = clock.now()
    await scraper.scrape_once(end_s)
    await scraper.close()
    shape = await read_shape(
        scraper,
        model=real_vllm.MODEL,
        arm=Role.PRODUCTION.arm,
        end_s=end_s,
        window_s=end_s - start_s,
    )
    assert isinstance(shape, TrafficShape)
    assert {record.error for record in result.records} == {None}
    assert shape.requests == pytest.approx(16, rel=0.05)
    assert shape.rate_rps == pytest.approx(16 / (end_s - start_s), rel=0.05)
    assert shape.isl.mean == pytest.approx(384)
    assert shape.osl.mean == pytest.approx(8)
    # Three of four turns repeat the first one's prompt, of whose three blocks of 128 tokens the
    # last is computed again, since an answer needs a token that is not cached.
    assert shape.prefix_hit_rate == pytest.approx(0.75 * 256 / 384, rel=0.02)
