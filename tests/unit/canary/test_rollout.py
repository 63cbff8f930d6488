"""The rollout's pure step: each phase, each failure, each interrupted prefix."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from canary.rollout import abort, advance, approve, pause, reject, resume, roll_back
from domain.engine import EngineConfig
from domain.errors import Conflict
from domain.fleet import ReplicaState
from domain.rollout import (
    AdmitSlot,
    DrainSlot,
    Hold,
    Phase,
    Rollout,
    SetWeight,
    StallAction,
    StartEngine,
    StopEngine,
    most_weight,
)
from domain.verdict import Outcome, Verdict
from tests.fakes.rollout_world import (
    BASELINE,
    CANARY,
    CANDIDATE,
    PLAN,
    RolloutWorld,
    fresh_rollout,
    in_place_plan,
    plan_for,
)

PASS = Verdict(outcome=Outcome.PASS, reason="as good.")
FAIL = Verdict(outcome=Outcome.FAIL, reason="TTFT p95 +80 %.")
UNSURE = Verdict(outcome=Outcome.INCONCLUSIVE, reason="7 of 20 requests.")


def run(
    world: RolloutWorld,
    rollout: Rollout,
    verdict: Verdict | None = PASS,
    *,
    start: float = 0.0,
    until: Phase | None = None,
    ticks: int = 400,
) -> Rollout:
    for tick in range(ticks):
        rollout, intent = advance(rollout, world.observe(start + tick), verdict, start + tick)
        world.act(intent)
        if rollout.phase.ended or rollout.phase is until:
            break
    return rollout


def weights(world: RolloutWorld) -> list[int]:
    return [act.weight for act in world.acts if isinstance(act, SetWeight)]


def test_good_candidate_is_promoted_and_the_lane_is_free():
    world = RolloutWorld()
    rollout = run(world, fresh_rollout())
    assert rollout.phase is Phase.PROMOTED
    assert weights(world) == [5, 25, 50, 100, 0]
    assert world.engines.keys() == {"production-0"}
    assert world.engines["production-0"][0] == CANDIDATE
    assert world.admitted == {"production-0": True, "canary-0": False}
    assert world.unserved == []


@pytest.mark.parametrize("phase", [Phase.PROGRESSING, Phase.CONVERTING, Phase.RETURNING])
def test_roll_back_from_any_phase_restores_the_baseline(phase):
    world = RolloutWorld()
    rollout = run(world, fresh_rollout(), until=phase)
    assert rollout.phase is phase
    rollout = run(world, roll_back(rollout, 50.0, "asked for"), start=50.0)
    assert rollout.phase is Phase.ROLLED_BACK
    assert rollout.reason == "asked for"
    assert world.weight == 0
    assert world.engines.keys() == {"production-0"}
    assert world.engines["production-0"][0] == BASELINE
    assert world.admitted["production-0"]
    assert world.unserved == []


def test_roll_back_while_the_lane_is_being_freed_takes_it_back_first():
    """The lane must carry the requests again before production may be restarted."""
    world = RolloutWorld()
    rollout = run(world, fresh_rollout(), until=Phase.RETURNING)
    while world.admitted["canary-0"]:
        rollout, intent = advance(rollout, world.observe(40.0), None, 40.0)
        world.act(intent)
    assert world.state("canary-0") is ReplicaState.WARM
    rollout = run(world, roll_back(rollout, 50.0, "asked for"), start=50.0)
    assert rollout.phase is Phase.ROLLED_BACK
    assert world.engines.keys() == {"production-0"}
    assert world.unserved == []


def test_pausing_and_resuming_a_roll_back_keep_its_reason():
    back = roll_back(pause(fresh_rollout(Phase.PROGRESSING), "lunch"), 5.0, "TTFT is worse")
    for ordered in (back, pause(back, "by ann"), resume(back), resume(pause(back, "by ann"))):
        assert run(RolloutWorld(), ordered).reason == "TTFT is worse"


def test_a_clock_that_was_set_back_lets_a_step_bake_anew_and_not_for_the_hour_that_it_lost():
    world = RolloutWorld()
    baking = run(world, fresh_rollout(), UNSURE, start=7200.0, ticks=12)
    assert baking.baking_since_s is not None and baking.step == 0
    assert run(world, baking, start=3600.0).phase is Phase.PROMOTED


def test_worse_candidate_goes_back_before_the_bake_ends():
    world = RolloutWorld()
    rollout = run(world, fresh_rollout(), UNSURE, until=Phase.PROGRESSING)
    rollout, _ = advance(rollout, world.observe(), FAIL, 3.0)
    assert rollout.phase is Phase.ROLLING_BACK
    assert "TTFT p95 +80 %" in rollout.reason


def test_dead_candidate_goes_back_at_once():
    world = RolloutWorld()
    rollout = run(world, fresh_rollout(), until=Phase.PROGRESSING)
    world.dead.add("canary-0")
    rollout, intent = advance(rollout, world.observe(), PASS, 4.0)
    assert rollout.phase is Phase.ROLLING_BACK
    assert intent == SetWeight(weight=0)
    world.act(intent)
    assert run(world, rollout, start=5.0).phase is Phase.ROLLED_BACK
    assert StopEngine(slot="canary-0", drain=False) in world.acts


@pytest.mark.parametrize("verdict", [None, UNSURE])
def test_inconclusive_never_becomes_a_promotion(verdict):
    world = RolloutWorld()
    holding = replace(
        fresh_rollout(), plan=replace(fresh_rollout().plan, stall_action=StallAction.HOLD)
    )
    rollout = run(world, holding, verdict, ticks=5000)
    assert rollout.phase is Phase.PROGRESSING
    assert weights(world) == [5]
    rollout = run(RolloutWorld(), fresh_rollout(), verdict, ticks=5000)
    assert rollout.phase is Phase.ROLLED_BACK


def test_candidate_that_does_not_start_is_rolled_back_without_traffic():
    world = RolloutWorld(broken_configs={CANDIDATE})
    rollout = run(world, fresh_rollout())
    assert rollout.phase is Phase.ROLLED_BACK
    assert not any(weights(world))
    assert world.engines.keys() == {"production-0"}


def test_candidate_that_never_gets_warm_is_rolled_back():
    world = RolloutWorld(start_ticks=10_000)
    rollout = run(world, fresh_rollout())
    assert rollout.phase is Phase.ROLLED_BACK


def test_weight_changed_by_hand_is_shown_and_left_alone():
    world = RolloutWorld()
    rollout = run(world, fresh_rollout(), UNSURE, ticks=10)
    world.weight = 40
    rollout, intent = advance(rollout, world.observe(), PASS, 10.0)
    assert rollout.paused
    assert isinstance(intent, Hold)
    assert "by hand from 5 % to 40 %" in intent.reason
    rollout, intent = advance(resume(rollout), world.observe(), PASS, 11.0)
    assert intent == SetWeight(weight=5)


def test_paused_holds_its_weight_and_still_rolls_back():
    world = RolloutWorld()
    rollout = run(world, fresh_rollout(), until=Phase.PROGRESSING)
    rollout = run(world, pause(rollout, "lunch"), ticks=100)
    assert rollout.phase is Phase.PROGRESSING
    rollout = run(world, roll_back(rollout, 200.0, "after lunch"))
    assert rollout.phase is Phase.ROLLED_BACK


def test_paused_while_production_is_to_be_restarted_leaves_it_as_it_is():
    world = RolloutWorld()
    rollout = run(world, fresh_rollout(), until=Phase.CONVERTING)
    rollout = run(world, pause(rollout, "lunch"), ticks=100)
    assert rollout.phase is Phase.CONVERTING
    assert world.engines["production-0"][0] == BASELINE
    assert world.admitted["production-0"]
    assert run(world, resume(rollout)).phase is Phase.PROMOTED


def test_production_that_does_not_get_warm_on_the_new_config_goes_back():
    world = RolloutWorld()
    rollout = run(world, fresh_rollout(), until=Phase.CONVERTING)
    world.start_ticks = 10_000
    rollout = run(world, rollout, start=50.0, until=Phase.ROLLING_BACK)
    assert rollout.reason == "production-0 was not warm in time."


def test_production_is_not_converted_before_the_gateway_finds_it_healthy():
    world = RolloutWorld()
    rollout = run(world, fresh_rollout(), until=Phase.CONVERTING)
    world.engines["production-0"] = (CANDIDATE, 0, 50.0)
    observed = world.observe(60.0)
    lane = observed.split.slot("canary-0")
    unseen = replace(observed.split.slot("production-0"), up=False)
    observed = replace(observed, split=replace(observed.split, slots=(unseen, lane)))
    rollout, intent = advance(rollout, observed, None, 60.0)
    assert rollout.phase is Phase.CONVERTING
    assert intent == Hold("The gateway has not seen production-0 healthy yet.")


@pytest.mark.parametrize(
    ("phase", "slot"), [(Phase.CONVERTING, "canary-0"), (Phase.RETURNING, "production-0")]
)
def test_an_engine_that_dies_while_the_candidate_takes_over_sends_it_back(phase, slot):
    world = RolloutWorld()
    rollout = run(world, fresh_rollout(), until=phase)
    world.dead.add(slot)
    rollout, _ = advance(rollout, world.observe(60.0), None, 60.0)
    assert rollout.phase is Phase.ROLLING_BACK
    assert f"{slot} is dead." in rollout.reason
    assert run(world, rollout, start=61.0).phase is Phase.ROLLED_BACK
    assert world.engines["production-0"][0] == BASELINE


def test_unreadable_gateway_holds():
    world = RolloutWorld(readable=False)
    rollout, intent = advance(fresh_rollout(), world.observe(), PASS, 0.0)
    assert rollout == fresh_rollout()
    assert isinstance(intent, Hold)


def test_approval_is_needed_once():
    waiting = fresh_rollout(Phase.WAITING_APPROVAL)
    assert isinstance(advance(waiting, RolloutWorld().observe(), PASS, 1.0).intent, Hold)
    approved = approve(waiting, 1.0)
    assert approved.phase is Phase.STARTING
    with pytest.raises(Conflict):
        approve(approved, 2.0)
    assert reject(waiting, 1.0, "no").phase is Phase.REJECTED
    assert roll_back(waiting, 1.0, "no").phase is Phase.REJECTED


def test_an_ended_rollout_is_not_aborted_and_goes_back_only_if_it_was_promoted():
    for phase in (Phase.PROMOTED, Phase.ROLLED_BACK, Phase.REJECTED):
        ended = fresh_rollout(phase)
        assert abort(ended, 1.0, "late") is ended
        assert (roll_back(ended, 1.0, "late") is ended) is (phase is not Phase.PROMOTED)


@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_a_promoted_one_goes_back_replica_by_replica_under_the_same_capacity(replicas):
    world = RolloutWorld(replicas=replicas)
    rollout = run(world, fresh_rollout(plan=plan_for(replicas)))
    assert rollout.phase is Phase.PROMOTED
    world.acts.clear()
    back = roll_back(rollout, 900.0, "asked for")
    assert (back.phase, back.promoted_s) == (Phase.ROLLING_BACK, rollout.phase_since_s)
    back = run(world, back, start=900.0)
    assert (back.phase, back.reason) == (Phase.ROLLED_BACK, "asked for")
    assert world.runs(BASELINE)
    assert world.engines.keys() == {slot.name for slot in world.production}
    assert weights(world) == [most_weight(replicas), 0]
    assert (world.unserved, world.shortages, world.interrupted) == ([], [], [])


def test_a_promoted_one_whose_engines_are_gone_comes_back_with_the_baseline():
    world = RolloutWorld()
    rollout = run(world, fresh_rollout())
    world.dead.add("production-0")
    back = run(world, roll_back(rollout, 900.0, "asked for"), start=900.0)
    assert back.phase is Phase.ROLLED_BACK
    assert world.runs(BASELINE)
    assert CANARY.name not in world.engines


@pytest.mark.parametrize("config", [BASELINE, CANDIDATE, EngineConfig.of({"max_num_seqs": 7})])
def test_an_engine_that_was_rehearsed_on_the_lane_never_stands_in(config):
    """What a study left there takes requests only where production knows its config."""
    world = RolloutWorld()
    rollout = run(world, fresh_rollout())
    world.acts.clear()
    world.engines[CANARY.name] = (config, 0, 900.0)
    back = run(world, roll_back(rollout, 900.0, "asked for"), start=900.0)
    assert back.phase is Phase.ROLLED_BACK
    assert world.runs(BASELINE)
    known = config in (BASELINE, CANDIDATE)
    assert (world.acts[0] == AdmitSlot(slot=CANARY.name)) is known
    if not known:
        assert world.acts[:2] == [
            StopEngine(slot=CANARY.name),
            StartEngine(slot=CANARY.name, config=BASELINE),
        ]


def test_lane_with_a_leftover_engine_is_cleaned_first():
    world = RolloutWorld()
    world.engines["canary-0"] = (BASELINE, 0, 0.0)
    _, intent = advance(fresh_rollout(), world.observe(), None, 0.0)
    assert intent == StopEngine(slot="canary-0")


def converting(replicas: int) -> tuple[RolloutWorld, Rollout]:
    """A rollout that is about to restart the first of so many replicas."""
    world = RolloutWorld(replicas=replicas)
    rollout = run(world, fresh_rollout(plan=plan_for(replicas)), until=Phase.CONVERTING)
    assert rollout.phase is Phase.CONVERTING
    return world, rollout


def said(world: RolloutWorld, rollout: Rollout) -> str:
    """Why the next cycle holds."""
    intent = advance(rollout, world.observe(60.0), None, 60.0).intent
    assert isinstance(intent, Hold), intent
    return intent.reason


@pytest.mark.parametrize(("replicas", "steps"), [(2, [5, 25, 50]), (3, [5, 25, 33]), (4, [5, 25])])
def test_replicas_are_restarted_one_at_a_time_while_the_lane_carries_its_part(replicas, steps):
    world, rollout = converting(replicas)
    assert run(world, rollout, start=40.0).phase is Phase.PROMOTED
    assert weights(world) == [*steps, 0]
    assert world.runs(CANDIDATE)
    assert world.engines.keys() == {slot.name for slot in world.production}
    turns = [type(act) for act in world.acts if getattr(act, "slot", CANARY.name) != CANARY.name]
    assert [each for each in turns if each is not SetWeight] == [
        DrainSlot, StopEngine, StartEngine, AdmitSlot
    ] * replicas  # fmt: skip
    assert (world.shortages, world.unserved, world.interrupted) == ([], [], [])


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_plan_with_a_single_step_works(replicas):
    world = RolloutWorld(replicas=replicas)
    rollout = run(world, fresh_rollout(plan=plan_for(replicas, (100,))))
    assert rollout.phase is Phase.PROMOTED
    assert weights(world) == [100 // replicas, 0]


def test_no_replica_is_taken_out_while_another_is_starting_and_the_wait_is_named():
    world, rollout = converting(3)
    world.engines["production-2"] = (CANDIDATE, 5, 55.0)
    assert said(world, rollout) == "production-2 is starting."
    world.engines["production-2"] = (CANDIDATE, 0, 55.0)
    world.unhealthy.add("production-2")
    assert said(world, rollout) == "The gateway has not seen production-2 healthy yet."


def test_a_dead_replica_is_brought_up_with_the_candidate_before_another_is_taken_out():
    """It takes part anyway, and nobody else cares for it while production is restarted."""
    world, rollout = converting(3)
    world.dead.add("production-1")
    assert run(world, rollout, start=40.0).phase is Phase.PROMOTED
    starts = [act for act in world.acts if isinstance(act, StartEngine)]
    assert starts[1] == StartEngine(slot="production-1", config=CANDIDATE)
    drained = [act.slot for act in world.acts if isinstance(act, DrainSlot)]
    assert drained == ["production-1", "production-0", "production-2", "canary-0"]


def test_a_drained_replica_serves_again_where_another_died_meanwhile():
    world, rollout = converting(2)
    world.admitted["production-0"] = False
    world.dead.add("production-1")
    world.admitted["production-1"] = False
    world.engines.pop("production-1")
    moves = []
    for tick in range(2):
        rollout, intent = advance(rollout, world.observe(60.0 + tick), None, 60.0 + tick)
        world.act(intent)
        moves.append(intent)
    assert moves[0] == AdmitSlot(slot="production-0")
    assert moves[1] == StartEngine(slot="production-1", config=CANDIDATE)


@pytest.mark.parametrize("phase", [Phase.CONVERTING, Phase.RETURNING])
def test_a_weight_changed_by_hand_while_production_is_restarted_pauses(phase):
    world, rollout = converting(2)
    rollout = run(world, rollout, start=40.0, until=phase)
    for _ in range(3):
        if rollout.baking_since_s is None:
            rollout, intent = advance(rollout, world.observe(60.0), None, 60.0)
            world.act(intent)
    before = world.weight
    world.weight = 10
    rollout, intent = advance(rollout, world.observe(61.0), None, 61.0)
    assert rollout.paused
    assert intent == Hold(f"Paused: the weight was changed by hand from {before} % to 10 %.")
    rollout = run(world, rollout, start=62.0, ticks=20)
    assert (rollout.phase, world.weight) == (phase, 10)
    rollout, intent = advance(resume(rollout), world.observe(90.0), None, 90.0)
    assert intent == SetWeight(weight=before)
    world.act(intent)
    assert run(world, rollout, start=91.0).phase is Phase.PROMOTED


def test_a_lane_drained_by_hand_while_production_is_restarted_pauses():
    world, rollout = converting(2)
    rollout = run(world, rollout, start=40.0, ticks=1)
    world.admitted["canary-0"] = False
    rollout, _ = advance(rollout, world.observe(61.0), None, 61.0)
    assert rollout.reason == "the lane was drained by hand"
    rollout = run(world, rollout, start=62.0, ticks=20)
    assert not world.admitted["canary-0"]
    assert run(world, resume(rollout), start=90.0).phase is Phase.PROMOTED


def test_a_candidate_that_dies_while_all_production_serves_costs_no_cycle():
    world, rollout = converting(4)
    world.dead.add("canary-0")
    rollout, intent = advance(rollout, world.observe(60.0), None, 60.0)
    assert (rollout.phase, intent) == (Phase.ROLLING_BACK, SetWeight(weight=0))


def test_a_candidate_judged_worse_keeps_its_weight_until_dead_production_is_back():
    """Guards that a roll back checks whether the old arm still has the capacity."""
    world = RolloutWorld(replicas=2)
    rollout = run(world, fresh_rollout(plan=plan_for(2)), UNSURE, until=Phase.PROGRESSING)
    world.dead.add("production-1")
    rollout, intent = advance(rollout, world.observe(10.0), FAIL, 10.0)
    assert rollout.phase is Phase.ROLLING_BACK
    assert isinstance(intent, Hold)
    before = len(world.acts)
    assert run(world, rollout, start=11.0).phase is Phase.ROLLED_BACK
    back = world.acts[before:]
    assert weights(world) == [5, 0], "a candidate that was judged worse gets no more"
    assert StartEngine(slot="production-1", config=BASELINE) in back
    assert back.index(AdmitSlot(slot="production-1")) < back.index(SetWeight(weight=0))


@pytest.mark.parametrize("replicas", [1, 2, 4])
def test_with_a_dead_lane_the_baseline_stands_in_before_a_serving_replica_goes_back(replicas):
    """A replica that serves, with whatever config, is not drained while nothing can replace it."""
    world, rollout = converting(replicas)
    rollout = run(world, rollout, start=40.0, until=Phase.RETURNING)
    world.dead.add("canary-0")
    before = len(world.acts)
    rollout = run(world, roll_back(rollout, 60.0, "asked for"), start=60.0)
    assert rollout.phase is Phase.ROLLED_BACK
    back = world.acts[before:]
    assert back.index(StartEngine(slot="canary-0", config=BASELINE)) < back.index(
        DrainSlot(slot="production-0")
    )
    assert weights(world)[-2:] == [100 // replicas, 0]
    assert world.runs(BASELINE)
    assert (world.shortages, world.unserved, world.interrupted) == ([], [], [])


@pytest.mark.parametrize("by_hand", [0, 100])
def test_a_lane_that_still_serves_helps_before_a_dead_replica_is_restarted(by_hand):
    world, rollout = converting(2)
    rollout = run(world, rollout, start=40.0, until=Phase.RETURNING)
    while world.admitted["canary-0"]:
        rollout, intent = advance(rollout, world.observe(60.0), None, 60.0)
        world.act(intent)
    world.dead.add("production-1")
    world.weight = by_hand
    rollout, _ = advance(rollout, world.observe(61.0), None, 61.0)
    before = len(world.acts)
    assert run(world, rollout, start=62.0).phase is Phase.ROLLED_BACK
    helped = world.acts[before : before + 2]
    assert {*helped} == {AdmitSlot(slot="canary-0"), SetWeight(weight=50)}
    # A weight above the lane's most would reach it as soon as it is admitted.
    assert isinstance(helped[0], SetWeight) == (by_hand > 50)
    assert world.shortages == []


def test_a_lane_that_dies_while_production_is_out_gets_no_weight():
    world, rollout = converting(1)
    while "production-0" in world.engines:
        rollout, intent = advance(rollout, world.observe(60.0), None, 60.0)
        world.act(intent)
    world.dead.add("canary-0")
    _, intent = advance(rollout, world.observe(61.0), None, 61.0)
    assert intent == SetWeight(weight=0)


def test_a_paused_rollout_keeps_its_weight_when_the_last_replica_is_through():
    world, rollout = converting(1)
    while "production-0" in world.engines:
        rollout, intent = advance(rollout, world.observe(60.0), None, 60.0)
        world.act(intent)
    rollout = run(world, pause(rollout, "lunch"), start=61.0, ticks=20)
    assert (rollout.phase, world.weight) == (Phase.CONVERTING, 100)
    assert world.runs(CANDIDATE)
    assert run(world, resume(rollout), start=90.0).phase is Phase.PROMOTED


def test_nothing_is_given_back_to_a_replica_that_gets_no_requests():
    world, rollout = converting(2)
    rollout = run(world, rollout, start=40.0, until=Phase.RETURNING)
    world.weight = 50
    world.admitted["production-1"] = False
    rollout, intent = advance(rollout, world.observe(60.0), None, 60.0)
    assert intent == AdmitSlot(slot="production-1")


def test_a_half_converted_production_goes_back_by_what_was_converted_alone():
    world, rollout = converting(3)
    for tick in range(400):
        rollout, intent = advance(rollout, world.observe(40.0 + tick), None, 40.0 + tick)
        world.act(intent)
        if intent == AdmitSlot(slot="production-0"):
            break
    before = len(world.acts)
    rollout = run(world, roll_back(rollout, 60.0, "asked for"), start=60.0)
    assert rollout.phase is Phase.ROLLED_BACK
    back = world.acts[before:]
    assert {act.slot for act in back if not isinstance(act, SetWeight)} == {
        "production-0",
        "canary-0",
    }
    assert world.shortages == []


def test_a_plan_for_another_number_of_replicas_goes_back():
    """The settings may have changed since: its steps could overload the lane."""
    world = RolloutWorld(replicas=2)
    rollout, _ = advance(fresh_rollout(), world.observe(), None, 1.0)
    assert rollout.phase is Phase.ROLLING_BACK
    assert rollout.reason == "It was planned for 1 production replicas, and there are 2."


def test_a_weight_left_behind_does_not_reach_a_lane_that_is_admitted():
    world = RolloutWorld(replicas=4, weight=80)
    world.engines["canary-0"] = (CANDIDATE, 0, 0.0)
    _, intent = advance(fresh_rollout(plan=plan_for(4)), world.observe(), None, 1.0)
    assert intent == SetWeight(weight=0)


def test_resumed_below_the_weight_set_by_hand_it_waits_for_production_that_is_out():
    world = RolloutWorld(replicas=3)
    rollout = run(world, fresh_rollout(plan=plan_for(3)), UNSURE, ticks=10)
    world.weight = 33
    rollout, _ = advance(rollout, world.observe(11.0), None, 11.0)
    world.dead.add("production-2")
    assert said(world, resume(rollout)) == "The weight stays at 33 %: production-2 does not serve."
    world.dead.clear()
    intent = advance(resume(rollout), world.observe(61.0), None, 61.0).intent
    assert intent == SetWeight(weight=5)


faults = st.sampled_from(
    ["none"] * 6
    + ["lost", "crash", "kill_lane", "kill_production", "by_hand", "unreadable", "undo"]
)
verdicts = st.sampled_from([PASS, PASS, PASS, PASS, UNSURE, FAIL, None])


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(faults, verdicts), max_size=80))
def test_any_interruption_ends_promoted_or_rolled_back(moments):
    """Killed before or after an act, engines killed, weights moved: the end is always clean."""
    world, rollout, now = RolloutWorld(), fresh_rollout(), 0.0
    for fault, verdict in moments:
        now += 2.0
        world.readable = fault != "unreadable"
        if fault == "kill_lane" and "canary-0" in world.engines:
            world.dead.add("canary-0")
        if fault == "kill_production" and "production-0" in world.engines:
            world.dead.add("production-0")
        if fault == "by_hand":
            world.weight = 33
        if fault == "undo":
            rollout = roll_back(rollout, now, "undo")
        stepped, intent = advance(rollout, world.observe(now), verdict, now)
        if fault != "crash":
            world.act(intent)
        if fault not in ("lost", "crash"):
            rollout = stepped
    world.readable = True
    if world.state("production-0") is ReplicaState.DEAD and not rollout.phase.ended:
        rollout = roll_back(rollout, now, "production died")
    # A weight whose step was lost looks like one changed by hand: it is found, then decided upon.
    rollout = run(world, rollout, PASS, start=now, ticks=1)
    rollout = run(world, resume(rollout), PASS, start=now + 1.0)
    assert rollout.phase in (Phase.PROMOTED, Phase.ROLLED_BACK)


def test_paused_while_the_candidate_starts_no_traffic_is_moved():
    world = RolloutWorld()
    rollout = pause(fresh_rollout(), "by ann")
    world.act(StartEngine(slot="canary-0", config=CANDIDATE))
    rollout = run(world, rollout, ticks=50)
    assert rollout.phase is Phase.STARTING
    assert not any(weights(world))
    assert not world.admitted["canary-0"]
    assert run(world, resume(rollout), start=60.0).phase is Phase.PROMOTED


def test_a_lane_that_is_drained_by_hand_at_a_step_pauses_it():
    world = RolloutWorld()
    rollout = run(world, fresh_rollout(), UNSURE, until=Phase.PROGRESSING)
    rollout = run(world, rollout, UNSURE, start=30.0, ticks=5)
    assert rollout.baking_since_s is not None
    world.act(DrainSlot(slot="canary-0"))
    rollout = run(world, rollout, PASS, start=40.0, ticks=100)
    assert rollout.phase is Phase.PROGRESSING and rollout.paused
    assert rollout.reason == "the lane was drained by hand"
    assert not world.admitted["canary-0"]
    assert run(world, resume(rollout), start=200.0).phase is Phase.PROMOTED


def test_production_that_serves_with_a_config_of_somebodys_own_is_left_to_serve():
    """A candidate that was judged worse once got all of its traffic."""
    world = RolloutWorld()
    rollout = run(world, fresh_rollout(), UNSURE, until=Phase.PROGRESSING)
    rollout = run(world, rollout, UNSURE, start=30.0, ticks=3)
    assert world.weight == 5
    own = EngineConfig.of({"max_num_seqs": 7})
    world.engines["production-0"] = (own, 0, 0.0)
    rollout = run(world, rollout, FAIL, start=40.0)
    assert rollout.phase is Phase.ROLLED_BACK
    assert max(weights(world)) == 5 and world.weight == 0
    assert {slot: config for slot, (config, _, _) in world.engines.items()} == {"production-0": own}
    assert world.unserved == []


def test_a_roll_back_that_gets_no_further_says_so_and_keeps_what_serves():
    """The lane cannot start: without it the only engine that serves may not be restarted."""
    world = RolloutWorld()
    rollout = run(world, fresh_rollout(), until=Phase.RETURNING)
    world.broken_configs |= {BASELINE}
    world.dead.add("canary-0")
    rollout = run(world, roll_back(rollout, 100.0, "asked for"), start=100.0, ticks=30)
    assert rollout.phase is Phase.ROLLING_BACK and not rollout.stalled
    rollout = run(world, rollout, start=101.0 + PLAN.stall_s, ticks=30)
    assert rollout.phase is Phase.ROLLING_BACK and rollout.stalled
    assert world.state("production-0") is ReplicaState.WARM
    assert world.unserved == []
    world.broken_configs.clear()
    assert run(world, rollout, start=900.0).phase is Phase.ROLLED_BACK


def test_a_replica_out_of_sight_for_a_moment_waits_for_one_that_starts():
    world = RolloutWorld(replicas=3)
    rollout = run(world, fresh_rollout(plan=plan_for(3)), until=Phase.CONVERTING)
    world.engines["production-0"] = (CANDIDATE, 99, 50.0)
    seen = world.observe(50.0)
    slots = tuple(replace(s, up=s.up and s.slot != "production-1") for s in seen.split.slots)
    blinked = replace(seen, split=replace(seen.split, slots=slots))
    _, intent = advance(replace(rollout, baking_since_s=40.0), blinked, PASS, 50.0)
    assert isinstance(intent, Hold), intent


def in_place(replicas: int = 2, **changes: object) -> Rollout:
    waiting = fresh_rollout(Phase.WAITING_APPROVAL, in_place_plan(replicas))
    return replace(approve(waiting, 0.0), **changes)


def test_in_place_a_weight_that_was_left_is_taken_away_and_a_changed_one_waits():
    world = RolloutWorld(replicas=2, in_place=True, weight=25)
    rollout, intent = advance(in_place(), world.observe(1.0), None, 1.0)
    assert intent == SetWeight(weight=0)
    world.act(intent)
    rollout, _ = advance(rollout, world.observe(2.0), None, 2.0)
    world.weight = 10
    rollout, intent = advance(rollout, world.observe(3.0), None, 3.0)
    assert rollout.paused and isinstance(intent, Hold)
    assert rollout.reason == "the weight was changed by hand from 0 % to 10 %"


def test_in_place_a_paused_one_takes_no_replica_out_and_lets_back_in_what_could_serve():
    world = RolloutWorld(replicas=2, in_place=True)
    rollout = in_place()
    rollout, intent = advance(rollout, world.observe(1.0), None, 1.0)
    assert intent == DrainSlot(slot="production-0")
    world.act(intent)
    rollout = run(world, pause(rollout, "lunch"), start=2.0, ticks=30)
    assert world.carriers() == ["production-0", "production-1"]
    assert {config for config, _, _ in world.engines.values()} == {BASELINE}
    assert run(world, resume(rollout), start=40.0).phase is Phase.PROMOTED


@pytest.mark.parametrize(("ran", "config"), [(False, BASELINE), (True, CANDIDATE)])
def test_in_place_a_paused_one_does_not_begin_with_a_replica_that_dies(ran, config):
    """One that was approved while the controller was paused once moved production for that."""
    world = RolloutWorld(replicas=2, in_place=True)
    if ran:
        world.engines["production-0"] = (CANDIDATE, 0, -10.0)
    del world.engines["production-1"]
    paused = run(world, pause(in_place(), "the controller is paused"), start=1.0, ticks=30)
    assert paused.phase is Phase.CONVERTING
    assert world.engines["production-1"][0] == config
    assert world.carriers() == ["production-0", "production-1"]
    assert run(world, resume(paused), start=40.0).phase is Phase.PROMOTED


def test_in_place_a_replica_that_is_not_warm_in_time_sends_it_back():
    world = RolloutWorld(replicas=3, in_place=True, start_ticks=100)
    rollout = run(world, in_place(3), until=Phase.ROLLING_BACK)
    assert rollout.reason == "production-0 was not warm in time."
    world.start_ticks = 2
    rollout = run(world, rollout, start=60.0)
    assert rollout.phase is Phase.ROLLED_BACK
    assert world.runs(BASELINE)
    assert world.missing == []


def test_in_place_it_says_that_nothing_was_judged():
    rollout = run(RolloutWorld(replicas=2, in_place=True), in_place())
    assert rollout.reason == "restarted in place; nothing was judged under live traffic"


def test_in_place_it_goes_back_where_there_are_other_replicas_than_planned():
    rollout, _ = advance(in_place(3), RolloutWorld(replicas=2).observe(1.0), None, 1.0)
    assert rollout.phase is Phase.ROLLING_BACK


@pytest.mark.parametrize("state", [None, ReplicaState.STOPPING, ReplicaState.WARM])
def test_a_lane_that_is_not_to_be_had_ends_the_rollout(state):
    world = RolloutWorld()
    if state is not None:
        world.engines[CANARY.name] = (EngineConfig.of({"max_num_seqs": 1}), 0, 0.0)
    rollout, now = replace(fresh_rollout(), reason="Port 8201 is not free."), 0.0
    while rollout.phase is Phase.STARTING and now < 100:
        now += 2.0
        observed = world.observe(now)
        if state is not None:
            held = replace(observed.replicas[CANARY.name], state=state)
            observed = replace(observed, replicas={**observed.replicas, CANARY.name: held})
        rollout, _ = advance(rollout, observed, None, now)
    assert rollout.phase is Phase.ROLLING_BACK
    assert PLAN.start_s < now <= PLAN.start_s + 6
    assert rollout.reason.startswith("The lane was not to be had for ")
    assert rollout.reason.endswith("Port 8201 is not free.")


def test_a_pause_does_not_count_as_waiting_for_the_lane():
    world = RolloutWorld()
    rollout, _ = advance(fresh_rollout(), world.observe(1.0), None, 1.0)
    rollout, hold = advance(pause(rollout, "by ann"), world.observe(2.0), None, 2.0)
    assert hold == Hold("Paused.")
    rollout, intent = advance(resume(rollout), world.observe(1000.0), None, 1000.0)
    assert intent == StartEngine(slot=CANARY.name, config=CANDIDATE)
    assert rollout.asked_since_s == 1000.0
