"""How a server wants to be asked, as far as OpenAI-compatible servers differ in it. Pure.

A server's refusal is read for the names of parameters alone; its words go nowhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from domain.language import Question


class Way(Enum):
    """How JSON is asked for; the schema stands in the prompt in any case."""

    JSON_SCHEMA = "json_schema"
    JSON_OBJECT = "json_object"
    PROMPT = "prompt"

    @property
    def looser(self) -> Way:
        return Way.JSON_OBJECT if self is Way.JSON_SCHEMA else Way.PROMPT


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """``limit`` is the name of the bound on an answer; ``steady`` asks for temperature 0, which
    some models that reason refuse."""

    way: Way = Way.JSON_SCHEMA
    limit: str = "max_tokens"
    steady: bool = True


def parameters(dialect: Dialect, question: Question) -> dict[str, Any]:
    """All of a request but the model's name."""
    asked: dict[str, Any] = {
        "messages": [
            {"role": message.speaker.value, "content": message.text}
            for message in question.messages
        ],
        dialect.limit: question.max_tokens,
    }
    if dialect.steady:
        asked["temperature"] = 0
    if question.schema is not None and dialect.way is not Way.PROMPT:
        asked["response_format"] = _format(dialect.way, question.schema)
    return asked


def _format(way: Way, schema: Mapping[str, Any]) -> dict[str, Any]:
    if way is Way.JSON_OBJECT:
        return {"type": "json_object"}
    named = {"name": "answer", "strict": True, "schema": dict(schema)}
    return {"type": "json_schema", "json_schema": named}


def mended(dialect: Dialect, refusal: str) -> Dialect | None:
    """What to try instead where the server refused a parameter that there is another way for;
    ``None`` where it refused something else."""
    if dialect.limit == "max_tokens" and "max_completion_tokens" in refusal:
        return replace(dialect, limit="max_completion_tokens")
    if dialect.steady and "temperature" in refusal:
        return replace(dialect, steady=False)
    formats = ("response_format", "json_schema", "json_object", "grammar")
    if dialect.way is not Way.PROMPT and any(name in refusal for name in formats):
        return replace(dialect, way=dialect.way.looser)
    return None
