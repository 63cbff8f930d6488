"""The control loop, ticked in simulated time: what it does in each state of the world."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from agent.healing import CRASH_WINDOW_S, MAX_STARTS
from agent.store import Store
from canary.rollout import pause
from domain.approval import Answer, CommandKind
from domain.engine import EngineConfig
from domain.errors import BadInput, Conflict, EngineUnreachable, InvariantViolation, Temporary
from domain.events import EventKind
from domain.fleet import ReplicaState, Role, Slot
from domain.rollout import Phase, StallAction, Step, carried
from domain.verdict import Outcome, Verdict
from tests.fakes.controller_world import (
    BASELINE,
    CANDIDATE,
    CYCLE_S,
    LEASE_S,
    PLAN,
    POLICY,
    SLOTS,
    ControllerWorld,
    opened,
)
from tests.fakes.launcher import Behaviour, FakeLauncher
from tests.fakes.shapes import shape
from tools.profiler import Missing

PRODUCTION, LANE = "production-0", "canary-0"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with opened(tmp_path) as store:
        yield store


@pytest.fixture
def world(store: Store) -> ControllerWorld:
    return ControllerWorld(store)


async def state_of(world: ControllerWorld, slot: str) -> ReplicaState | None:
    replicas = {replica.slot: replica for replica in await world.launcher.observe()}
    return replicas[slot].state if slot in replicas else None


def phase(world: ControllerWorld) -> Phase | None:
    rollout = world.rollout()
    return None if rollout is None else rollout.phase


async def recommended(world: ControllerWorld) -> None:
    """Production serves and a study has just recommended the candidate."""
    await world.settle()
    await world.until(lambda: world.studies.begun)
    world.studies.recommend(CANDIDATE)


async def test_an_empty_house_is_brought_to_serving_by_itself(world: ControllerWorld) -> None:
    said = [await world.tick() for _ in range(6)]
    assert said[0] == "The gateway could not be read; it was asked to start again."
    assert said[1].startswith("Production needs care. Start an engine in production-0")
    assert world.gateway.route() == PRODUCTION
    assert world.launcher.starts == [(PRODUCTION, BASELINE)]


async def test_from_drift_to_promotion(world: ControllerWorld) -> None:
    await recommended(world)
    await world.until(lambda: phase(world) is Phase.PROMOTED)
    assert world.active() == CANDIDATE
    assert (await world.split()).weight == 0
    assert await state_of(world, LANE) is None
    assert world.launcher.starts == [
        (PRODUCTION, BASELINE),
        (LANE, CANDIDATE),
        (PRODUCTION, CANDIDATE),
    ]
    weights = [e.sentence for e in world.notifier.told if e.kind is EventKind.WEIGHT_SET]
    assert [sentence.split()[-2] for sentence in weights] == ["25", "100", "0"]


async def test_two_replicas_are_promoted_one_after_the_other_under_the_same_capacity(
    store: Store,
) -> None:
    slots = tuple(
        Slot(name=f"production-{n}", role=Role.PRODUCTION, port=8101 + n) for n in range(2)
    )
    steps = tuple(Step(weight=weight, bake_s=10.0) for weight in carried((25, 100), 2))
    plan = replace(POLICY.rollout, steps=steps, replicas=2)
    world = ControllerWorld(store, policy=replace(POLICY, rollout=plan), production=slots)
    await recommended(world)
    fewest = 2
    for _ in range(120):
        await world.tick()
        split = await world.split()
        carrying = [slot.slot for slot in split.slots if slot.admitted and slot.up]
        fewest = min(fewest, len(carrying))
        assert split.weight in (0, 25, 50)
    assert fewest == 2
    assert phase(world) is Phase.PROMOTED
    assert world.active() == CANDIDATE
    assert world.launcher.starts == [
        ("production-0", BASELINE),
        ("production-1", BASELINE),
        (LANE, CANDIDATE),
        ("production-0", CANDIDATE),
        ("production-1", CANDIDATE),
    ]


async def test_a_candidate_that_is_judged_worse_is_rolled_back(world: ControllerWorld) -> None:
    await recommended(world)
    await world.until(lambda: phase(world) is Phase.PROGRESSING)
    world.verdict = Verdict(outcome=Outcome.FAIL, reason="The candidate is slower.")
    await world.until(lambda: phase(world) is Phase.ROLLED_BACK)
    assert (await world.split()).weight == 0
    assert await state_of(world, LANE) is None
    assert world.active() is None


async def test_missing_metrics_hold_at_rest_and_begin_nothing(world: ControllerWorld) -> None:
    await world.settle()
    world.shape = Missing(reason="running is missing (down)", signals=("running",))
    world.order(CommandKind.TUNE)
    assert await world.tick(3) == "Holding: running is missing (down)"
    assert world.study() is None
    world.shape = shape()
    await world.tick()
    assert world.study().reason == "ada asked for it."


async def test_a_step_without_a_verdict_neither_advances_nor_lasts_for_ever(
    world: ControllerWorld,
) -> None:
    await recommended(world)
    await world.until(lambda: phase(world) is Phase.PROGRESSING)
    world.verdict = None
    sentence = await world.tick(20)
    assert "Inconclusive" in sentence
    assert (await world.split()).weight == 25
    await world.until(lambda: phase(world) is Phase.ROLLED_BACK)
    assert "Inconclusive" in world.rollout().reason


async def test_a_judge_that_fails_keeps_nobody_from_seeing_a_dead_lane(
    world: ControllerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    await recommended(world)
    await world.until(lambda: phase(world) is Phase.PROGRESSING)

    async def broken(*_: object) -> Verdict:
        raise InvariantViolation("A stored row cannot be read.")

    monkeypatch.setattr(world.controller, "_judge", broken)
    assert "cannot be judged: A stored row" in (await world.tick(15))
    world.launcher.kill(LANE)
    await world.until(lambda: phase(world) is Phase.ROLLED_BACK)


def held(world: ControllerWorld) -> list[str]:
    """What people were told of a rollout that waits for them."""
    return [event.sentence for event in world.notifier.told if event.kind is EventKind.HELD]


async def test_a_step_that_stays_undecided_is_told_once(store: Store) -> None:
    plan = replace(POLICY.rollout, stall_action=StallAction.HOLD)
    world = ControllerWorld(store, policy=replace(POLICY, rollout=plan))
    await recommended(world)
    await world.until(lambda: phase(world) is Phase.PROGRESSING)
    world.verdict = None
    await world.until(lambda: held(world))
    await world.tick(20)
    (told,) = held(world)
    assert "longer than stall_s" in told and "metrics are missing" in told
    assert (await world.split()).weight == plan.steps[0].weight


async def test_a_dead_production_engine_is_replaced(world: ControllerWorld) -> None:
    await world.settle()
    world.launcher.kill(PRODUCTION)
    said = [await world.tick() for _ in range(6)]
    assert said[0] == "Production needs care. Send production-0 no new requests."
    assert said[1] == "Production needs care. End the engine in production-0."
    assert world.launcher.starts == [(PRODUCTION, BASELINE)] * 2
    assert world.gateway.route() == PRODUCTION


async def test_production_that_dies_under_a_rollout_is_healed_first(
    world: ControllerWorld,
) -> None:
    await recommended(world)
    await world.until(lambda: phase(world) is Phase.PROGRESSING)
    world.launcher.kill(PRODUCTION)
    await world.until(lambda: phase(world) is Phase.PROMOTED)
    assert world.launcher.starts.count((PRODUCTION, BASELINE)) == 2


async def test_an_engine_that_keeps_dying_is_not_started_for_ever(store: Store) -> None:
    world = ControllerWorld(store)
    world.launcher = FakeLauncher(clock=world.clock, behaviour=lambda *_: Behaviour(dies_at=1))
    world.controller = world.another("with this launcher")
    sentence = await world.tick(60)
    assert len(world.launcher.starts) == MAX_STARTS
    assert "died 4 times in 10 minutes" in sentence


async def test_what_rollouts_started_does_not_count_as_dying(store: Store) -> None:
    """Production that died soon after the last of many promotions once was not started again."""
    policy = replace(POLICY, rollout=replace(PLAN, steps=(Step(weight=100, bake_s=2.0),)))
    world = ControllerWorld(store, policy=policy)
    await world.settle()
    since_s = world.clock.now()
    for number in range(MAX_STARTS + 1):
        if number:
            world.order(CommandKind.TUNE)
        await world.until(lambda: world.studies.under_way)
        config = EngineConfig.of({"max_num_seqs": 100 + number})
        world.studies.recommend(config)
        await world.tick(20)
        assert world.active() == config
    assert world.clock.now() - since_s < CRASH_WINDOW_S
    starts = len(world.launcher.starts)
    world.launcher.kill(PRODUCTION)
    await world.until(lambda: len(world.launcher.starts) > starts, cycles=6)


async def test_of_many_engines_that_keep_dying_none_is_started_for_ever(store: Store) -> None:
    """What was started of the others once pushed out of sight how often one was."""
    slots = tuple(
        Slot(name=f"production-{n}", role=Role.PRODUCTION, port=8101 + n) for n in range(15)
    )
    world = ControllerWorld(store, production=slots)
    world.launcher = FakeLauncher(clock=world.clock, behaviour=lambda *_: Behaviour(dies_at=1))
    world.controller = world.another("with this launcher")
    await world.tick(260)
    assert CYCLE_S * 260 < CRASH_WINDOW_S
    started = Counter(slot for slot, _ in world.launcher.starts)
    assert started == {slot.name: MAX_STARTS for slot in slots}


async def test_a_clock_that_was_set_back_makes_no_old_start_a_new_one(store: Store) -> None:
    """Production stayed down for an hour once: its starts of that hour all seemed to lie ahead."""
    world = ControllerWorld(store)
    await world.settle()
    for _ in range(MAX_STARTS):
        world.launcher.kill(PRODUCTION)
        await world.tick(6)
        world.clock.advance(CRASH_WINDOW_S)
    world.clock.advance(-(MAX_STARTS + 1) * CRASH_WINDOW_S)
    starts = len(world.launcher.starts)
    world.launcher.kill(PRODUCTION)
    await world.until(lambda: len(world.launcher.starts) > starts, cycles=6)


async def test_a_start_that_is_refused_is_said_and_the_loop_goes_on(store: Store) -> None:
    world = ControllerWorld(store)
    refusal = BadInput("The engine's executable vllm does not exist.")
    world.launcher = FakeLauncher(
        clock=world.clock, behaviour=lambda *_: Behaviour(refusal=refusal)
    )
    world.controller = world.another("with this launcher")
    assert await world.tick(5) == "Holding: The engine's executable vllm does not exist."


async def test_a_candidate_that_no_lane_takes_ends_its_rollout(store: Store) -> None:
    world = ControllerWorld(store)
    refusal = Conflict("Port 8201 of slot canary-0 is not free: end what uses it.")
    world.launcher = FakeLauncher(
        clock=world.clock,
        behaviour=lambda slot, _: Behaviour(refusal=refusal if slot.name == LANE else None),
    )
    world.controller = world.another("with this launcher")
    await world.settle()
    await world.until(lambda: world.studies.begun)
    world.studies.recommend(CANDIDATE)
    await world.until(lambda: phase(world) is Phase.ROLLED_BACK, cycles=25)
    rollout = world.rollout()
    assert rollout is not None and rollout.reason.startswith("The lane was not to be had for 32 s")
    assert rollout.reason.endswith(str(refusal))
    assert world.launcher.starts == [(PRODUCTION, BASELINE)] and world.launcher.stops == []


async def test_what_an_earlier_controller_left_open_is_closed_once_another_acts(
    world: ControllerWorld,
) -> None:
    with world.store.work() as uow:
        uow.actions.begin("Set the candidate's weight to 25 %.", "r1", 1.0)
        uow.commit()
    await world.tick()
    with world.store.view() as uow:
        assert uow.actions.unfinished() == ()


async def test_a_gateway_that_is_down_is_started_again_with_its_weight(
    world: ControllerWorld,
) -> None:
    await recommended(world)
    await world.until(lambda: phase(world) is Phase.PROGRESSING)
    await world.tick(2)
    await world.gateway.stop()
    await world.tick()
    assert world.revivals == 1
    assert (await world.split()).weight == 25
    await world.until(lambda: phase(world) is Phase.PROMOTED)


async def test_a_gateway_that_cannot_be_started_is_said_each_cycle(world: ControllerWorld) -> None:
    world.gateway_fault = BadInput("Port 8000 is in use by another program.")
    assert await world.tick(3) == "Holding: Port 8000 is in use by another program."
    assert world.revivals == 3


async def test_a_gateway_that_does_not_take_a_weight_is_asked_again(world: ControllerWorld) -> None:
    await recommended(world)
    await world.until(lambda: phase(world) is Phase.STARTING)
    await world.tick(2)
    world.gateway.set_up(LANE, False)
    await world.tick(3)
    world.gateway.stuck = True
    world.gateway.set_up(LANE, True)
    assert "did not take it" in await world.tick(3)
    assert phase(world) is Phase.PROGRESSING
    world.gateway.stuck = False
    await world.until(lambda: phase(world) is Phase.PROMOTED)


async def test_a_weight_changed_by_hand_pauses_the_rollout(world: ControllerWorld) -> None:
    await recommended(world)
    await world.until(lambda: phase(world) is Phase.PROGRESSING)
    await world.tick(2)
    await world.gateway.set_weight(7)
    sentence = await world.tick(3)
    assert "changed by hand from 25 % to 7 %" in sentence
    (told,) = held(world)
    rollout_id = world.rollout().id
    assert f"`serinus rollout resume {rollout_id}` or" in told and "from 25 % to 7 %" in told
    world.order(CommandKind.RESUME)
    await world.tick(2)
    assert (await world.split()).weight == 7
    world.order(CommandKind.ROLLOUT_RESUME)
    await world.until(lambda: phase(world) is Phase.PROMOTED)


async def test_an_engine_that_nobody_needs_is_taken_off_the_lane(world: ControllerWorld) -> None:
    await world.settle()
    world.shape = Missing(reason="none", signals=())
    await world.launcher.start(SLOTS[LANE], CANDIDATE)
    await world.gateway.admit(LANE)
    said = [await world.tick() for _ in range(3)]
    assert said[0] == "The lane is not in use. Send canary-0 no new requests."
    assert said[1] == "The lane is not in use. Drain and stop the engine in canary-0."
    assert await state_of(world, LANE) is None


async def test_an_unreachable_engine_is_said_and_nothing_is_done(world: ControllerWorld) -> None:
    await world.settle()
    world.shape = EngineUnreachable("The launcher's record cannot be read.")
    assert await world.tick() == "Holding: The launcher's record cannot be read."
    world.shape = Temporary("The database is locked by another process.")
    assert await world.tick() == "Holding: The database is locked by another process."


async def test_a_fault_of_our_own_is_said_and_never_ends_the_loop(
    world: ControllerWorld, caplog: pytest.LogCaptureFixture
) -> None:
    await world.settle()
    world.shape = ZeroDivisionError("division by zero")
    sentence = await world.tick()
    assert sentence == "Holding: a fault of Serinus itself: ZeroDivisionError('division by zero')."
    assert "Traceback" in caplog.text
    world.shape = Missing(reason="all is quiet", signals=())
    assert await world.tick() == "Holding: all is quiet"


async def test_one_of_two_controllers_acts_and_a_deposed_one_stops(world: ControllerWorld) -> None:
    await world.settle()
    await world.until(lambda: world.studies.begun)
    second = world.another("second")
    assert await second.cycle() == "Another controller holds the lease; watching."

    world.clock.advance(LEASE_S + CYCLE_S)
    assert await second.cycle() == "Going on with study 00000001."
    assert (
        await world.controller.cycle()
        == "The lease went to another controller; this one stops acting."
    )
    assert world.studies.under_way == 1
    assert await world.controller.cycle() == "Another controller holds the lease; watching."
    assert [study.id for study in world.studies.begun] == ["00000001"] * 2


async def test_a_leader_deposed_in_mid_cycle_writes_nothing(world: ControllerWorld) -> None:
    await recommended(world)
    await world.until(lambda: phase(world) is Phase.STARTING)
    second = world.another("second")

    async def depose() -> None:
        world.clock.advance(LEASE_S + 1)
        assert await second.cycle() != "Another controller holds the lease; watching."

    world.meanwhile = depose
    sentence = await world.controller.cycle()
    assert sentence == "Another controller holds the lease; nothing was written."
    assert world.launcher.starts.count((LANE, CANDIDATE)) == 1


async def test_paused_a_rollout_stays_and_can_still_be_rolled_back(world: ControllerWorld) -> None:
    await recommended(world)
    await world.until(lambda: phase(world) is Phase.PROGRESSING)
    await world.tick(2)
    world.order(CommandKind.PAUSE)
    await world.tick(15)
    assert (await world.split()).weight == 25
    assert pause(world.rollout(), "again") == world.rollout()
    world.order(CommandKind.ROLLOUT_ABORT)
    await world.until(lambda: phase(world) is Phase.ROLLED_BACK)
    assert (await world.split()).weight == 0


async def test_in_place_replicas_restart_one_by_one_and_the_lane_gets_no_engine(
    store: Store,
) -> None:
    slots = tuple(
        Slot(name=f"production-{n}", role=Role.PRODUCTION, port=8101 + n) for n in range(2)
    )
    plan = replace(POLICY.rollout, steps=(), in_place=True, replicas=2)
    world = ControllerWorld(store, policy=replace(POLICY, rollout=plan), production=slots)
    world.verdict = Verdict(outcome=Outcome.FAIL, reason="Nobody asked.")
    await recommended(world)
    await world.until(lambda: phase(world) is Phase.WAITING_APPROVAL)
    with store.work() as uow:
        (question,) = uow.approvals.open()
        uow.approvals.answer(question.id, Answer.APPROVE, "ada", world.clock.now())
        uow.commit()
    fewest = 2
    for _ in range(60):
        await world.tick()
        split = await world.split()
        fewest = min(fewest, len([s for s in split.slots if s.admitted and s.up]))
        assert split.weight == 0
    assert (phase(world), fewest) == (Phase.PROMOTED, 1)
    assert world.active() == CANDIDATE
    assert world.launcher.starts == [
        ("production-0", BASELINE),
        ("production-1", BASELINE),
        ("production-0", CANDIDATE),
        ("production-1", CANDIDATE),
    ]
    said = [e.sentence for e in world.notifier.told if e.kind is EventKind.PROMOTED]
    assert said and said[0].endswith("nothing was judged under live traffic")
