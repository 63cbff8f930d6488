"""What a language model may reply: one reading through the catalog, or its answer. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from pydantic import BaseModel, ConfigDict, ValidationError

from tools.catalog import Tool

NO_TOOL: Final = "none"
ANSWER_CHARACTERS: Final = 1_500
_FAULTS: Final = 300


class Unusable(Exception):
    """A reply that one more try may mend; its text says what was wrong."""


class Call(NamedTuple):
    tool: str
    arguments: Mapping[str, Any]


class Words(NamedTuple):
    """The model's answer, with its figures still by name."""

    text: str


class _Reply(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    tool: str = NO_TOOL
    arguments: dict[str, Any] = {}
    answer: str = ""


def schema(tools: Mapping[str, Tool]) -> dict[str, Any]:
    """One closed object: a tool with its arguments and an empty answer, or ``none`` and an answer.

    Where ``tools`` is empty only an answer is left to give.
    """
    answer = {"type": "string", "maxLength": ANSWER_CHARACTERS}
    if not tools:
        return _closed(answer=answer)
    kinds = [tool.schema for tool in tools.values()] + [_closed()]
    return _closed(
        tool={"type": "string", "enum": [*tools, NO_TOOL]},
        arguments={"anyOf": [kind for n, kind in enumerate(kinds) if kind not in kinds[:n]]},
        answer=answer,
    )


def read(text: str) -> Call | Words:
    """The reply; Unusable where it is neither, or both. Arguments are the tool's to check."""
    try:
        reply = _Reply.model_validate_json(text)
    except ValidationError as error:
        faults = "; ".join(
            f"{'.'.join(map(str, fault['loc'])) or 'the reply'}: {fault['msg']}"
            for fault in error.errors(include_input=False, include_url=False)[:3]
        )
        raise Unusable(f"It does not match the JSON schema ({faults[:_FAULTS]})") from None
    answer = reply.answer.strip()
    if reply.tool != NO_TOOL and answer:
        raise Unusable("It names a tool and answers; do one of both")
    if reply.tool != NO_TOOL:
        return Call(reply.tool, reply.arguments)
    if not answer:
        raise Unusable("It neither names a tool nor answers")
    if len(answer) > ANSWER_CHARACTERS:
        raise Unusable(f"The answer has more than {ANSWER_CHARACTERS} characters; be shorter")
    return Words(answer)


def _closed(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
