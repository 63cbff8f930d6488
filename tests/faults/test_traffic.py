"""What a controller trusted with production must do with traffic: behaviours 10 to 18.

The numbers in the names are those of ``docs/behaviours.md``, the list of what such a controller
must do. The real loop and store over engines and a gateway that tests steer, or a real HAProxy.
"""

from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from agent import streams
from agent.store import Store
from canary.gateways.haproxy import HAProxyGateway
from domain.approval import CommandKind
from domain.engine import EngineConfig
from domain.fleet import ReplicaState
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
from tests.fakes.gateway_stage import Stage, staged, until
from tests.fakes.http_engine import Client
from tests.fakes.launcher import Behaviour
from tests.fakes.shapes import shape

PRODUCTION, LANE = "production-0", CANARY.name
WORSE = Verdict(outcome=Outcome.FAIL, reason="The candidate is slower.")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with opened(tmp_path) as store:
        yield store


@pytest.fixture
def world(store: Store) -> ControllerWorld:
    return ControllerWorld(store)


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    async with staged(HAProxyGateway, tmp_path / "gateway") as stage:
        yield stage


async def recommended(world: ControllerWorld) -> None:
    await world.settle()
    await world.until(lambda: world.studies.begun)
    world.studies.recommend(CANDIDATE)


async def reached(world: ControllerWorld, phase: Phase) -> None:
    await world.until(lambda: (found := world.rollout()) and found.phase is phase)


async def carrying(world: ControllerWorld, slot: str) -> bool:
    traffic = (await world.split()).slot(slot)
    warm = any(r.slot == slot and r.state is ReplicaState.WARM for r in await seen(world))
    return traffic is not None and traffic.admitted and warm


async def seen(world: ControllerWorld):
    return await world.launcher.observe()


def asked(world: ControllerWorld, session: str | None = None) -> str | None:
    """The slot that answers one request."""
    slot = world.gateway.route(session)
    if slot is not None:
        world.gateway.end(slot)
    return slot


async def test_10_a_replica_gets_nothing_before_its_warm_up_however_healthy_it_looks(
    world: ControllerWorld,
) -> None:
    """The gateway finds it healthy all the while; vllm#30561."""
    world.launcher._behaviour = lambda slot, config: Behaviour(observes_until_warm=6)
    await world.gateway.start()
    started: set[str] = set()
    for _ in range(60):
        await world.tick()
        split = await world.split()
        starting = {r.slot for r in await seen(world) if r.state is ReplicaState.STARTING}
        started |= starting
        assert all(slot.up for slot in split.slots)
        assert not starting & {slot.slot for slot in split.slots if slot.admitted}
        assert {asked(world) for _ in range(20)}.isdisjoint(starting)
        if world.studies.under_way and world.rollout() is None:
            world.studies.recommend(CANDIDATE)
    assert started == {PRODUCTION, LANE}
    assert world.rollout().phase is Phase.PROMOTED


async def test_11_a_roll_back_moves_new_requests_and_ends_no_stream(stage: Stage) -> None:
    """istio#13908."""
    await stage.gateway.set_weight(100)
    kept = [Client(stage.port) for _ in range(4)]
    assert {(await client.ask("s")).arm for client in kept} == {"candidate"}
    stream = await stage.client.begin("s")
    assert stream.arm == "candidate"
    await stage.gateway.set_weight(0)
    await stage.gateway.drain(LANE)
    assert {(await client.ask("s")).arm for client in kept} == {"production"}
    assert (await stage.traffic(LANE)).in_flight == 1
    stage.candidate.release()
    assert await stage.client.rest(stream) == b"firstlast"
    for client in kept:
        await client.close()


@pytest.mark.parametrize(("longest_s", "allowed_s"), [(None, 30.0), (20.0, 30.0), (960.0, 960.0)])
async def test_12_an_engine_may_drain_for_longer_than_any_stream_seen(
    world: ControllerWorld, longest_s: float | None, allowed_s: float
) -> None:
    live = shape()
    longest_ms = None if longest_s is None else longest_s * 1000
    world.shape = replace(live, latencies=replace(live.latencies, e2el_longest_ms=longest_ms))
    await recommended(world)
    await reached(world, Phase.PROGRESSING)
    world.verdict = WORSE
    await reached(world, Phase.ROLLED_BACK)
    assert world.launcher.stops == [(LANE, allowed_s)]
    with world.store.view() as uow:
        assert streams.drain_s(uow, 30.0) == allowed_s


