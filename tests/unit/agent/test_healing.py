"""Symptom → remedy, one move at a time."""

from dataclasses import replace

import pytest

from agent.healing import MAX_STARTS, by_hand, orphan, remedy
from domain.fleet import Replica, ReplicaState, Role, Slot
from domain.rollout import AdmitSlot, DrainSlot, Hold, Phase, StartEngine, StopEngine
from tests.fakes.rollout_world import BASELINE, CANDIDATE, RolloutWorld, fresh_rollout


def test_dead_production_is_drained_stopped_started_and_admitted():
    world = RolloutWorld()
    world.dead.add("production-0")
    moves = []
    for _ in range(8):
        move = remedy(world.observe(), BASELINE, None, {})
        if move is not None:
            moves.append(type(move))
            world.act(move)
    assert moves == [DrainSlot, StopEngine, StartEngine, Hold, AdmitSlot]
    assert remedy(world.observe(), BASELINE, None, {}) is None


def test_engine_that_keeps_dying_is_not_started_for_ever():
    world = RolloutWorld()
    world.engines.clear()
    move = remedy(world.observe(), BASELINE, None, {"production-0": MAX_STARTS})
    assert isinstance(move, Hold)
    assert "died" in move.reason


def test_engine_that_keeps_dying_does_not_keep_another_from_its_remedy():
    world = RolloutWorld()
    world.dead.add("production-0")
    observed = world.observe()
    given_up = Slot(name="production-9", role=Role.PRODUCTION, port=8109)
    observed = replace(observed, production=(given_up, *observed.production))
    move = remedy(observed, BASELINE, None, {"production-9": MAX_STARTS})
    assert move == DrainSlot(slot="production-0")


@pytest.mark.parametrize("phase", [Phase.CONVERTING, Phase.RETURNING, Phase.ROLLING_BACK])
def test_rollout_that_restarts_production_is_left_in_charge(phase):
    world = RolloutWorld()
    world.engines.clear()
    assert remedy(world.observe(), BASELINE, fresh_rollout(phase), {}) is None


def test_rollout_that_has_not_reached_production_leaves_its_care_here():
    world = RolloutWorld()
    world.engines.clear()
    progressing = fresh_rollout(Phase.PROGRESSING)
    assert isinstance(remedy(world.observe(), BASELINE, progressing, {}), StartEngine)


def test_config_set_by_hand_is_left_alone():
    world = RolloutWorld()
    world.engines["production-0"] = (CANDIDATE, 0, 0.0)
    assert remedy(world.observe(), BASELINE, None, {}) is None


def test_what_was_drained_by_hand_is_left_so_while_another_serves():
    world = RolloutWorld(replicas=2)
    world.admitted["production-1"] = False
    observed = world.observe()
    assert remedy(observed, BASELINE, None, {}, ("production-1",)) is None
    assert "production-1 was drained by hand" in by_hand(observed, BASELINE, ("production-1",))
    assert by_hand(observed, BASELINE, ()) == ""
    world.admitted["production-0"] = False
    admit = remedy(world.observe(), BASELINE, None, {}, ("production-0", "production-1"))
    assert admit == AdmitSlot(slot="production-0")


def test_a_config_that_is_not_productions_is_told_only_of_an_engine_that_serves():
    world = RolloutWorld()
    world.engines["production-0"] = (CANDIDATE, 0, 0.0)
    told = by_hand(world.observe(), BASELINE, ())
    assert CANDIDATE.digest in told and BASELINE.digest in told
    world.dead.add("production-0")
    assert by_hand(world.observe(), BASELINE, ()) == ""


def test_lane_that_nobody_uses_is_emptied():
    world = RolloutWorld()
    world.engines["canary-0"] = (CANDIDATE, 0, 0.0)
    world.admitted["canary-0"] = True
    assert orphan(world.observe(), True, None) is None
    assert orphan(world.observe(), False, fresh_rollout()) is None
    waiting = fresh_rollout(Phase.WAITING_APPROVAL)
    assert orphan(world.observe(), False, waiting) == DrainSlot(slot="canary-0")
    moves = []
    while move := orphan(world.observe(), False, None):
        moves.append(type(move))
        world.act(move)
    assert moves == [DrainSlot, StopEngine]


def test_engines_that_a_study_left_on_search_lanes_are_stopped_without_asking_the_gateway():
    world = RolloutWorld()
    world.engines["canary-1"] = (CANDIDATE, 0, 0.0)
    world.engines["canary-7"] = (CANDIDATE, 0, 0.0)
    unseen = replace(world.observe(), split=None)
    assert orphan(unseen, True, None) is None
    assert orphan(unseen, False, fresh_rollout()) is None
    assert orphan(unseen, False, None) == StopEngine(slot="canary-1", drain=False)
    del world.engines["canary-1"]
    assert orphan(world.observe(), False, None) == StopEngine(slot="canary-7", drain=False)
    del world.engines["canary-7"]
    assert orphan(world.observe(), False, None) is None


def test_lane_whose_engine_is_stopping_is_waited_for():
    observed = RolloutWorld().observe()
    stopping = Replica(
        slot="canary-0", config=CANDIDATE, state=ReplicaState.STOPPING, started_s=0.0
    )
    observed = replace(observed, replicas={**observed.replicas, "canary-0": stopping})
    assert orphan(observed, False, None) is None
