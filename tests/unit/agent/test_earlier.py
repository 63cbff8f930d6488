"""Which configs earlier studies left behind, read from a real store."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from agent.earlier import EarlierStudies
from agent.leadership import Leadership
from agent.planner.experience import AGE_S, Found
from agent.store import Store
from domain.engine import EngineConfig
from domain.rollout import Phase
from domain.study import StudyState, TrialPurpose
from tests.fakes import records
from tests.fakes.controller_world import opened

LOST, WON = (EngineConfig.of({"max_num_seqs": seats}) for seats in (64, 512))
NOW = records.study(id="now", created_s=AGE_S + 5000.0)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with opened(tmp_path) as store:
        yield store


def keep(
    store: Store,
    number: int,
    state: StudyState = StudyState.RECOMMENDED,
    phase: Phase | None = None,
    created_s: float | None = None,
) -> None:
    """A study that confirmed two configs, of which the last won, and perhaps its rollout."""
    study_id = f"study-{number}"
    began_s = NOW.created_s - 1000.0 + number if created_s is None else created_s
    with store.work() as uow:
        uow.studies.add(records.study(id=study_id, created_s=began_s, state=state))
        for place, (purpose, config) in enumerate(
            [
                (TrialPurpose.SEARCH, LOST),
                (TrialPurpose.CONFIRM, LOST),
                (TrialPurpose.CONFIRM, WON),
                (TrialPurpose.CONFIRM_BASELINE, EngineConfig()),
            ]
        ):
            uow.trials.add(
                records.trial(
                    place,
                    id=f"{study_id}-{place}",
                    study_id=study_id,
                    purpose=purpose,
                    config=config,
                )
            )
        if phase is not None:
            rollout = records.rollout(
                id=f"rollout-{number}",
                study_id=study_id,
                created_s=began_s,
                candidate=WON,
                phase=phase,
            )
            uow.rollouts.add(rollout)
        uow.commit()


def found(store: Store) -> list[tuple[str, EngineConfig]]:
    earlier = EarlierStudies(Leadership(store, holder="here", ttl_s=6.0))(NOW)
    assert all(isinstance(each, Found) for each in earlier)
    return [(each.study.id, each.config) for each in earlier]


def test_the_config_that_was_proven_last_is_what_a_study_recommended(store: Store) -> None:
    keep(store, 1)
    keep(store, 2, phase=Phase.PROMOTED)
    keep(store, 3, state=StudyState.NOTHING_BETTER)
    assert found(store) == [("study-2", WON), ("study-1", WON)]


def test_studies_of_long_ago_are_left_alone(store: Store) -> None:
    keep(store, 1, created_s=NOW.created_s - AGE_S - 1.0)
    assert found(store) == []


def test_a_study_of_another_version_hides_no_other_and_fails_nothing(
    store: Store, tmp_path: Path
) -> None:
    keep(store, 1)
    keep(store, 2)
    keep(store, 3)
    with closing(sqlite3.connect(tmp_path / "serinus.db")) as rows:
        rows.execute(
            "update studies set document = json_set(document, '$.objective', 'beauty')"
            " where id = 'study-2'"
        )
        rows.execute(
            "update trials set document = json_set(document, '$.hypothesis', json('[]'))"
            " where study_id = 'study-3'"
        )
        rows.commit()
    assert found(store) == [("study-1", WON)]


def test_what_production_refuted_last_is_not_found_again(store: Store) -> None:
    keep(store, 1, phase=Phase.ROLLED_BACK)
    assert found(store) == []
    keep(store, 2, phase=Phase.PROMOTED)
    assert found(store) == [("study-2", WON), ("study-1", WON)]
