"""A language model that says what a recording holds, as long as it is asked what was asked then."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from agent.language.recording import asked
from domain.errors import BadInput
from domain.language import Answer, NoAnswer, Question, Silence, Tokens

_NOTHING = Tokens(read=0, written=0)
_SHOWN = 40


class _Line(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    purpose: str
    messages: list[list[str]]
    schema_: str
    max_tokens: int
    answer: str | None = None
    tokens: tuple[int, int] = (0, 0)
    silence: Silence | None = None
    why: str = ""

    @model_validator(mode="before")
    @classmethod
    def _named(cls, line: Any) -> Any:
        """``schema`` is a name that pydantic keeps for itself."""
        if isinstance(line, dict) and "schema" in line:
            return {("schema_" if name == "schema" else name): line[name] for name in line}
        return line

    @model_validator(mode="after")
    def _ended(self) -> _Line:
        if (self.answer is None) is (self.silence is None):
            raise ValueError("a line holds an answer or a silence")
        return self


class Replay:
    """Answers the questions of a recording in its order. Another question than the next one is
    MALFORMED, the sentence names the first difference, and the recording stays where it is."""

    def __init__(self, path: Path) -> None:
        self._lines = _read(path)
        self._next = 0

    async def answer(self, question: Question) -> Answer:
        number = self._next + 1
        if self._next == len(self._lines):
            why = f"The recording ends before question {number}."
            raise NoAnswer(Silence.MALFORMED, why, _NOTHING)
        line = self._lines[self._next]
        if other := _difference(line, asked(question)):
            why = f"Question {number} is not the recorded one: {other}."
            raise NoAnswer(Silence.MALFORMED, why, _NOTHING)
        self._next += 1
        if line.silence is not None:
            raise NoAnswer(line.silence, line.why, _NOTHING)
        assert line.answer is not None, "a line without a silence holds an answer"
        read, written = line.tokens
        return Answer(text=line.answer, tokens=Tokens(read=read, written=written))


def _read(path: Path) -> tuple[_Line, ...]:
    lines = []
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        raise BadInput(f"The recording {path} cannot be read; check its path.") from None
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            lines.append(_Line.model_validate(json.loads(line)))
        except (ValueError, ValidationError, RecursionError):
            raise BadInput(f"Line {number} of {path} is no line of a recording.") from None
    return tuple(lines)


def _difference(line: _Line, question: dict[str, Any]) -> str:
    """The first thing that differs, in words; nothing where all is the same."""
    for name, recorded in (("purpose", line.purpose), ("max_tokens", line.max_tokens)):
        if recorded != question[name]:
            return f"its {name} was {recorded!r} and is {question[name]!r}"
    if line.schema_ != question["schema"]:
        return "its schema differs"
    then, now = line.messages, question["messages"]
    if len(then) != len(now):
        return f"it had {len(then)} messages and has {len(now)}"
    for number, (old, new) in enumerate(zip(then, now, strict=True), start=1):
        if old != new:
            return f"message {number} {_where(old, new)}"
    return ""


def _where(old: list[str], new: list[str]) -> str:
    if old[0] != new[0]:
        return f"was said by {old[0]!r} and is said by {new[0]!r}"
    was, now = old[1], new[1]
    shared = zip(was, now, strict=False)
    place = next((n for n, (a, b) in enumerate(shared) if a != b), min(len(was), len(now)))
    before, after = (json.dumps(text[place : place + _SHOWN]) for text in (was, now))
    return f"differs from character {place + 1}: it was {before} and is {after}"
