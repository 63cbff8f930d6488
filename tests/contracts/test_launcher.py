"""What every Launcher promises, real and fake alike."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Protocol

import pytest

from domain.engine import EngineConfig
from domain.errors import BadInput, Conflict, Permanent, Temporary
from domain.fleet import Replica, ReplicaState, Role, Slot
from domain.ports import Launcher
from domain.study import FailureKind
from serving.launchers.process import ProcessLauncher
from tests.fakes.clock import SystemClock
from tests.fakes.launcher import Behaviour, FakeLauncher
from tests.fakes.loopback import free_port

ENGINE = Path(__file__).parents[1] / "fakes" / "engine_script.py"
ONE = EngineConfig.of({"variant": "one"})
OTHER = EngineConfig.of({"variant": "other"})
DEADLINE_S = 20.0


class World(Protocol):
    """One launcher and the means to disturb it from outside."""

    launcher: Launcher
    busy: EngineConfig

    async def restart_controller(self) -> None: ...

    def lose_executable(self) -> None: ...

    def kill(self, replica: Replica) -> None: ...


class FakeWorld:
    busy = EngineConfig.of({"variant": "busy"})

    def __init__(self) -> None:
        self._refusal: BadInput | None = None
        self.launcher = FakeLauncher(behaviour=self._behaviour)

    def _behaviour(self, slot: Slot, config: EngineConfig) -> Behaviour:
        return Behaviour(refusal=self._refusal, busy=config == self.busy, log="ready")

    async def restart_controller(self) -> None:
        self.launcher = self.launcher.restarted()

    def lose_executable(self) -> None:
        self._refusal = BadInput("The engine's executable is gone.")

    def kill(self, replica: Replica) -> None:
        self.launcher.kill(replica.slot)


class ProcessWorld:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        (directory / "busy").touch()
        self.busy = EngineConfig.of({"busy-while": str(directory / "busy")})
        self._executable = (sys.executable, str(ENGINE))
        self.launcher = self._new()

    def _new(self) -> ProcessLauncher:
        return ProcessLauncher(
            directory=self._directory / "engines",
            executable=self._executable,
            model="tiny",
            served_model_name="tiny",
            render=lambda config: (tuple(f"--{k}={v}" for k, v in config.values), {}),
            extra_args=("--say=ready",),
            start_timeout_s=60.0,
            clock=SystemClock(),
        )

    async def restart_controller(self) -> None:
        await self.launcher.aclose()
        self.launcher = self._new()

    def lose_executable(self) -> None:
        self._executable = (str(self._directory / "no-such-engine"),)
        self.launcher = self._new()

    def kill(self, replica: Replica) -> None:
        assert replica.pid is not None
        os.kill(replica.pid, signal.SIGKILL)


@pytest.fixture(params=["fake", "process"])
def slots(request: pytest.FixtureRequest) -> tuple[Slot, Slot]:
    ports = (9001, 9002) if request.param == "fake" else (free_port(), free_port())
    return (
        Slot(name="production-0", role=Role.PRODUCTION, port=ports[0]),
        Slot(name="canary-0", role=Role.CANARY, port=ports[1]),
    )


@pytest.fixture
async def world(
    request: pytest.FixtureRequest, slots: tuple[Slot, Slot], tmp_path: Path
) -> AsyncIterator[World]:
    if request.node.callspec.params["slots"] == "fake":
        yield FakeWorld()
        return
    world = ProcessWorld(tmp_path)
    yield world
    for slot in slots:
        await world.launcher.stop(slot, 0.0)
    await world.launcher.aclose()


async def seen(world: World, slot: Slot) -> Replica | None:
    return next((r for r in await world.launcher.observe() if r.slot == slot.name), None)


async def until(
    world: World, slot: Slot, wanted: Callable[[Replica | None], bool]
) -> Replica | None:
    async with asyncio.timeout(DEADLINE_S):
        while not wanted(replica := await seen(world, slot)):
            await asyncio.sleep(0.05)
    return replica


async def warm(world: World, slot: Slot, config: EngineConfig) -> Replica:
    await world.launcher.start(slot, config)
    replica = await until(world, slot, lambda r: r is not None and r.state is ReplicaState.WARM)
    assert replica is not None
    return replica


async def test_an_empty_fleet_has_no_replica_and_no_log(
    world: World, slots: tuple[Slot, Slot]
) -> None:
    assert await world.launcher.observe() == ()
    assert world.launcher.log_tail(slots[0]) == ""


async def test_an_engine_is_starting_before_it_is_warm(
    world: World, slots: tuple[Slot, Slot]
) -> None:
    await world.launcher.start(slots[0], ONE)
    first = await seen(world, slots[0])
    assert first is not None
    assert (first.state, first.config) == (ReplicaState.STARTING, ONE)
    replica = await until(
        world, slots[0], lambda r: r is not None and r.state is not ReplicaState.STARTING
    )
    assert replica is not None
    assert (replica.state, replica.started_s) == (ReplicaState.WARM, first.started_s)
    assert world.launcher.log_tail(slots[0]).startswith("ready")


async def test_starting_the_same_config_again_keeps_the_engine(
    world: World, slots: tuple[Slot, Slot]
) -> None:
    before = await warm(world, slots[0], ONE)
    await world.launcher.start(slots[0], ONE)
    assert await seen(world, slots[0]) == before


async def test_another_config_in_the_slot_is_a_conflict(
    world: World, slots: tuple[Slot, Slot]
) -> None:
    await world.launcher.start(slots[0], ONE)
    with pytest.raises(Conflict):
        await world.launcher.start(slots[0], OTHER)
    replica = await seen(world, slots[0])
    assert replica is not None
    assert replica.config == ONE


async def test_two_slots_hold_their_own_engines(world: World, slots: tuple[Slot, Slot]) -> None:
    await world.launcher.start(slots[0], ONE)
    await world.launcher.start(slots[1], OTHER)
    configs = {replica.slot: replica.config for replica in await world.launcher.observe()}
    assert configs == {slots[0].name: ONE, slots[1].name: OTHER}
    await world.launcher.stop(slots[0], 0.0)
    assert [replica.slot for replica in await world.launcher.observe()] == [slots[1].name]


async def test_a_missing_executable_is_permanent_and_leaves_nothing(
    world: World, slots: tuple[Slot, Slot]
) -> None:
    world.lose_executable()
    with pytest.raises(Permanent):
        await world.launcher.start(slots[0], ONE)
    assert await world.launcher.observe() == ()


async def test_a_stop_empties_the_slot_and_stopping_an_empty_one_does_nothing(
    world: World, slots: tuple[Slot, Slot]
) -> None:
    await warm(world, slots[0], ONE)
    await world.launcher.stop(slots[0], 5.0)
    assert await world.launcher.observe() == ()
    await world.launcher.stop(slots[0], 5.0)
    await world.launcher.start(slots[0], OTHER)
    replica = await seen(world, slots[0])
    assert replica is not None
    assert replica.config == OTHER


async def test_a_stop_under_way_shows_and_bars_a_start(
    world: World, slots: tuple[Slot, Slot]
) -> None:
    await warm(world, slots[0], world.busy)
    stop: Awaitable[None] = asyncio.ensure_future(world.launcher.stop(slots[0], 0.5))
    await asyncio.sleep(0)
    replica = await seen(world, slots[0])
    assert replica is not None
    assert replica.state is ReplicaState.STOPPING
    with pytest.raises(Temporary):
        await world.launcher.start(slots[0], world.busy)
    await stop
    assert await world.launcher.observe() == ()


async def test_a_dead_engine_is_reported_with_its_cause_and_needs_a_stop(
    world: World, slots: tuple[Slot, Slot]
) -> None:
    replica = await warm(world, slots[0], ONE)
    world.kill(replica)
    dead = await until(world, slots[0], lambda r: r is not None and r.state is ReplicaState.DEAD)
    assert dead is not None
    assert dead.failure is not None
    assert dead.failure.kind is FailureKind.KILLED
    assert dead.detail == dead.failure.sentence
    with pytest.raises(Conflict):
        await world.launcher.start(slots[0], ONE)
    await world.launcher.stop(slots[0], 5.0)
    again = await warm(world, slots[0], ONE)
    assert again.pid != replica.pid


async def test_engines_outlive_the_controller_and_stay_its_own(
    world: World, slots: tuple[Slot, Slot]
) -> None:
    before = await warm(world, slots[0], ONE)
    await world.restart_controller()
    assert await seen(world, slots[0]) == before
    await world.launcher.start(slots[0], ONE)
    assert await seen(world, slots[0]) == before
    with pytest.raises(Conflict):
        await world.launcher.start(slots[0], OTHER)
    await world.launcher.stop(slots[0], 5.0)
    assert await world.launcher.observe() == ()
