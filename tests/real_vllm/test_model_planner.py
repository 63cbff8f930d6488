"""A real, very small language model plans: whatever it says, nothing leaves the search space."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from agent.language.dialect import Way
from agent.language.endpoint import Endpoint
from agent.planner.model import ModelPlanner
from agent.planner.rulebook import Rulebook
from domain.engine import EngineConfig, SearchSpace
from domain.language import Message, Question, Speaker
from domain.study import Objective
from tests.fakes import real_vllm
from tests.fakes.clock import SystemClock
from tests.fakes.real_vllm import Lane
from tests.fakes.records import knob, study

pytestmark = [real_vllm.needs_real_vllm, pytest.mark.asyncio(loop_scope="module")]

SPACE = SearchSpace(
    knobs=(
        knob("async_scheduling", (False, True)),
        knob("max_num_seqs", (128, 256, 512)),
        knob("max_num_batched_tokens", (8192, 4096, 2048)),
    )
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def endpoint(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Endpoint]:
    lane = Lane(tmp_path_factory.mktemp("engines"), "smollm2-135m", "--max-model-len", "4096")
    try:
        await lane.warm({"dtype": "float32"})
        yield Endpoint(
            base_url=f"{lane.slot.url}/v1",
            model=real_vllm.MODEL,
            api_key="",
            clock=SystemClock(),
            timeout_s=300.0,
        )
    finally:
        await lane.close()


async def test_vllm_holds_its_answers_to_a_schema(endpoint: Endpoint) -> None:
    assert await endpoint.probe() is Way.JSON_SCHEMA


async def test_its_own_count_of_tokens_is_believed(endpoint: Endpoint) -> None:
    asked = Message(Speaker.USER, "What is the capital of France? Answer in one sentence.")
    question = Question(purpose="test", messages=(asked,), schema=None, max_tokens=64)
    await endpoint.answer(question)  # what the probe cost is told with the first
    answer = await endpoint.answer(question)
    assert "Paris" in answer.text
    assert 10 < answer.tokens.read < 60 and 0 < answer.tokens.written < 64


async def test_what_it_proposes_is_checked_or_the_rulebook_plans(endpoint: Endpoint) -> None:
    planner = ModelPlanner(language=endpoint, name="smollm2", fallback=Rulebook(), max_tokens=256)
    asked = study(objective=Objective.THROUGHPUT, baseline=EngineConfig())
    proposals = await planner.propose(asked, SPACE, (), 3)
    assert all(SPACE.fault(each.config) is None for each in proposals.ranked)
    if proposals.author == "model smollm2":
        assert 1 <= len(proposals.ranked) <= 3
    else:
        assert proposals.author == "rulebook"
        assert "The language model was not followed: " in proposals.note
