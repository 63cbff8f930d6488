"""`serinus rollout show` tells a rollout from the store alone, and judges its verdicts anew."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from agent.rollout_told import text
from agent.status import told
from agent.store import migrate, open_store
from domain.errors import BadInput, NotFound
from domain.verdict import Outcome, Verdict
from tests.fakes import records
from tests.unit.canary.test_judge_live import arm, judged


def stored(folder: Path, *verdicts: Verdict, **changes: object) -> str:
    """A store with one rollout, ``rollout-1``, and these verdicts on it."""
    url = f"sqlite:///{folder / 'serinus.db'}"
    migrate(url)
    with open_store(url) as store, store.work() as uow:
        uow.studies.add(records.study())
        rollout = records.rollout(id="rollout-1", **changes)
        uow.rollouts.add(rollout)
        for at_s, verdict in enumerate(verdicts, start=2000):
            uow.verdicts.add(rollout.id, float(at_s), verdict)
        uow.commit()
    return url


def test_the_latest_rollout_is_told_with_every_verdict(tmp_path: Path) -> None:
    given = judged(arm(1), arm(2, n=2000)), judged(arm(1, errors=20), arm(2, n=2000))
    shown = text(stored(tmp_path, *given), "", as_json=False)
    assert shown.startswith("Rollout rollout-1 of config ")
    for verdict in given:
        assert f" {verdict.outcome.value}: {verdict.reason}\n" in shown
    assert "\n2 of 2 verdicts with evidence of live traffic come out the same" in shown


def test_a_verdict_that_its_evidence_does_not_give_is_found_out(tmp_path: Path) -> None:
    given = judged(arm(1, errors=20), arm(2, n=2000))
    forged = replace(given, outcome=Outcome.PASS)
    assert "1 of 2 verdicts" in text(stored(tmp_path, given, forged), "", as_json=False)


def test_json_has_the_rollout_and_its_verdicts(tmp_path: Path) -> None:
    given = judged(arm(1), arm(2, n=2000))
    shown = json.loads(text(stored(tmp_path, given), "rollout-1", as_json=True))
    assert shown["rollout"]["id"] == "rollout-1"
    assert [verdict["outcome"] for verdict in shown["verdicts"]] == ["pass"]


def test_one_that_nobody_judged_says_so(tmp_path: Path) -> None:
    assert text(stored(tmp_path), "", as_json=False).endswith("Nothing was judged so far.")


def test_one_in_place_has_no_steps_and_says_so(tmp_path: Path) -> None:
    plan = replace(records.rollout().plan, steps=(), in_place=True, replicas=3)
    url = stored(tmp_path, plan=plan)
    shown = text(url, "", as_json=False)
    assert "In place: production restarts, one of 3 replicas at a time, without a lane." in shown
    detail = json.loads(text(url, "", as_json=True))["rollout"]
    assert (detail["steps"], detail["in_place"], detail["replicas"]) == ([], True, 3)
    assert "waiting_approval, in place." in told(url)


def test_an_unknown_one_is_refused_with_those_that_there_are(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="the latest are rollout-1"):
        text(stored(tmp_path), "none", as_json=False)


def test_a_store_without_any_says_so(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'serinus.db'}"
    with pytest.raises(BadInput, match="no store at"):
        text(url, "", as_json=False)
    migrate(url)
    with pytest.raises(NotFound, match="no rollout yet"):
        text(url, "", as_json=False)
