"""The best hit rate of a plan, counted as vLLM counts its own."""

import math

import pytest

from canary.prompts import ideal_hit_rate
from domain.load import Arrival, LoadPlan, RequestSpec, Session


def plan(*prompts: range | tuple[int, ...]) -> LoadPlan:
    turns = tuple(RequestSpec(prompt=tuple(prompt), osl=1) for prompt in prompts)
    return LoadPlan(
        level="1",
        arrival=Arrival.CLOSED,
        concurrency=1,
        sessions=tuple(Session(name=str(n), turns=(turn,)) for n, turn in enumerate(turns)),
        warm_up_s=0.0,
        duration_s=math.inf,
        seed=0,
    )


@pytest.mark.parametrize(
    ("prompts", "block", "rate"),
    [
        ((), 16, 0.0),
        ((range(100),), 16, 0.0),
        # The last whole block of the same prompt is found, unless nothing would be left to compute.
        ((range(100), range(100)), 16, 96 / 200),
        ((range(96), range(96)), 16, 80 / 192),
        ((range(96), range(97)), 16, 96 / 193),
        # A block counts by all that stands before it.
        ((range(32), (9, *range(1, 32))), 16, 0.0),
        ((range(64), (*range(20), *range(64))), 16, 16 / 148),
        ((range(64), (*range(20), *range(64))), 4, 20 / 148),
    ],
)
def test_whole_blocks_that_an_earlier_prompt_began_with_are_hits(
    prompts: tuple[range, ...], block: int, rate: float
) -> None:
    assert ideal_hit_rate(plan(*prompts), block) == pytest.approx(rate)
