"""The load client of a trial sends as the settings say, and writes to a file of that trial."""

from dataclasses import replace
from pathlib import Path

from agent.load_client import LoadClients
from canary.loadgen import Budget, Options
from tests.fakes import records


def clients(folder: Path | None, **changes: int) -> LoadClients:
    bounds = {"shards": 0, "most_requests": 0, "most_tokens": 0} | changes
    return LoadClients(request_timeout_s=30.0, folder=folder, **bounds)


def test_a_bound_of_nought_is_none_and_without_a_folder_nothing_is_written() -> None:
    trial = records.trial()
    assert clients(None).options(trial) == Options(request_timeout_s=30.0)
    bounded = clients(None, most_requests=60, most_tokens=9000).options(trial)
    assert bounded.budget == Budget(requests=60, tokens=9000)


def test_each_trial_has_a_file_of_its_own_that_another_try_begins_anew(tmp_path: Path) -> None:
    trial = records.trial()
    path = clients(tmp_path).options(trial).records_path
    other = clients(tmp_path).options(replace(trial, number=trial.number + 1)).records_path
    assert path == tmp_path / f"{trial.study_id}-{trial.number}.jsonl"
    assert other != path
    assert other is not None
    for each in (path, other):
        each.write_text("{}\n")
    clients(tmp_path).fresh(trial)
    assert not path.exists()
    assert other.exists()
