"""What a controller trusted with production must do with control: behaviours 19 to 27.

The numbers in the names are those of ``docs/behaviours.md``, the list of what such a controller
must do. The real loop and store over engines and a gateway that tests steer, in simulated time.
"""

import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from agent.settings import load
from agent.store import Store
from domain.approval import Answer, Autonomy, CommandKind
from domain.engine import EngineConfig
from domain.errors import BadInput, Conflict
from domain.events import EventKind
from domain.fleet import Role, Slot
from domain.rollout import Phase, Step
from domain.verdict import Outcome, Verdict
from tests.fakes.controller_world import (
    BASELINE,
    CANARY,
    CANDIDATE,
    LEASE_S,
    PLAN,
    POLICY,
    ControllerWorld,
    opened,
)
from tests.fakes.killing import Killed, Killing
from tests.fakes.launcher import Behaviour
from tests.fakes.shapes import shape

PRODUCTION, LANE = "production-0", CANARY.name
WORSE = Verdict(outcome=Outcome.FAIL, reason="The candidate is slower.")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with opened(tmp_path) as store:
        yield store


def limited(**changes: object):
    return replace(POLICY, limits=replace(POLICY.limits, **changes))


def phase(world: ControllerWorld) -> Phase | None:
    rollout = world.rollout()
    return None if rollout is None else rollout.phase


async def recommended(world: ControllerWorld) -> None:
    await world.settle()
    await world.until(lambda: world.studies.begun)
    world.studies.recommend(CANDIDATE)


async def succeeded(world: ControllerWorld, holder: str) -> None:
    """The controller is gone, and another one takes over once its lease has lapsed."""
    await world.controller._executor.close()
    await world.controller._tuning.close()
    world.clock.advance(LEASE_S)
    world.controller = world.another(holder)


@pytest.mark.parametrize("at", range(1, 60, 3))
async def test_19_killed_at_any_change_the_next_one_goes_on_and_does_nothing_twice(
    store: Store, at: int
) -> None:
    """Before or after every third commit and effect; each phase is told, and told once."""
    steps = tuple(Step(weight=weight, bake_s=2.0) for weight in (25, 100))
    world = ControllerWorld(store, policy=replace(POLICY, rollout=replace(PLAN, steps=steps)))
    await recommended(world)
    await world.until(world.rollout)
    killing = Killing(world, at)
    for _ in range(60):
        try:
            await world.tick()
        except Killed:
            await succeeded(world, "second")
        if phase(world) is Phase.PROMOTED:
            break
    assert killing.changes >= at
    assert phase(world) is Phase.PROMOTED
    assert world.launcher.starts == [
        (PRODUCTION, BASELINE),
        (LANE, CANDIDATE),
        (PRODUCTION, CANDIDATE),
    ]
    with store.view() as uow:
        kinds = [EventKind.ROLLOUT_ADVANCED, EventKind.PROMOTED]
        told = [event.sentence.split(":")[0].split()[-1] for event in uow.events.latest(50, kinds)]
    assert Counter(told) == Counter(["progressing", "converting", "returning", "promoted"])


async def test_20_a_paused_leader_that_wakes_writes_nothing_and_what_it_did_is_put_right(
    store: Store,
) -> None:
    """It slept between noting a weight and setting it, and its successor went back meanwhile;
    argo-rollouts#2117."""
    world = ControllerWorld(store)
    await recommended(world)
    await world.until(lambda: (found := world.rollout()) and found.step == 1)
    first = world.controller
    set_weight = world.gateway.set_weight

    async def sleeping(weight: int) -> None:
        world.gateway.set_weight = set_weight
        world.clock.advance(LEASE_S)
        world.controller = world.another("second")
        world.verdict = WORSE
        await world.until(lambda: phase(world) is Phase.ROLLED_BACK)
        await set_weight(weight)

    world.gateway.change_by_hand(0, LANE)
    world.order(CommandKind.PAUSE)
    await world.tick()
    world.order(CommandKind.RESUME)
    world.gateway.set_weight = sleeping
    said = await first.cycle()
    assert "holds the lease" in said
    assert phase(world) is Phase.ROLLED_BACK
    await world.tick(2)
    assert {world.gateway.route() for _ in range(50)} == {PRODUCTION}
    assert "this one stops acting" in await first.cycle()


