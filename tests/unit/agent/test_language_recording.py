"""Recordings: what they hold and what not, and that a replay answers the same question alone."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from agent.language.recording import Recorder, digest
from agent.language.replay import Replay
from domain.errors import BadInput
from domain.language import Message, NoAnswer, Question, Silence, Speaker, Tokens
from tests.fakes.language import Scripted, question

FIRST = question(
    "The traffic is\u2028heavy \ud800.",
    messages=(Message(Speaker.SYSTEM, "Be brief."), Message(Speaker.USER, "The traffic is heavy.")),
    subject="s1",
)
SECOND = question("And now?", schema=None)


async def recorded(path: Path) -> Path:
    silence = NoAnswer(Silence.CUT_OFF, "Too long.", Tokens(read=5, written=5))
    recorder = Recorder(Scripted(["é\u2028\ud800\n{}", silence]), path)
    await recorder.answer(FIRST)
    with pytest.raises(NoAnswer):
        await recorder.answer(SECOND)
    return path


async def test_a_replay_says_what_was_said(tmp_path: Path) -> None:
    replay = Replay(await recorded(tmp_path / "new" / "recording.jsonl"))
    answer = await replay.answer(replace(FIRST, subject="another study"))
    assert answer.text == "é\u2028\ud800\n{}" and answer.tokens.total > 0
    with pytest.raises(NoAnswer, match=r"^Too long\.$") as none:
        await replay.answer(SECOND)
    assert none.value.silence is Silence.CUT_OFF
    with pytest.raises(NoAnswer, match="ends before question 3") as none:
        await replay.answer(FIRST)
    assert none.value.silence is Silence.MALFORMED


async def test_a_line_holds_the_conversation_and_nothing_of_the_study(tmp_path: Path) -> None:
    path = await recorded(tmp_path / "recording.jsonl")
    first, second = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    assert set(first) == {"purpose", "messages", "schema", "max_tokens", "answer", "tokens"}
    assert set(second) == {"purpose", "messages", "schema", "max_tokens", "silence", "why"}
    assert first["messages"] == [["system", "Be brief."], ["user", "The traffic is heavy."]]
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (replace(FIRST, purpose="guess"), "its purpose was 'test' and is 'guess'"),
        (replace(FIRST, max_tokens=1), "its max_tokens was 100 and is 1"),
        (replace(FIRST, schema=None), "its schema differs"),
        (replace(FIRST, messages=FIRST.messages[:1]), "it had 2 messages and has 1"),
        (
            replace(FIRST, messages=(FIRST.messages[0], Message(Speaker.USER, "The trains."))),
            'message 2 differs from character 8: it was "ffic is heavy." and is "ins."',
        ),
        (
            replace(FIRST, messages=(Message(Speaker.USER, "Be brief."), FIRST.messages[1])),
            "message 1 was said by 'system' and is said by 'user'",
        ),
    ],
)
async def test_another_question_gets_no_answer_and_the_first_difference(
    tmp_path: Path, asked: Question, told: str
) -> None:
    replay = Replay(await recorded(tmp_path / "recording.jsonl"))
    with pytest.raises(NoAnswer) as none:
        await replay.answer(asked)
    assert none.value.silence is Silence.MALFORMED
    assert str(none.value) == f"Question 1 is not the recorded one: {told}."
    assert (await replay.answer(FIRST)).tokens.total > 0


def test_a_schema_is_the_same_whatever_the_order_of_its_keys() -> None:
    assert digest({"a": 1, "b": [2]}) == digest({"b": [2], "a": 1})
    assert digest({"a": 1}) != digest({"a": 2})


@pytest.mark.parametrize("line", ["{", "[]", '{"purpose": "p"}', "[" * 100_000])
def test_a_file_that_is_no_recording_is_refused_with_the_line(tmp_path: Path, line: str) -> None:
    path = tmp_path / "recording.jsonl"
    path.write_text(line, encoding="utf-8")
    with pytest.raises(BadInput, match=r"Line 1 of .* is no line of a recording"):
        Replay(path)
    with pytest.raises(BadInput, match="cannot be read"):
        Replay(tmp_path / "none")


async def test_a_recording_that_cannot_be_written_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="set model_recording to another file"):
        Recorder(Scripted([]), tmp_path)


async def test_an_answer_that_cannot_be_recorded_is_given_all_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "recording.jsonl"
    recorder = Recorder(Scripted(["yes"]), path)
    path.unlink()
    path.mkdir()
    assert (await recorder.answer(FIRST)).text == "yes"
    assert "An answer was not recorded" in caplog.text
