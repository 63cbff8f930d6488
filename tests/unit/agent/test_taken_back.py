"""Going back after a promotion, driven by whole controllers in simulated time."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from agent.active_config import TUNED_SHAPE
from agent.store import Store
from canary.guard import Limits
from domain.approval import Answer, Autonomy, CommandKind
from domain.engine import EngineConfig
from domain.events import EventKind
from domain.fleet import ReplicaState, Role, Slot
from domain.rollout import Phase, Step, carried
from domain.study import FailureKind, StudyState, TrialState
from tests.fakes import records
from tests.fakes.controller_world import (
    BASELINE,
    CANARY,
    CANDIDATE,
    CYCLE_S,
    LEASE_S,
    POLICY,
    PRODUCTION,
    ControllerWorld,
    opened,
)

ROLLBACK = CommandKind.ROLLOUT_ROLLBACK
REHEARSED = EngineConfig.of({"max_num_seqs": 7})
COOLDOWN_S = 600.0


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with opened(tmp_path) as store:
        yield store


async def promoted(store: Store, replicas: int = 1, *, in_place: bool = False) -> ControllerWorld:
    """Production was moved to the candidate, and nothing is under way."""
    slots = tuple(
        Slot(name=f"production-{n}", role=Role.PRODUCTION, port=8101 + n) for n in range(replicas)
    )
    steps = tuple(Step(weight=weight, bake_s=10.0) for weight in carried((25, 100), replicas))
    plan = replace(
        POLICY.rollout, steps=() if in_place else steps, replicas=replicas, in_place=in_place
    )
    policy = replace(
        POLICY,
        rollout=plan,
        limits=Limits(
            autonomy=Autonomy.AUTONOMOUS, changes_a_day=6, studies_a_day=12, cooldown_s=COOLDOWN_S
        ),
    )
    world = ControllerWorld(store, policy=policy, production=slots)
    await world.settle()
    await world.until(lambda: world.studies.begun)
    world.studies.recommend(CANDIDATE)
    if in_place:
        await world.until(is_at(world, Phase.WAITING_APPROVAL))
        with store.work() as uow:
            (question,) = uow.approvals.open()
            uow.approvals.answer(question.id, Answer.APPROVE, "ada", world.clock.now())
            uow.commit()
    await world.until(is_at(world, Phase.PROMOTED), cycles=120)
    world.launcher.starts.clear()
    return world


def is_at(world: ControllerWorld, phase: Phase) -> Callable[[], bool]:
    def look() -> bool:
        rollout = world.rollout()
        return rollout is not None and rollout.phase is phase

    return look


async def goes_back(world: ControllerWorld, carrying: int = 1) -> None:
    """Until it is rolled back; so many engines carry in each cycle."""
    for _ in range(120):
        await world.tick()
        split = await world.split()
        assert sum(slot.admitted and slot.up for slot in split.slots) >= carrying
        if is_at(world, Phase.ROLLED_BACK)():
            break
    replicas = {replica.slot: replica for replica in await world.launcher.observe()}
    assert set(replicas) == {slot.name for slot in world.production}
    assert {(r.config, r.state) for r in replicas.values()} == {(BASELINE, ReplicaState.WARM)}
    assert world.active() == BASELINE
    assert (await world.split()).weight == 0


def commands_told(world: ControllerWorld) -> list[str]:
    told = world.notifier.told
    return [event.sentence for event in told if event.kind is EventKind.COMMAND_TAKEN]


@pytest.mark.parametrize("replicas", [1, 2])
async def test_production_goes_back_under_the_same_capacity(store: Store, replicas: int) -> None:
    world = await promoted(store, replicas)
    world.order(ROLLBACK)
    await goes_back(world, carrying=replicas)
    assert world.launcher.starts == [
        (CANARY.name, BASELINE),
        *((slot.name, BASELINE) for slot in world.production),
    ]
    assert commands_told(world) == [
        f"ada ordered rollout rollback of {world.rollout().id}: production goes back to config "
        f"{BASELINE.digest}."
    ]
    assert EventKind.ROLLED_BACK in [event.kind for event in world.notifier.told]


async def test_what_was_promoted_in_place_goes_back_in_place(store: Store) -> None:
    world = await promoted(store, 2, in_place=True)
    world.order(ROLLBACK)
    await goes_back(world, carrying=1)
    assert world.launcher.starts == [(slot.name, BASELINE) for slot in world.production]


async def test_ordered_twice_it_goes_back_once(store: Store) -> None:
    world = await promoted(store)
    world.order(ROLLBACK)
    world.order(ROLLBACK, actor="bob")
    await world.tick()
    world.order(ROLLBACK, actor="bob")
    await goes_back(world)
    world.order(ROLLBACK, actor="eve")
    world.order(CommandKind.ROLLOUT_ABORT, actor="eve")
    await world.tick(5)
    assert [sentence.split(": ")[1].split(",")[0] for sentence in commands_told(world)] == [
        f"production goes back to config {BASELINE.digest}.",
        *(["nothing was to be done"] * 3),
    ]
    assert world.active() == BASELINE
    assert len(world.launcher.starts) == 2


async def test_what_was_left_does_not_come_back_within_the_cooldown(store: Store) -> None:
    world = await promoted(store)
    world.order(ROLLBACK)
    await goes_back(world)
    begun = len(world.studies.begun)
    world.order(CommandKind.TUNE)
    await world.until(lambda: len(world.studies.begun) > begun)
    assert world.studies.begun[-1].baseline == BASELINE
    world.studies.recommend(CANDIDATE)
    sentence = await world.tick()
    assert f"Config {CANDIDATE.digest} was left less than 600 s ago." in sentence
    assert is_at(world, Phase.ROLLED_BACK)()


async def test_the_shape_is_learned_anew_from_where_all_of_production_went_back(
    store: Store,
) -> None:
    world = await promoted(store)
    world.order(ROLLBACK)
    await goes_back(world)
    begun = len(world.studies.begun)
    await world.tick(int(POLICY.window_s / CYCLE_S) - 2)
    with store.view() as uow:
        assert uow.state.get(TUNED_SHAPE) is None
    await world.tick(4)
    with store.view() as uow:
        assert uow.state.get(TUNED_SHAPE) is not None
    assert len(world.studies.begun) == begun


async def with_study(store: Store) -> ControllerWorld:
    """A study of the promoted config rehearses on the lane."""
    world = await promoted(store)
    world.clock.advance(COOLDOWN_S)
    world.order(CommandKind.TUNE)
    begun = len(world.studies.begun)
    await world.until(lambda: len(world.studies.begun) > begun)
    study = world.study()
    assert study.baseline == CANDIDATE
    with store.work() as uow:
        uow.trials.add(records.trial(1, id="t1", study_id=study.id, config=REHEARSED))
        uow.commit()
    await world.launcher.start(CANARY, REHEARSED)
    world.launcher.starts.clear()
    return world


def assert_the_study_ended(world: ControllerWorld) -> None:
    study = world.study()
    assert study.state is StudyState.FAILED
    assert study.conclusion.startswith(
        f"Rollout {world.rollout().id} takes the lane; production leaves this study's baseline. "
        "It cost "
    )
    with world.store.view() as uow:
        (trial,) = uow.trials.of(study.id)
    assert (trial.state, trial.failure.kind) == (TrialState.FAILED, FailureKind.INTERRUPTED)
    ended = [e for e in world.notifier.told if e.kind is EventKind.STUDY_ENDED]
    assert ended[-1].sentence == f"Study ended: {study.conclusion}"


async def test_a_study_makes_way_and_has_ended_for_its_baseline_is_left(store: Store) -> None:
    world = await with_study(store)
    await world.launcher.stop(CANARY, 0.0)
    world.order(ROLLBACK)
    await goes_back(world)
    assert world.studies.under_way == 0
    assert_the_study_ended(world)
    assert world.launcher.starts == [(CANARY.name, BASELINE), (PRODUCTION.name, BASELINE)]
    begun = len(world.studies.begun)
    await world.tick(5)
    assert len(world.studies.begun) == begun


async def test_nothing_is_moved_before_the_study_has_left_the_lane(store: Store) -> None:
    world = await with_study(store)
    world.studies.lingers = True
    world.order(ROLLBACK)
    for _ in range(5):
        assert await world.tick() == (
            f"Rollout {CANDIDATE.digest} waits for the study to leave the lane."
        )
    assert is_at(world, Phase.ROLLING_BACK)()
    assert (world.launcher.starts, world.study().state) == ([], StudyState.RUNNING)
    world.studies.lingers = False
    await goes_back(world)
    assert_the_study_ended(world)


async def test_the_next_controller_ends_a_study_that_was_cut_off_and_its_engine(
    store: Store,
) -> None:
    world = await with_study(store)
    world.order(ROLLBACK)
    await world.controller._tuning.close()
    world.clock.advance(LEASE_S + CYCLE_S)
    world.controller = world.another("second")
    await goes_back(world)
    assert_the_study_ended(world)
    assert world.launcher.starts == [(CANARY.name, BASELINE), (PRODUCTION.name, BASELINE)]


async def test_a_study_whose_conclusion_was_not_taken_yet_recommends_nothing(store: Store) -> None:
    world = await with_study(store)
    world.studies.recommend(REHEARSED)
    world.order(ROLLBACK)
    await goes_back(world)
    assert_the_study_ended(world)


async def test_healing_does_not_fight_it_where_production_is_dead(store: Store) -> None:
    world = await promoted(store)
    world.order(ROLLBACK)
    world.launcher.kill(PRODUCTION.name)
    await world.until(is_at(world, Phase.ROLLED_BACK))
    assert CANDIDATE not in [config for _, config in world.launcher.starts]
    world.launcher.kill(PRODUCTION.name)
    await world.until(lambda: world.gateway.route() == PRODUCTION.name)
    assert world.launcher.starts[-1] == (PRODUCTION.name, BASELINE)
    assert world.active() == BASELINE


async def test_it_goes_back_while_the_controller_is_paused(store: Store) -> None:
    world = await promoted(store)
    world.order(CommandKind.PAUSE)
    await world.tick()
    world.order(ROLLBACK)
    await goes_back(world)


async def test_the_one_that_leads_takes_an_order_that_came_while_another_watched(
    store: Store,
) -> None:
    world = await promoted(store)
    second = world.another("second")
    assert await second.cycle() == "Another controller holds the lease; watching."
    world.order(ROLLBACK)
    assert await second.cycle() == "Another controller holds the lease; watching."
    assert is_at(world, Phase.PROMOTED)()
    await world.tick(2)
    assert is_at(world, Phase.ROLLING_BACK)()
    world.clock.advance(LEASE_S + CYCLE_S)
    world.controller = second
    await goes_back(world)
    assert len(commands_told(world)) == 1
