"""The pure parts of launchers: what an engine inherits, its gauges, its record on disk."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from domain.engine import EngineConfig
from domain.errors import BadInput, Permanent
from domain.fleet import Role, Slot
from domain.study import Failure, FailureKind
from serving.launchers.environment import engine_environment
from serving.launchers.probe import in_flight
from serving.launchers.records import Record, RecordStore

RECORD = Record(
    slot=Slot(name="canary-0", role=Role.CANARY, port=8201, gpu_ids=("1", "2")),
    config=EngineConfig.of({"max_num_seqs": 64, "async_scheduling": True, "OMP_NUM_THREADS": "1"}),
    model="tiny",
    token="t",
    started_s=12.5,
)


def test_an_engine_inherits_what_it_needs_and_no_secret() -> None:
    parent = {
        "PATH": "/bin",
        "HF_HOME": "/models",
        "HF_TOKEN": "secret",
        "VLLM_API_KEY": "secret",
        "VLLM_LOGGING_LEVEL": "DEBUG",
        "SERINUS_DATABASE_URL": "secret",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "CUDA_VISIBLE_DEVICES": "0",
    }
    given = engine_environment(parent, {"OMP_NUM_THREADS": "1"}, gpu_ids=("2", "3"), token="t")
    assert given == {
        "PATH": "/bin",
        "HF_HOME": "/models",
        "VLLM_LOGGING_LEVEL": "DEBUG",
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "2,3",
        "PYTHONUNBUFFERED": "1",
        "SPT_NOENV": "1",
        "SERINUS_ENGINE_TOKEN": "t",
    }


def test_a_slot_without_gpus_leaves_the_choice_to_the_parent() -> None:
    given = engine_environment({"CUDA_VISIBLE_DEVICES": "0"}, {}, gpu_ids=(), token="t")
    assert given["CUDA_VISIBLE_DEVICES"] == "0"


def test_running_and_waiting_requests_are_summed_over_engine_cores() -> None:
    metrics = (
        "# TYPE vllm:num_requests_running gauge\n"
        'vllm:num_requests_running{engine="0",model_name="m"} 3.0\n'
        'vllm:num_requests_running{engine="1",model_name="m"} 1.0\n'
        'vllm:num_requests_waiting{engine="0",model_name="m"} 2.0\n'
        'vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 7.0\n'
    )
    assert in_flight(metrics) == 6.0


@pytest.mark.parametrize(
    "metrics",
    [
        "",
        "vllm:num_requests_running 0.0\n",
        "vllm:num_requests_running NaN\nvllm:num_requests_waiting 0.0\n",
        "vllm:num_requests_running none\nvllm:num_requests_waiting 0.0\n",
    ],
)
def test_gauges_that_are_missing_or_no_numbers_are_no_zero(metrics: str) -> None:
    assert in_flight(metrics) is None


def test_a_record_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    RecordStore(tmp_path).write(RECORD)
    store = RecordStore(tmp_path)
    assert store.slots() == ("canary-0",)
    assert store.read("canary-0") == RECORD
    store.remove(RECORD)
    assert store.slots() == ()
    assert store.read("canary-0") is None


@pytest.mark.parametrize("kind", FailureKind)
def test_a_record_keeps_why_its_engine_is_dead(tmp_path: Path, kind: FailureKind) -> None:
    failure = Failure(kind=kind, sentence="It ended: so.", log_tail="the\nlast lines")
    RecordStore(tmp_path).write(replace(RECORD, dead=failure))
    found = RecordStore(tmp_path).read("canary-0")
    assert found is not None
    assert found.dead == failure


@pytest.mark.parametrize(
    ("text", "kind", "sentence"),
    [
        ("died: The engine failed: x", FailureKind.DIED, "The engine failed: x"),
        ("hung: No answer.", FailureKind.HUNG, "No answer."),
        ("gone: It is no more.", FailureKind.START, "It is no more."),
    ],
)
def test_a_record_of_version_0_1_0_tells_in_one_text_why_its_engine_is_dead(
    tmp_path: Path, text: str, kind: FailureKind, sentence: str
) -> None:
    assert read_with(tmp_path, dead=text) == replace(
        RECORD, dead=Failure(kind=kind, sentence=sentence)
    )
    assert read_with(tmp_path, dead="") == RECORD


def test_a_kind_of_a_later_version_is_one_without_a_name(tmp_path: Path) -> None:
    later = {"kind": "melted", "sentence": "It melted.", "log_tail": ""}
    found = read_with(tmp_path, dead=later, warm=True)
    assert found is not None
    assert found.dead == Failure(kind=FailureKind.DIED, sentence="It melted.")


def read_with(directory: Path, **fields: object) -> Record | None:
    """The record as read back after these fields of its file were written otherwise."""
    RecordStore(directory).write(RECORD)
    path = directory / "canary-0" / "replica.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))
    return RecordStore(directory).read("canary-0")


def test_a_late_ending_does_not_forget_the_engine_that_came_after(tmp_path: Path) -> None:
    """A controller that was stopped in mid-stop wakes after its successor started anew."""
    store = RecordStore(tmp_path)
    successor = replace(RECORD, token="another")
    store.write(successor)
    store.remove(RECORD)
    assert store.read("canary-0") == successor


def test_a_half_written_replacement_leaves_the_old_record(tmp_path: Path) -> None:
    RecordStore(tmp_path).write(RECORD)
    (tmp_path / "canary-0" / "replica.new").write_text('{"slot": "cana')
    assert RecordStore(tmp_path).read("canary-0") == RECORD


def test_a_record_that_somebody_else_wrote_says_how_to_mend_it(tmp_path: Path) -> None:
    RecordStore(tmp_path).write(RECORD)
    (tmp_path / "canary-0" / "replica.json").write_text("{}")
    with pytest.raises(Permanent, match="delete the file"):
        RecordStore(tmp_path).read("canary-0")


@pytest.mark.parametrize("name", ["../outside", ".hidden", "", "a/b"])
def test_a_slot_s_name_stays_inside_the_directory(tmp_path: Path, name: str) -> None:
    with pytest.raises(BadInput, match="cannot name a directory"):
        RecordStore(tmp_path).read(name)
