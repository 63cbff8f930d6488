"""A study that searches on two lanes, at several loads, for the lowest cost of a token."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.graph.rules import settled
from agent.store import UnitOfWork
from canary.gateways.haproxy_config import CONFIG_FILE
from domain.study import Objective, Study, Trial, TrialPurpose
from tests.fakes.loopback import free_port
from tests.fakes.running_serinus import RunningSerinus


@pytest.fixture
def serinus(tmp_path: Path) -> Iterator[RunningSerinus]:
    running = RunningSerinus(
        tmp_path,
        objective="cost",
        load_levels=[1, 2],
        search_lanes=[{"port": free_port()}],
        trial_budget=3,
        autonomy="recommend",
    )
    try:
        yield running
    finally:
        running.close()


def begun(uow: UnitOfWork) -> tuple[Trial, ...]:
    """The search trials of the study, once both are there."""
    study = uow.studies.running()
    trials = uow.trials.of(study.id) if study else ()
    found = tuple(t for t in trials if t.purpose is TrialPurpose.SEARCH)
    return found if len(found) == 2 else ()


def ended(uow: UnitOfWork) -> Study | None:
    return next((study for study in uow.studies.latest(1) if study.state.ended), None)


def test_two_lanes_search_at_once_and_one_judges_and_all_are_free_in_the_end(
    serinus: RunningSerinus,
) -> None:
    serinus.up()
    serinus.send_traffic()
    first, second = serinus.until(begun, "two search trials", 120)
    assert {first.lane, second.lane} == {"canary-0", "canary-1"}
    [lane] = serinus.settings["search_lanes"]
    gateway = (serinus.folder / "state" / "gateway" / CONFIG_FILE).read_text()
    assert str(serinus.settings["canary_port"]) in gateway
    assert str(lane["port"]) not in gateway, "no traffic reaches a search lane"
    study = serinus.until(ended, "the study ends", 240)
    assert study.objective is Objective.COST
    with serinus.store.view() as uow:
        trials = uow.trials.of(study.id)
    searched = [t for t in trials if t.purpose is TrialPurpose.SEARCH]
    # One that a busy machine cut off has run again.
    assert len({t.config for t in settled(searched)}) == len(settled(searched)) == 2
    one, other = searched[:2]
    assert one.ended_s is not None and other.ended_s is not None
    assert max(one.started_s, other.started_s) < min(one.ended_s, other.ended_s)
    assert {t.lane for t in trials if t.purpose is not TrialPurpose.SEARCH} == {"canary-0"}
    measured = [t.measurement for t in trials if t.measurement is not None]
    assert any(m.heavier is not None for m in measured)
    assert all(m.heavier is not None or m.heavier_end for m in measured)
    serinus.until(lambda uow: len(serinus.engines()) == 1, "only production's engine is left", 60)


def test_an_engine_on_a_lane_that_the_settings_no_longer_have_is_stopped(
    serinus: RunningSerinus,
) -> None:
    serinus.up()
    serinus.send_traffic()
    serinus.until(begun, "two search trials", 120)
    serinus.until(lambda uow: len(serinus.engines()) == 3, "both lanes have an engine", 60)
    serinus.kill()
    serinus.up(serinus.write("one-lane.toml", search_lanes=[]))
    serinus.until(ended, "the study ends", 240)
    serinus.until(lambda uow: len(serinus.engines()) == 1, "only production's engine is left", 60)