async def test_13_through_a_rollout_sessions_only_ever_join_and_the_share_is_as_asked(
    store: Store,
) -> None:
    """Also where the controller is another one in between; flagger#1532, flagger#1647."""
    steps = tuple(Step(weight=weight, bake_s=4.0) for weight in (5, 25, 50, 100))
    world = ControllerWorld(store, policy=replace(POLICY, rollout=replace(PLAN, steps=steps)))
    sessions = [f"session-{n}" for n in range(2000)]
    inside: set[str] = set()
    weights: list[int] = []
    await recommended(world)
    while world.rollout() is None or world.rollout().phase is not Phase.CONVERTING:
        await world.tick()
        weight = (await world.split()).weight
        if weights[-1:] == [weight]:
            continue
        weights.append(weight)
        now = {session for session in sessions if asked(world, session) == LANE}
        assert inside <= now
        assert abs(len(now) / len(sessions) * 100 - weight) < 2
        inside = now
        if weight == 25:
            await world.controller._tuning.close()
            world.clock.advance(LEASE_S)
            world.controller = world.another("second")
    assert weights == [0, 5, 25, 50, 100]


async def test_14_a_roll_back_waits_for_the_old_arm_before_it_gives_the_traffic_back(
    world: ControllerWorld,
) -> None:
    """argo-rollouts#3888."""
    await recommended(world)
    await world.until(lambda: (found := world.rollout()) and found.step == 1)
    await world.tick(2)
    world.launcher.kill(PRODUCTION)
    world.gateway.set_up(PRODUCTION, False)
    world.order(CommandKind.ROLLOUT_ROLLBACK)
    waited = 0
    while not world.rollout().phase.ended:
        await world.tick()
        if len(world.launcher.starts) == 3:
            world.gateway.set_up(PRODUCTION, True)
        if not await carrying(world, PRODUCTION):
            waited += 1
            assert (await world.split()).weight == 100
            assert asked(world) == LANE
    assert waited > 2
    assert world.rollout().phase is Phase.ROLLED_BACK
    assert world.launcher.starts[-1] == (PRODUCTION, BASELINE)
    assert {asked(world) for _ in range(20)} == {PRODUCTION}


@pytest.mark.parametrize("worse", [False, True])
async def test_15_the_old_arm_is_whole_until_the_new_one_is_proven(
    world: ControllerWorld, worse: bool
) -> None:
    """argo-rollouts#2050."""
    await recommended(world)
    if worse:
        await world.until(lambda: (found := world.rollout()) and found.step == 1)
        world.verdict = WORSE
    end = Phase.ROLLED_BACK if worse else Phase.CONVERTING
    while world.rollout() is None or world.rollout().phase is not end:
        await world.tick()
        assert PRODUCTION not in [slot for slot, _ in world.launcher.stops]
        assert await carrying(world, PRODUCTION) or world.rollout().phase is end
        assert world.launcher.engines[PRODUCTION] == BASELINE


async def test_16_an_abort_with_nothing_under_way_does_nothing(world: ControllerWorld) -> None:
    """argo-rollouts#1292."""
    await recommended(world)
    world.shape = shape(requests=1)
    await reached(world, Phase.PROMOTED)
    await world.tick(3)
    acts = world.launcher.starts, world.launcher.stops
    before = (await world.split(), [list(done) for done in acts], world.rollout())
    world.order(CommandKind.ROLLOUT_ABORT)
    await world.tick(5)
    assert (await world.split(), [list(done) for done in acts], world.rollout()) == before


async def test_17_another_baseline_in_the_settings_replaces_no_generation_in_mid_rollout(
    world: ControllerWorld,
) -> None:
    """A replica that dies meanwhile is started with what the rollout goes back to."""
    other = EngineConfig.of({"max_num_seqs": 7})
    await recommended(world)
    await reached(world, Phase.PROGRESSING)
    await world.controller._tuning.close()
    world.clock.advance(LEASE_S)
    world.controller = world.another("second", baseline=other)
    world.order(CommandKind.TUNE)
    await world.tick(2)
    assert world.launcher.engines == {PRODUCTION: BASELINE, LANE: CANDIDATE}
    world.launcher.kill(PRODUCTION)
    await world.until(lambda: len(world.launcher.starts) == 3, cycles=10)
    assert world.launcher.starts[-1] == (PRODUCTION, BASELINE)
    assert len(world.studies.begun) == 1
    await reached(world, Phase.PROMOTED)
    assert world.launcher.engines == {PRODUCTION: CANDIDATE}
    await world.until(lambda: len(world.studies.begun) == 2, cycles=5)
    assert world.studies.begun[-1].baseline == CANDIDATE


async def test_18_a_cancel_reaches_an_engine_that_is_being_drained(stage: Stage) -> None:
    await stage.gateway.set_weight(100)
    assert (await stage.client.begin("s")).arm == "candidate"
    await stage.gateway.set_weight(0)
    await stage.gateway.drain(LANE)
    await stage.client.close()

    async def over() -> bool:
        lane = await stage.traffic(LANE)
        return stage.candidate.cancelled == 1 and (lane.in_flight, lane.errors) == (0, 0)

    await until(over)
