"""Which Python a vLLM executable runs under."""

from pathlib import Path

import pytest

from domain.errors import BadInput
from serving.vllm_process import python_of


def executable(path: Path, first_line: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{first_line}\nimport sys\n", encoding="utf-8")
    path.chmod(0o700)
    return path


def test_the_first_line_names_it(tmp_path):
    python = executable(tmp_path / "elsewhere/python3.11", "")
    script = executable(tmp_path / "bin/vllm", f"#!{python}")
    assert python_of(script) == python


@pytest.mark.parametrize("first_line", ["#!/usr/bin/env python3", "#!/bin/sh", "#!/no/python", ""])
def test_otherwise_it_lies_beside_the_script(tmp_path, first_line):
    script = executable(tmp_path / "bin/vllm", first_line)
    python = executable(tmp_path / "bin/python", "")
    assert python_of(script) == python


def test_or_beside_what_a_link_leads_to(tmp_path):
    script = executable(tmp_path / "env/bin/vllm", "#!/bin/sh")
    python = executable(tmp_path / "env/bin/python", "")
    link = tmp_path / "vllm"
    link.symlink_to(script)
    assert python_of(link) == python


def test_one_that_shows_none_is_refused(tmp_path):
    script = executable(tmp_path / "bin/vllm", "#!/bin/sh")
    with pytest.raises(BadInput, match="bin/vllm shows no Python that could be asked"):
        python_of(script)


def test_one_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(BadInput, match="no executable"):
        python_of(tmp_path / "vllm")
