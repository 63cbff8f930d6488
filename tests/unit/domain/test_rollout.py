"""The part of production's traffic that a lane can carry, and the steps up to it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.store.codec import decode, encode
from domain.rollout import RolloutPlan, carried, most_weight
from tests.fakes.rollout_world import PLAN, plan_for


@pytest.mark.parametrize(
    ("replicas", "most"), [(1, 100), (2, 50), (3, 33), (4, 25), (100, 1), (101, 1), (5000, 1)]
)
def test_a_lane_carries_its_part_at_most(replicas: int, most: int) -> None:
    assert most_weight(replicas) == most


@pytest.mark.parametrize(
    ("weights", "replicas", "steps"),
    [
        ((5, 25, 50, 100), 1, (5, 25, 50, 100)),
        ((5, 25, 50, 100), 2, (5, 25, 50)),
        ((5, 25, 50, 100), 3, (5, 25, 33)),
        ((5, 25, 50, 100), 4, (5, 25)),
        ((5, 25, 50, 100), 40, (2,)),
        ((100,), 1, (100,)),
        ((100,), 4, (25,)),
    ],
)
def test_steps_end_at_what_the_lane_can_carry(
    weights: tuple[int, ...], replicas: int, steps: tuple[int, ...]
) -> None:
    assert carried(weights, replicas) == steps


@given(
    st.sets(st.integers(1, 99)).map(lambda some: (*sorted(some), 100)),
    st.integers(1, 300),
)
def test_steps_rise_and_none_is_new_but_the_last(weights: tuple[int, ...], replicas: int) -> None:
    steps = carried(weights, replicas)
    assert list(steps) == sorted(set(steps))
    assert steps[-1] == most_weight(replicas)
    assert set(steps[:-1]) == {weight for weight in weights if weight < steps[-1]}


def test_a_plan_stored_before_there_were_several_replicas_is_of_one() -> None:
    stored = encode(plan_for(3))
    assert isinstance(stored, dict)
    assert decode(RolloutPlan, stored) == plan_for(3)
    old = encode(PLAN)
    assert isinstance(old, dict)
    del old["replicas"]
    assert decode(RolloutPlan, old).replicas == 1
