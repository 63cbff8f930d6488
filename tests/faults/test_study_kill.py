"""A study that is killed at any point goes on where it was: no trial is measured twice, and what a
planner answered is not asked for again."""

import json
import subprocess
import sys
from pathlib import Path

from agent.store import Store
from domain.engine import EngineConfig
from domain.study import Objective
from tests.fakes.controller_world import opened
from tests.fakes.records import study

ROOT = Path(__file__).parents[2]
STUDY = study(objective=Objective.THROUGHPUT, baseline=EngineConfig(), trial_budget=2)


def stored(store: Store) -> None:
    with store.work() as uow:
        uow.studies.add(STUDY)
        uow.commit()
    store.close()


def test_killed_at_any_point_a_study_repeats_no_trial(tmp_path: Path) -> None:
    stored(opened(tmp_path))
    kills = tmp_path / "kills"
    kills.mkdir()
    program = subprocess.run(
        [sys.executable, "-m", "tests.fakes.killed_study", tmp_path / "serinus.db", kills],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert program.returncode == 0, program.stderr
    *killed, whole = map(json.loads, program.stdout.splitlines())

    assert len(killed) > 50
    assert whole["recommended"] == "speed=3"
    assert whole["others"] == []
    assert whole["diagnoses"] == ["", "Decoding limits it."]
    for said in killed:
        assert said["recommended"] == whole["recommended"]
        assert said["measured"] == whole["measured"]
        assert said["others"] in ([], ["interrupted"])
        assert said["asked"] <= whole["asked"] + 1
    repeated = [said for said in killed if said["asked"] > whole["asked"]]
    # Only a kill between the answer and its checkpoint loses it: after it, and before the writing.
    assert len(repeated) <= 2 * whole["asked"], len(repeated)
