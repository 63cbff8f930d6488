"""Engines that fail under live traffic: a candidate is rolled back, production is healed.

Real gateway and controller, generated traffic, simulated engines whose faults are switched on while
they serve.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from domain.engine import EngineConfig
from domain.rollout import Phase
from tests.fakes.running_serinus import RunningSerinus, until

CANDIDATE = EngineConfig.of({"async_scheduling": True})


@pytest.fixture
def serinus(tmp_path: Path) -> Iterator[RunningSerinus]:
    running = RunningSerinus(tmp_path, autonomy="approve", min_requests=100_000, stuck_s=4.0)
    running.up()
    running.serves()
    running.send_traffic()
    try:
        yield running
    finally:
        running.close()


@pytest.mark.parametrize("fault", ["http_500", "hang_mid_stream", "die_under_load"])
def test_candidate_that_fails_at_a_step_is_rolled_back(serinus: RunningSerinus, fault: str) -> None:
    serinus.begin_rollout(CANDIDATE)
    serinus.until(
        lambda uow: uow.rollouts.latest(1)[0].baking_since_s is not None, "the first step bakes"
    )
    production = serinus.engine("production")
    serinus.break_engine("canary", fault)
    serinus.until(lambda uow: uow.rollouts.latest(1)[0].phase.ended, "the rollout ends", 60)

    with serinus.store.view() as uow:
        rollout = uow.rollouts.latest(1)[0]
    assert rollout.phase is Phase.ROLLED_BACK, rollout.reason
    assert serinus.weight() == 0
    assert serinus.engines() == [production]
    traffic = serinus.end_traffic()
    broken = [record for record in traffic.records if record.failed]
    assert {record.arm for record in broken} <= {"candidate", None}
    assert len(broken) < len(traffic.records) / 4


def test_production_that_hangs_is_replaced(serinus: RunningSerinus) -> None:
    hanging = serinus.engine("production")
    serinus.break_engine("production", "hang_mid_stream")

    def replaced() -> bool:
        now = serinus.engine("production")
        return now is not None and now != hanging

    until(replaced, "another engine runs in production", 60, serinus.said)
    serinus.serves()
    assert "production-0" in serinus.said()
