"""A study beside two production replicas rehearses what one of them gets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from agent import study_report
from agent.store import UnitOfWork
from canary.gateways.haproxy_config import CONFIG_FILE
from domain.study import Measurement, Study
from tests.fakes.loopback import free_port
from tests.fakes.running_serinus import RunningSerinus


@pytest.fixture
def serinus(tmp_path: Path) -> Iterator[RunningSerinus]:
    running = RunningSerinus(
        tmp_path,
        further_replicas=[{"port": free_port()}],
        autonomy="recommend",
        min_requests=30,
    )
    try:
        yield running
    finally:
        running.close()


def study_of(uow: UnitOfWork) -> Study | None:
    return next(iter(uow.studies.latest(1)), None)


def first_measured(uow: UnitOfWork) -> Measurement | None:
    study = study_of(uow)
    trials = uow.trials.of(study.id) if study else ()
    return next((t.measurement for t in trials if t.measurement is not None), None)


def test_the_load_of_a_study_is_half_of_what_two_replicas_get(serinus: RunningSerinus) -> None:
    serinus.up()
    serinus.send_traffic()
    measured = serinus.until(first_measured, "the baseline is measured", 120)
    with serinus.store.view() as uow:
        study = study_of(uow)
    assert study is not None and study.replicas == 2
    whole = study.shape.concurrency
    assert measured.streams == max(1, round(whole / 2)) < round(whole)
    carried = {slot.slot: slot.requests for slot in serinus.split().slots}
    assert carried["production-0"] > 0 and carried["production-1"] > 0
    gateway = (serinus.folder / "state" / "gateway" / CONFIG_FILE).read_text()
    assert str(serinus.settings["further_replicas"][0]["port"]) in gateway
    assert "what one of 2 replicas gets" in serinus.said()
    url = f"sqlite:///{serinus.settings['state_dir']}/serinus.db"
    report = study_report.text(url, study.id, as_json=False, simulated=True)
    assert "Production had 2 replicas, and trials rehearse what one of them got" in report
    serinus.kill()
    down = serinus.command("down")
    assert "production-0, production-1" in down.stdout, down.stderr
    assert serinus.engines() == []
