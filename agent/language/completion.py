"""Reads the body of a chat completion: the whole text of an answer, or why there is none. Pure.

Servers differ in everything but the fields that are read here.
"""

from __future__ import annotations

import re
from typing import Any

from pydantic import BaseModel, Field, ValidationError

from agent.language.counting import counted, most
from domain.language import Answer, NoAnswer, Question, Silence

_THOUGHT = re.compile(r"\s*<think>.*?</think>", re.DOTALL)


class _Message(BaseModel):
    content: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class _Choice(BaseModel):
    finish_reason: str | None = None
    message: _Message


class _Usage(BaseModel):
    prompt_tokens: Any = None
    completion_tokens: Any = None


class _Completion(BaseModel):
    choices: list[_Choice] = Field(min_length=1)
    usage: Any = None


def answer_in(body: bytes, question: Question) -> Answer:
    """The answer; NoAnswer where the body holds none that is complete.

    A model that reasons may put all that it says there; else what it thought is left out.
    """
    try:
        read = _Completion.model_validate_json(body)
    except ValidationError:
        raise NoAnswer(
            Silence.MALFORMED, "The response is not a chat completion.", most(question)
        ) from None
    choice = read.choices[0]
    message = choice.message
    thought = message.reasoning_content or message.reasoning or ""
    content = message.content or ""
    usage = _usage(read.usage)
    tokens = counted(question, thought + content, usage.prompt_tokens, usage.completion_tokens)
    if message.refusal or choice.finish_reason == "content_filter":
        raise NoAnswer(Silence.REFUSED, "The model refused.", tokens)
    if choice.finish_reason == "length":
        raise NoAnswer(
            Silence.CUT_OFF, "The answer was cut off at its token limit; be shorter.", tokens
        )
    text = _THOUGHT.sub("", content, count=1) if _THOUGHT.match(content) else content
    text = text.strip() or thought.strip()
    if not text:
        raise NoAnswer(Silence.EMPTY, "The answer is empty.", tokens)
    return Answer(text=text, tokens=tokens)


def _usage(told: object) -> _Usage:
    """What the server says that it cost; nothing where that is no such object."""
    return _Usage.model_validate(told) if isinstance(told, dict) else _Usage()
