"""Which way of asking for JSON a server honours: at most three tiny questions, and what they tell.

Pure. A server that ignores what it does not know says something else than was prescribed, so what
counts is what it said and not that it took the question.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from agent.language.dialect import Way
from domain.language import Message, Question, Speaker

PROBE_TOKENS = 256

_WORD = "canary"
_SCHEMA = {
    "type": "object",
    "properties": {_WORD: {"type": "string", "enum": ["sings"]}},
    "required": [_WORD],
    "additionalProperties": False,
}


class Heard(Enum):
    """What came of one tiny question."""

    HONOURED = "honoured"
    IGNORED = "ignored"
    REJECTED = "rejected"


class Tiny(NamedTuple):
    """A question and the way it is asked in."""

    way: Way
    question: Question


_TEXTS = {
    Way.JSON_SCHEMA: "Say hello.",
    # Some servers want the word JSON in the prompt before they switch their JSON mode on.
    Way.JSON_OBJECT: "Write one sentence of plain prose about JSON, without any object.",
    Way.PROMPT: "Say hello.",
}


def following(heard: Sequence[Heard]) -> Tiny | Way | None:
    """The next question after what was heard so far, or the way to ask in from now on; ``None``
    where the server takes no question at all."""
    if heard and heard[-1] is Heard.HONOURED:
        return list(Way)[len(heard) - 1]
    if len(heard) < len(Way):
        way = list(Way)[len(heard)]
        message = Message(Speaker.USER, _TEXTS[way])
        schema = None if way is Way.PROMPT else _SCHEMA
        question = Question(
            purpose="probe", messages=(message,), schema=schema, max_tokens=PROBE_TOKENS
        )
        return Tiny(way, question)
    return None


def heard_in(way: Way, said: str | None) -> Heard:
    """Whether ``said`` is what the way prescribes; ``None`` for an answer that was cut off."""
    if way is Way.PROMPT:
        return Heard.HONOURED
    try:
        value = json.loads(said or "")
    except (ValueError, RecursionError):
        return Heard.IGNORED
    matches = value == {_WORD: "sings"} if way is Way.JSON_SCHEMA else isinstance(value, dict)
    return Heard.HONOURED if matches else Heard.IGNORED


def sentence(way: Way) -> str:
    """What the probe found, as the end of a sentence about the server."""
    return {
        Way.JSON_SCHEMA: "holds its answers to a JSON schema",
        Way.JSON_OBJECT: "answers in JSON when asked, and the schema stands in the prompt alone",
        Way.PROMPT: "has no JSON mode that it honours, and the schema stands in the prompt alone",
    }[way]
