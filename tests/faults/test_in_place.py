"""Rollouts without a lane for traffic, under it: real gateway, real controller."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from domain.engine import EngineConfig
from domain.rollout import Phase, Rollout
from tests.fakes.loopback import free_port
from tests.fakes.running_serinus import POLL_S, RunningSerinus

CANDIDATE = EngineConfig.of({"async_scheduling": True})


@pytest.fixture
def begun(tmp_path: Path) -> Iterator[Callable[[int], RunningSerinus]]:
    """A rollout beside so many replicas, under live traffic."""
    with ExitStack() as running:

        def begin(replicas: int) -> RunningSerinus:
            serinus = RunningSerinus(
                tmp_path,
                further_replicas=[{"port": free_port()} for _ in range(replicas - 1)],
                in_place=True,
                autonomy="approve",
                min_requests=100_000,
                engine_start_s=90.0,
            )
            running.callback(serinus.close)
            serinus.up()
            assert serinus.store
            serinus.serves()
            serinus.until(lambda uow: carriers(serinus) == replicas, "all replicas serve", 120)
            serinus.send_traffic()
            serinus.until_answered(50)
            serinus.begin_rollout(CANDIDATE)
            return serinus

        yield begin


def carriers(serinus: RunningSerinus) -> int:
    return sum(slot.admitted and slot.up for slot in serinus.split().slots)


def newest(serinus: RunningSerinus) -> Rollout:
    with serinus.store.view() as uow:
        return uow.rollouts.latest(1)[0]


def promoted(serinus: RunningSerinus) -> set[int]:
    """The numbers of replicas that carried on the way to the promotion."""
    seen: set[int] = set()
    end_s = time.monotonic() + 180
    while not newest(serinus).phase.ended:
        assert time.monotonic() < end_s, serinus.said()
        seen.add(carriers(serinus))
        assert serinus.weight() == 0
        assert serinus.engine("canary") is None
        time.sleep(POLL_S)
    rollout = newest(serinus)
    assert rollout.phase is Phase.PROMOTED, rollout.reason
    assert all("--async-scheduling" in engine.cmdline() for engine in serinus.engines())
    return seen


def test_of_two_replicas_one_is_out_at_a_time_and_no_request_fails(
    begun: Callable[[int], RunningSerinus],
) -> None:
    serinus = begun(2)
    assert promoted(serinus) == {1, 2}
    assert len(serinus.engines()) == 2
    traffic = serinus.end_traffic()
    assert len(traffic.records) > 100
    assert [record for record in traffic.records if record.failed] == []


def test_one_replica_is_down_while_it_restarts_and_its_streams_end_before(
    begun: Callable[[int], RunningSerinus],
) -> None:
    serinus = begun(1)
    assert promoted(serinus) == {0, 1}
    serinus.serves()
    serinus.until_answered(len(serinus.sent().records) + 100)
    traffic = serinus.end_traffic()
    failed = [record for record in traffic.records if record.failed]
    assert failed, "a downtime is one"
    assert all(record.first_s is None for record in failed), "no answer broke off"
    after = max(record.end_s for record in failed)
    assert any(record.sent_s > after and not record.failed for record in traffic.records)
