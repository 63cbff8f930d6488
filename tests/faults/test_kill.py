"""Controllers that are killed: production must not notice, and their successors go on.

Guards the requirement that a controller killed by SIGKILL in any phase and started again finishes
the rollout or rolls it back, does no step twice, and leaves no engine behind.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

import psutil
import pytest

from agent.store import UnitOfWork
from domain.engine import EngineConfig
from domain.events import EventKind
from domain.rollout import Phase, Rollout, RolloutPlan, StallAction, Step

LEASE_S = 6.0
WEIGHTS = (25, 100)


class House(Protocol):
    """What ``conftest`` makes; see there."""

    def __getattr__(self, name: str) -> object: ...


def moved(
    phase: Phase, step: int = 0, since: Callable[[UnitOfWork], bool] = lambda uow: True
) -> Callable[[UnitOfWork], bool]:
    """Whether the newest rollout is in this phase, at this step, and ``since`` holds."""

    def look(uow: UnitOfWork) -> bool:
        newest = uow.rollouts.latest(1)
        assert not (newest and newest[0].phase.ended), f"The rollout ended before {phase.value}."
        at = newest[0] if newest else None
        return at is not None and at.phase is phase and at.step >= step and since(uow)

    return look


def baking(uow: UnitOfWork) -> bool:
    rollout = uow.rollouts.active()
    return rollout is not None and rollout.baking_since_s is not None


def stopping_production(uow: UnitOfWork) -> bool:
    """Whether a controller is in the midst of stopping production's engine."""
    return any(action.intent.endswith("engine in production-0.") for action in uow.actions.unfinished())


def test_a_controller_killed_in_every_phase_is_followed_by_one_that_promotes(house) -> None:
    house.settle(steps=WEIGHTS)
    house.up()
    house.send_traffic()
    moments = {
        "study": lambda uow: (study := uow.studies.running()) and uow.trials.of(study.id),
        "starting": moved(Phase.STARTING),
        "the first step": moved(Phase.PROGRESSING, 0, baking),
        "the last step": moved(Phase.PROGRESSING, 1, baking),
        "converting": moved(Phase.CONVERTING, 0, stopping_production),
        "returning": moved(Phase.RETURNING),
    }
    kills = []
    for moment, reached in moments.items():
        house.until(reached, f"the controller comes to {moment}", 90)
        house.kill()
        kills.append(time.time())
        house.up()
    ended = house.until(lambda uow: (r := uow.rollouts.latest(1)[0]).phase.ended and r, "the end")
    assert ended.phase is Phase.PROMOTED, ended.reason

    traffic = house.end_traffic()
    assert len(traffic.records) > 300
    assert [record for record in traffic.records if record.failed] == []
    assert house.weight() == 0
    engines = house.engines()
    assert len(engines) == 1
    assert str(house.production_port) in engines[0].cmdline()
    set_at = [event for event in house.events() if event.kind is EventKind.WEIGHT_SET]
    for weight in (*WEIGHTS, 0):
        times = [event.at_s for event in set_at if f" to {weight} %" in event.sentence]
        assert times, f"{weight} % was never set"
        for before, after in zip(times, times[1:], strict=False):
            assert any(before < kill < after for kill in kills), f"{weight} % was set twice"
    house.end_all()
