"""Rollouts of three production replicas under live traffic: real gateway, real controller."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from domain.engine import EngineConfig
from domain.fleet import Role, Split
from domain.rollout import Phase, Rollout
from tests.fakes.loopback import free_port
from tests.fakes.running_serinus import POLL_S, RunningSerinus

CANDIDATE = EngineConfig.of({"async_scheduling": True})
REPLICAS = 3


@pytest.fixture
def serinus(tmp_path: Path) -> Iterator[RunningSerinus]:
    running = RunningSerinus(
        tmp_path,
        further_replicas=[{"port": free_port()} for _ in range(REPLICAS - 1)],
        autonomy="approve",
        min_requests=100_000,
        engine_start_s=90.0,
    )
    running.up()
    try:
        yield running
    finally:
        running.close()


def all_serve(serinus: RunningSerinus) -> None:
    assert serinus.store
    serinus.serves()
    serinus.until(lambda uow: len(carriers(serinus.split())) == REPLICAS, "all replicas serve")


def carriers(split: Split) -> list[str]:
    """The slots to which new requests can go."""
    return [slot.slot for slot in split.slots if slot.admitted and slot.up]


def newest(serinus: RunningSerinus) -> Rollout:
    with serinus.store.view() as uow:
        return uow.rollouts.latest(1)[0]


def comes_to(serinus: RunningSerinus, phase: Phase) -> None:
    def look() -> bool:
        rollout = newest(serinus)
        assert not rollout.phase.ended, f"it ended before {phase.value}: {rollout.reason}"
        return rollout.phase is phase

    serinus.until(lambda uow: look(), f"the rollout comes to {phase.value}", 120)


def ports(serinus: RunningSerinus) -> list[int]:
    further = serinus.settings["further_replicas"]
    return [serinus.settings["production_port"], *(replica["port"] for replica in further)]


def assert_all_of_production_runs(serinus: RunningSerinus, flag: bool) -> None:
    engines = [serinus.engine_on(port) for port in ports(serinus)]
    assert all(engine is not None for engine in engines)
    assert [("--async-scheduling" in engine.cmdline()) for engine in engines] == [flag] * REPLICAS


def test_all_replicas_are_converted_one_by_one_and_the_fleet_carries_the_demand_all_along(
    serinus: RunningSerinus,
) -> None:
    all_serve(serinus)
    serinus.send_traffic()
    serinus.until_answered(50)
    serinus.begin_rollout(CANDIDATE)
    comes_to(serinus, Phase.CONVERTING)
    most = serinus.weight()
    fewest: set[int] = set()
    out: set[str] = set()
    while newest(serinus).phase is Phase.CONVERTING:
        split = serinus.split()
        fewest.add(len(carriers(split)))
        out |= {s.slot for s in split.slots if s.role is Role.PRODUCTION and not s.admitted}
        assert split.weight in (most, 0)
        time.sleep(POLL_S)
    serinus.until(lambda uow: newest(serinus).phase.ended, "the rollout ends", 60)

    rollout = newest(serinus)
    assert rollout.phase is Phase.PROMOTED, rollout.reason
    assert (most, rollout.plan.replicas) == (33, REPLICAS)
    assert min(fewest) == REPLICAS, "a replica is out while the lane and all others carry"
    assert out == {f"production-{n}" for n in range(REPLICAS)}
    assert_all_of_production_runs(serinus, True)
    assert serinus.weight() == 0
    traffic = serinus.end_traffic()
    assert len(traffic.records) > 300
    assert [record for record in traffic.records if record.failed] == []


def test_a_replica_that_is_killed_in_a_conversion_breaks_its_own_streams_alone(
    serinus: RunningSerinus,
) -> None:
    all_serve(serinus)
    serinus.send_traffic()
    serinus.until_answered(50)
    serinus.begin_rollout(CANDIDATE)
    comes_to(serinus, Phase.CONVERTING)
    victim = "production-2"
    held = serinus.split().slot(victim)
    assert held is not None and victim in carriers(serinus.split())
    engine = serinus.engine_on(ports(serinus)[2])
    assert engine is not None
    engine.kill()
    serinus.until(lambda uow: newest(serinus).phase.ended, "the rollout ends", 120)

    rollout = newest(serinus)
    assert rollout.phase in (Phase.PROMOTED, Phase.ROLLED_BACK), rollout.reason
    assert_all_of_production_runs(serinus, rollout.phase is Phase.PROMOTED)
    assert serinus.weight() == 0
    traffic = serinus.end_traffic()
    broken = {slot.slot: slot.errors for slot in serinus.split().slots if slot.errors}
    assert set(broken) <= {victim}, broken
    failed = [record for record in traffic.records if record.failed]
    assert {record.arm for record in failed} <= {"production", None}
    assert len(failed) <= len(traffic.records) / 10
