"""A production engine that fails under live traffic is healed.

Real gateway and controller, generated traffic, simulated engines whose faults are switched on while
they serve.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.running_serinus import RunningSerinus, until


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


def test_production_that_hangs_is_replaced(serinus: RunningSerinus) -> None:
    hanging = serinus.engine("production")
    serinus.break_engine("production", "hang_mid_stream")

    def replaced() -> bool:
        now = serinus.engine("production")
        return now is not None and now != hanging

    until(replaced, "another engine runs in production", 60, serinus.said)
    serinus.serves()
    assert "production-0" in serinus.said()