async def two_replicas(store: Store) -> ControllerWorld:
    slots = tuple(
        Slot(name=f"production-{n}", role=Role.PRODUCTION, port=8101 + n) for n in range(2)
    )
    world = ControllerWorld(store, production=slots)
    world.shape = shape(requests=1)
    await world.settle()
    await world.tick(10)
    for _ in range(40):
        world.gateway.end(world.gateway.route())
    return world


def held(world: ControllerWorld) -> list[str]:
    return [event.sentence for event in world.notifier.told if event.kind is EventKind.HELD]


async def test_21_a_replica_drained_by_hand_is_told_once_and_stays_drained(store: Store) -> None:
    """dynamo#4420."""
    world = await two_replicas(store)
    world.gateway.change_by_hand(0, "production-1")
    sentence = await world.tick(10)
    assert sentence.startswith("Holding: production-1 was drained by hand.")
    assert not (await world.split()).slot("production-1").admitted
    assert len(held(world)) == 1
    await world.gateway.admit("production-1")
    assert (await world.tick()).startswith("No study is wanted")


async def test_21_the_only_replica_is_let_in_again(store: Store) -> None:
    world = ControllerWorld(store)
    world.shape = shape(requests=1)
    await world.settle()
    world.gateway.change_by_hand(0, PRODUCTION)
    await world.until(lambda: world.gateway.route() == PRODUCTION, cycles=3)


async def test_21_a_config_that_is_not_productions_is_told_and_left_to_serve(store: Store) -> None:
    world = ControllerWorld(store)
    world.shape = shape(requests=1)
    await world.settle()
    other = EngineConfig.of({"max_num_seqs": 7})
    await succeeded(world, "second")
    world.controller = world.another("third", baseline=other)
    world.shape = shape()
    sentence = await world.tick(5)
    assert BASELINE.digest in sentence and other.digest in sentence
    assert world.launcher.engines == {PRODUCTION: BASELINE}
    assert (len(held(world)), world.studies.begun) == (1, [])
    world.launcher.kill(PRODUCTION)
    await world.until(lambda: world.launcher.starts[-1] == (PRODUCTION, other), cycles=10)
    await world.until(lambda: world.studies.begun, cycles=10)


async def waiting(store: Store) -> ControllerWorld:
    world = ControllerWorld(store, policy=limited(autonomy=Autonomy.APPROVE))
    await recommended(world)
    await world.until(lambda: phase(world) is Phase.WAITING_APPROVAL)
    return world


async def test_22_of_approve_and_reject_at_once_one_wins_and_is_followed(store: Store) -> None:
    world = await waiting(store)
    with store.view() as uow:
        (request,) = uow.approvals.open()
    now, start = world.clock.now(), threading.Barrier(2)
    outcomes: dict[Answer, str] = {}

    def answer(given: Answer) -> None:
        start.wait()
        try:
            with store.work() as uow:
                uow.approvals.answer(request.id, given, given.value, now)
                uow.commit()
            outcomes[given] = "won"
        except Conflict:
            outcomes[given] = "conflict"

    threads = [threading.Thread(target=answer, args=(given,)) for given in Answer]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes.values()) == ["conflict", "won"]
    await world.tick()
    won = next(given for given, outcome in outcomes.items() if outcome == "won")
    assert (phase(world) is Phase.REJECTED) is (won is Answer.REJECT)


async def test_22_a_gate_that_waits_repeats_no_work_and_its_time_runs_out(store: Store) -> None:
    """flagger#1248."""
    world = await waiting(store)
    before = (world.rollout(), list(world.launcher.starts), len(world.studies.begun))
    told = len(world.notifier.told)
    await world.tick(20)
    assert (world.rollout(), list(world.launcher.starts), len(world.studies.begun)) == before
    assert len(world.notifier.told) == told
    world.clock.advance(POLICY.approval_ttl_s)
    await world.tick()
    assert phase(world) is Phase.REJECTED


