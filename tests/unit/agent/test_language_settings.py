"""What the settings make of the language model: its key, and what is told of its address."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agent import language_model
from agent.settings import Settings, load
from domain.errors import BadInput
from tests.fakes.clock import FakeClock


def settings(**values: Any) -> Settings:
    base = {"planner": "model", "model_base_url": "http://h/v1", "model_name": "m"}
    return Settings(**base | values)


def test_the_key_is_given_or_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text("sk-from-a-file\n", encoding="utf-8")
    assert language_model.api_key(settings()) == ""
    assert language_model.api_key(settings(model_api_key=" sk-given\n")) == "sk-given"
    assert language_model.api_key(settings(model_api_key_file=path)) == "sk-from-a-file"


@pytest.mark.parametrize("held", [b"", b" \n", b"sk-one\nsk-two\n", "sk-ключ".encode(), b"\xff"])
def test_a_file_without_one_key_is_refused_without_showing_it(tmp_path: Path, held: bytes) -> None:
    path = tmp_path / "key"
    path.write_bytes(held)
    with pytest.raises(BadInput, match="of model_api_key_file") as refused:
        language_model.endpoint(settings(model_api_key_file=path), FakeClock())
    assert "sk-" not in str(refused.value).replace(str(tmp_path), "")


def test_a_file_that_is_missing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="No such file"):
        language_model.api_key(settings(model_api_key_file=tmp_path / "none"))


def test_two_keys_are_one_too_many(tmp_path: Path) -> None:
    path = tmp_path / "serinus.toml"
    path.write_text('model_api_key = "k"\nmodel_api_key_file = "k.txt"\n', encoding="utf-8")
    with pytest.raises(BadInput, match="are both set; remove one of them"):
        load(path)
