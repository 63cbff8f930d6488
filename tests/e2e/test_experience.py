"""What an earlier study recommended is tried first by the next one, under a real controller."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from agent.store import UnitOfWork
from domain.engine import EngineConfig
from domain.study import Study, StudyState, Trial, TrialPurpose
from tests.fakes import records
from tests.fakes.running_serinus import RunningSerinus

FOUND = EngineConfig.of({"max_num_seqs": 64})
"""Nothing that the rulebook believes in for this traffic."""


@pytest.fixture
def serinus(tmp_path: Path) -> Iterator[RunningSerinus]:
    # Twice as long as elsewhere, so that two windows of the same traffic lie near each other.
    running = RunningSerinus(tmp_path, window_s=10.0)
    try:
        yield running
    finally:
        running.close()


def under_way(uow: UnitOfWork) -> Study | None:
    return uow.studies.running()


def test_an_earlier_recommendation_is_the_first_that_a_study_tries(
    serinus: RunningSerinus,
) -> None:
    serinus.up()
    serinus.send_traffic()
    begun = serinus.until(under_way, "a study begins")
    assert begun.engine.startswith("simulated engine of demo-hybrid, ")
    serinus.kill()
    with serinus.store.work() as uow:
        uow.studies.save(replace(begun, state=StudyState.NOTHING_BETTER))
        earlier = replace(
            begun, id="earlier", created_s=begun.created_s - 86_400, state=StudyState.RECOMMENDED
        )
        uow.studies.add(earlier)
        confirmed = records.trial(1, study_id="earlier", purpose=TrialPurpose.CONFIRM, config=FOUND)
        uow.trials.add(confirmed)
        uow.commit()

    serinus.up()

    def searched(uow: UnitOfWork) -> Trial | None:
        study = uow.studies.latest(1)[0]
        trials = uow.trials.of(study.id) if study.id != begun.id else ()
        return next((t for t in trials if t.purpose is TrialPurpose.SEARCH), None)

    first = serinus.until(searched, "the next study searches", 120)
    assert first.config == FOUND
    assert first.hypothesis.startswith("earlier studies: study earlier recommended it 1.0 days ago")
