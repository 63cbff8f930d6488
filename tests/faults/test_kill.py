"""Controllers that are killed: production must not notice, and their successors go on.

Guards the requirement that a controller killed by SIGKILL in any phase and started again finishes
the rollout or rolls it back, does no step twice, and leaves no engine behind.
"""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent.demo.ports import free_ports
from agent.store import UnitOfWork
from domain.engine import EngineConfig
from domain.rollout import Phase, Rollout
from tests.fakes.done_twice import done_twice
from tests.fakes.running_serinus import LEASE_S, RunningSerinus, until

CANDIDATE = EngineConfig.of({"async_scheduling": True})


@pytest.fixture
def serinus(tmp_path: Path) -> Iterator[RunningSerinus]:
    running = RunningSerinus(tmp_path)
    try:
        yield running
    finally:
        running.close()


def newest(uow: UnitOfWork) -> Rollout:
    return uow.rollouts.latest(1)[0]


def comes_to(phase: Phase, step: int = 0, baking: bool = False) -> Callable[[UnitOfWork], bool]:
    def look(uow: UnitOfWork) -> bool:
        rollout = next(iter(uow.rollouts.latest(1)), None)
        if rollout is None:
            return False
        assert not rollout.phase.ended, f"it ended before {phase.value}: {rollout.reason}"
        at = (rollout.phase, rollout.step) == (phase, step)
        return at and (rollout.baking_since_s is not None or not baking)

    return look


def study_runs(uow: UnitOfWork) -> bool:
    study = uow.studies.running()
    return study is not None and len(uow.trials.of(study.id)) > 0


def rollout_follows(serinus: RunningSerinus) -> Callable[[UnitOfWork], bool]:
    """Whether a rollout has begun. Trials of three seconds may show nothing on a busy machine:
    another study is then ordered, twice at most."""
    ordered = 0

    def look(uow: UnitOfWork) -> bool:
        nonlocal ordered
        studies = uow.studies.latest(9)
        if uow.rollouts.latest(1):
            return True
        if all(study.state.ended for study in studies) and len(studies) > ordered:
            assert ordered < 2, [study.conclusion for study in studies]
            ordered += 1
            assert serinus.command("tune").returncode == 0
        return False

    return look


def production_is_being_stopped(uow: UnitOfWork) -> bool:
    unfinished = [action.intent for action in uow.actions.unfinished()]
    return "Drain and stop the engine in production-0." in unfinished


def assert_nothing_was_done_twice(serinus: RunningSerinus, kills: list[float]) -> None:
    assert done_twice(serinus.events(), kills) == []


def assert_only_production_runs(serinus: RunningSerinus) -> None:
    assert serinus.weight() == 0
    (engine,) = serinus.engines()
    assert str(serinus.settings["production_port"]) in engine.cmdline()


def assert_down_leaves_nothing(serinus: RunningSerinus) -> None:
    down = serinus.command("down")
    assert (down.returncode, down.stderr) == (0, "")
    assert down.stdout == "Down: production-0 stopped; the gateway is stopped.\n"
    assert serinus.processes() == []


def test_killed_in_every_phase_a_rollout_is_finished_and_no_request_fails(
    serinus: RunningSerinus,
) -> None:
    moments = {
        "the candidate's start": comes_to(Phase.STARTING),
        "the first step": comes_to(Phase.PROGRESSING, 0, baking=True),
        "the last step": comes_to(Phase.PROGRESSING, 1, baking=True),
        "production's stop": production_is_being_stopped,
        "the return": comes_to(Phase.RETURNING, 1),
    }
    serinus.up()
    serinus.send_traffic()
    serinus.until(study_runs, "a trial runs")
    serinus.kill()
    kills = [time.time()]
    serinus.up()
    serinus.until(rollout_follows(serinus), "the study goes on to a rollout", 240)
    for moment, reached in moments.items():
        serinus.until(reached, f"the controller comes to {moment}")
        serinus.kill()
        kills.append(time.time())
        serinus.up()
    serinus.until(lambda uow: newest(uow).phase.ended, "the rollout ends")

    with serinus.store.view() as uow:
        assert newest(uow).phase is Phase.PROMOTED, newest(uow).reason
    traffic = serinus.end_traffic()
    assert len(traffic.records) > 300
    assert [record for record in traffic.records if record.failed] == []
    assert_only_production_runs(serinus)
    assert_nothing_was_done_twice(serinus, kills)
    serinus.kill()
    assert_down_leaves_nothing(serinus)


def test_killed_while_it_rolls_back_the_baseline_is_restored(serinus: RunningSerinus) -> None:
    serinus.up()
    serinus.serves()
    serinus.begin_rollout(CANDIDATE)
    serinus.until(comes_to(Phase.PROGRESSING, 0, baking=True), "the first step")
    assert serinus.command("rollout", "rollback").returncode == 0
    serinus.until(comes_to(Phase.ROLLING_BACK), "rolling back")
    serinus.kill()
    kills = [time.time()]
    serinus.up()
    serinus.until(lambda uow: newest(uow).phase.ended, "the rollout ends")

    with serinus.store.view() as uow:
        rollout = newest(uow)
    assert rollout.phase is Phase.ROLLED_BACK
    assert rollout.reason.endswith("asked for it.")
    assert_only_production_runs(serinus)
    assert "--async-scheduling" not in serinus.engines()[0].cmdline()
    assert_nothing_was_done_twice(serinus, kills)


def test_of_two_controllers_one_acts_and_the_other_takes_over(serinus: RunningSerinus) -> None:
    first = serinus.up()
    serinus.serves()
    serinus.up(serinus.write("second.toml", api_port=free_ports()[1]))
    until(lambda: "watching" in serinus.heard(1), "the second watches", 60, serinus.said)
    serinus.begin_rollout(CANDIDATE)
    until(lambda: len(serinus.engines()) == 2, "the candidate runs", 20, serinus.said)
    engines = serinus.engines()
    assert "Rollout" not in serinus.heard(1)

    serinus.kill(first)
    acts = "the second acts within the lease's time"
    until(lambda: "Rollout" in serinus.heard(1), acts, LEASE_S + 4, serinus.said)
    serinus.until(comes_to(Phase.PROGRESSING), "the second goes on")
    assert serinus.engines() == engines
