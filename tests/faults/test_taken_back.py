"""A promoted config is taken back under live traffic, while a study holds the canary lane.

Guards the requirement that going back after a promotion costs no request, whether or not the
controller is killed while production is restarted.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.store import UnitOfWork
from domain.engine import EngineConfig
from domain.rollout import Phase
from domain.study import StudyState
from tests.fakes.running_serinus import RunningSerinus

CANDIDATE = EngineConfig.of({"async_scheduling": True})
FLAG = "--async-scheduling"


@pytest.fixture
def serinus(tmp_path: Path) -> Iterator[RunningSerinus]:
    running = RunningSerinus(tmp_path)
    try:
        yield running
    finally:
        running.close()


def phase(uow: UnitOfWork) -> Phase:
    return uow.rollouts.get("given").phase


def study_rehearses(uow: UnitOfWork) -> bool:
    study = uow.studies.running()
    return study is not None and len(uow.trials.of(study.id)) > 0


def production_is_being_stopped(uow: UnitOfWork) -> bool:
    unfinished = [action.intent for action in uow.actions.unfinished()]
    going_back = phase(uow) is Phase.ROLLING_BACK
    return going_back and "Drain and stop the engine in production-0." in unfinished


@pytest.mark.parametrize("killed", [False, True])
def test_no_request_fails_while_a_promoted_config_is_taken_back(
    serinus: RunningSerinus, killed: bool
) -> None:
    serinus.up()
    serinus.serves()
    serinus.begin_rollout(CANDIDATE)
    serinus.send_traffic()
    serinus.until(lambda uow: phase(uow) is Phase.PROMOTED, "it is promoted", 180)
    (promoted,) = serinus.engines()
    assert FLAG in promoted.cmdline()
    assert serinus.command("tune").returncode == 0
    serinus.until(study_rehearses, "a study rehearses on the lane", 120)

    ordered = serinus.command("rollout", "rollback")
    assert (ordered.returncode, ordered.stdout) == (
        0,
        f"rollout rollback of given (config {CANDIDATE.digest}, promoted) ordered; the loop takes "
        "it next.\n",
    )
    if killed:
        serinus.until(production_is_being_stopped, "production is being stopped", 120)
        serinus.kill()
        serinus.up()
    serinus.until(lambda uow: phase(uow) is Phase.ROLLED_BACK, "it is rolled back", 180)

    traffic = serinus.end_traffic()
    assert len(traffic.records) > 100
    assert [record for record in traffic.records if record.failed] == []
    assert serinus.weight() == 0
    production = str(serinus.settings["production_port"])
    (home,) = [engine for engine in serinus.engines() if production in engine.cmdline()]
    assert FLAG not in home.cmdline()
    with serinus.store.view() as uow:
        studies = uow.studies.latest(9)
    (ended,) = [study for study in studies if study.baseline == CANDIDATE]
    assert ended.state is StudyState.FAILED
    assert "Rollout given takes the lane" in ended.conclusion