async def test_22_an_approval_that_no_controller_took_up_in_time_moves_nothing(
    store: Store,
) -> None:
    world = await waiting(store)
    with store.work() as uow:
        (request,) = uow.approvals.open()
        uow.approvals.answer(request.id, Answer.APPROVE, "ada", world.clock.now())
        uow.commit()
    world.clock.advance(2 * POLICY.approval_ttl_s)
    world.controller = world.another("second")
    await world.tick(3)
    assert phase(world) is Phase.REJECTED
    assert world.launcher.starts == [(PRODUCTION, BASELINE)]


async def test_23_a_lane_that_is_not_to_be_had_ends_the_rollout_with_its_reason(
    store: Store,
) -> None:
    world = ControllerWorld(store)
    taken = Behaviour(refusal=Conflict("Port 8201 is not free (another engine): end what uses it."))
    world.launcher._behaviour = lambda slot, config: taken if slot == CANARY else Behaviour()
    await recommended(world)
    await world.until(lambda: phase(world) is Phase.ROLLED_BACK, cycles=40)
    assert "Port 8201 is not free" in world.rollout().reason
    assert world.launcher.engines == {PRODUCTION: BASELINE}
    assert world.gateway.route() == PRODUCTION


def test_23_no_rehearsal_is_given_a_gpu_of_productions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = tmp_path / "serinus.toml"
    settings.write_text('production_gpu_ids = ["0", "1"]\ncanary_gpu_ids = ["1"]\n')
    with pytest.raises(BadInput, match="GPU 1 is given to production and to the canary lane"):
        load(settings)


@pytest.mark.parametrize(
    ("limits", "refusal"),
    [
        ({"studies_a_day": 1}, "budget of 1 studies is used up"),
        ({"lane_s_a_day": 1.0}, "of the day's 0 min"),
        ({"autonomy": Autonomy.OBSERVE}, "nothing is rehearsed"),
    ],
)
async def test_24_no_order_passes_the_days_budget_of_studies_or_minutes(
    store: Store, limits: dict[str, object], refusal: str
) -> None:
    world = ControllerWorld(store, policy=limited(**limits))
    world.shape = shape(requests=1)
    await world.settle()
    if "studies_a_day" in limits:
        world.order(CommandKind.TUNE)
        await world.until(lambda: world.studies.begun)
        world.studies.find_nothing()
        await world.tick(2)
    begun = len(world.studies.begun)
    world.order(CommandKind.TUNE)
    assert refusal in await world.tick()
    await world.tick(5)
    assert len(world.studies.begun) == begun


async def test_24_no_more_changes_than_the_days_budget(store: Store) -> None:
    world = ControllerWorld(store, policy=limited(changes_a_day=1))
    await recommended(world)
    await world.until(lambda: phase(world) is Phase.PROMOTED)
    world.order(CommandKind.TUNE)
    await world.until(lambda: len(world.studies.begun) == 2)
    world.studies.recommend(EngineConfig.of({"max_num_seqs": 256}))
    assert "budget of 1 changes is used up" in await world.tick()
    assert world.launcher.engines == {PRODUCTION: CANDIDATE}


async def test_27_a_config_that_went_back_returns_only_after_the_cooldown_and_anew_proven(
    store: Store,
) -> None:
    world = ControllerWorld(store, policy=limited(cooldown_s=600.0))
    await recommended(world)
    await world.until(lambda: phase(world) is Phase.PROGRESSING)
    world.verdict = WORSE
    await world.until(lambda: phase(world) is Phase.ROLLED_BACK)
    first = world.rollout()
    world.order(CommandKind.TUNE)
    await world.until(lambda: len(world.studies.begun) == 2)
    world.studies.recommend(CANDIDATE)
    assert "was left less than 600 s ago" in await world.tick()
    world.clock.advance(600.0)
    await world.tick(5)
    assert world.rollout() == first
    world.order(CommandKind.TUNE)
    await world.until(lambda: len(world.studies.begun) == 3)
    world.studies.recommend(CANDIDATE)
    await world.tick()
    assert world.rollout().id != first.id
