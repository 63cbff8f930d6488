"""`serinus knobs sync` against a process that tells a vLLM's options."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agent.cli import app
from domain.engine import Place
from serving.flags import catalogue
from tests.fakes.vllm_python import Manner, VllmPython

UNKNOWN = {
    "flags": ["--shiny"],
    "group": "SchedulerConfig",
    "kind": "int",
    "choices": [],
    "default": None,
    "help": "Something new",
}


def vllm(folder: Path, *, without: str = "", version: str = "0.32.0") -> Path:
    """The script of a vLLM that has every knob of the catalogue but one, and one more flag."""
    knobs = catalogue("0.32").knobs
    flags = [knob for knob in knobs if knob.place is Place.FLAG and knob.name != without]
    told = {
        "version": version,
        "options": [*({**UNKNOWN, "flags": [knob.flag]} for knob in flags), UNKNOWN],
        "speculative": [
            {"name": knob.resolved.rpartition(".")[2], "choices": []} for knob in knobs
        ],
        "paths": [knob.resolved for knob in knobs],
        "variables": [knob.name for knob in knobs],
    }
    VllmPython(folder, Manner.TELL, told=told)
    script = folder / "vllm"
    script.write_text("#!/bin/sh\n", encoding="utf-8")
    script.chmod(0o700)
    return script


def sync(*arguments: object):
    return CliRunner().invoke(app, ["knobs", "sync", *map(str, arguments)])


def test_without_drift_it_says_so(tmp_path: Path) -> None:
    result = sync("--vllm", vllm(tmp_path))
    count = len(catalogue("0.32").knobs)
    assert result.output.splitlines() == [
        f"vLLM 0.32.0 against the {count} knobs of the catalogue for 0.32.",
        "No drift: all of them hold.",
        "New to the catalogue: 1 flags, and 0 values of knobs that it has; --all lists them.",
    ]
    assert result.exit_code == 0


def test_drift_is_told_and_is_the_exit_code(tmp_path: Path) -> None:
    result = sync("--vllm", vllm(tmp_path, without="max_num_seqs", version="0.33.1"))
    assert result.output.splitlines()[1:] == [
        "The catalogue is for another version: what follows is what changed since.",
        "max_num_seqs is gone: vllm serve has no --max-num-seqs.",
        "New to the catalogue: 1 flags, and 0 values of knobs that it has; --all lists them.",
    ]
    assert result.exit_code == 1


def test_all_lists_what_the_catalogue_does_not_name(tmp_path: Path) -> None:
    result = sync("--vllm", vllm(tmp_path), "--all")
    assert result.output.splitlines()[2:] == [
        "",
        "Not in the catalogue, SchedulerConfig:",
        "  --shiny  Something new",
    ]
    assert result.exit_code == 0


def test_json_holds_the_same(tmp_path: Path) -> None:
    result = sync("--vllm", vllm(tmp_path, without="max_num_seqs"), "--json", "--all")
    document = json.loads(result.output)
    assert (document["vllm"], document["catalogue"]) == ("0.32.0", "0.32")
    assert [(row["knob"], row["difference"]) for row in document["drift"]] == [
        ("max_num_seqs", "gone")
    ]
    assert [row["flag"] for row in document["unnamed"]] == ["--shiny"]
    assert result.exit_code == 1


@pytest.mark.parametrize(
    "arguments, words",
    [(("--version", "0.1"), "no knob catalogue for vLLM 0.1"), ((), "no executable")],
)
def test_bad_input_is_one_sentence(tmp_path: Path, arguments: tuple, words: str) -> None:
    result = sync("--vllm", tmp_path / "vllm", *arguments)
    assert words in str(result.exception)
