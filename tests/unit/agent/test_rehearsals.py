"""Prompts share what production's own cache would find, in blocks as large as its engine's."""

import pytest

from agent.rehearsals import block_tokens_of
from domain.engine import EngineConfig, Refusal, Resolution, SearchSpace
from domain.load import BLOCK_TOKENS
from serving import hardware
from serving.flags import catalogue
from serving.hardware import HardwareClass
from serving.model_card import ModelFacts
from serving.space import search_space
from tests.fakes.records import knob

NOTHING = SearchSpace(knobs=())
CPU = SearchSpace(knobs=(knob("block_size", (32, 64, 128), 128),))


@pytest.mark.parametrize(
    ("told", "config", "space", "block_tokens"),
    [
        ({"block_size": 528}, {"block_size": 64}, CPU, 528),
        ({}, {"block_size": 64}, CPU, 64),
        (None, {"block_size": 64}, NOTHING, 64),
        (None, {}, CPU, 128),
        (None, {}, NOTHING, BLOCK_TOKENS),
        ({"block_size": 0}, {}, NOTHING, BLOCK_TOKENS),
        ({"block_size": "auto"}, {}, NOTHING, BLOCK_TOKENS),
    ],
    ids=["engine", "engine silent", "config", "hardware", "nobody", "zero", "word"],
)
async def test_the_engine_is_asked_first_then_the_config_then_the_hardware(
    told: dict[str, int | str] | None,
    config: dict[str, int],
    space: SearchSpace,
    block_tokens: int,
) -> None:
    async def resolve(asked: EngineConfig) -> Resolution | None:
        return None if told is None else Resolution(asked.having(told))

    assert await block_tokens_of(EngineConfig.of(config), space, resolve) == block_tokens


async def test_a_refusal_tells_nothing() -> None:
    async def resolve(asked: EngineConfig) -> Refusal:
        return Refusal("No.")

    assert await block_tokens_of(EngineConfig(), CPU, resolve) == 128


@pytest.mark.parametrize(
    ("kind", "block_tokens"), [(HardwareClass.CPU, 128), (HardwareClass.GPU, 16)]
)
async def test_the_catalogue_knows_the_default_of_the_hardware(
    kind: HardwareClass, block_tokens: int
) -> None:
    async def resolve(asked: EngineConfig) -> None:
        return None

    lane = hardware.Hardware(kind=kind)
    space = search_space(catalogue(hardware=kind), ModelFacts(), lane)
    assert await block_tokens_of(EngineConfig(), space, resolve) == block_tokens
