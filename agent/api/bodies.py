"""What a person or program may send: small, closed bodies, as JSON or as an HTML form."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar
from urllib.parse import parse_qsl

from fastapi import Request
from pydantic import BaseModel, ConfigDict, ValidationError

from agent.api.errors import TooLarge, WrongMediaType
from domain.approval import Answer, CommandKind
from domain.errors import BadInput

JSON, FORM = "application/json", "application/x-www-form-urlencoded"
_LIMIT_BYTES = 16_384


class Body(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class AnswerBody(Body):
    """The answer, and the config and version of the question that the person has seen."""

    answer: Answer
    digest: str
    rollout_version: int


class CommandBody(Body):
    """An order; ``rollout_id`` names the rollout where it is for one."""

    kind: CommandKind
    rollout_id: str = ""


class LoginBody(Body):
    token: str


Sent = TypeVar("Sent", bound=Body)


def sent(kind: type[Sent]) -> Callable[[Request], Awaitable[Sent]]:
    """A dependency that reads the body as ``kind``; BadInput where it is not one."""

    async def read(request: Request) -> Sent:
        media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        raw = await _limited(request)
        try:
            if media_type == JSON:
                return kind.model_validate_json(raw)
            if media_type == FORM:
                return kind.model_validate(dict(parse_qsl(raw.decode(), keep_blank_values=True)))
        except UnicodeDecodeError:
            raise BadInput("The body is not UTF-8.") from None
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(map(str, first["loc"])) or "body"
            raise BadInput(f"{place}: {first['msg']}.") from None
        raise WrongMediaType(f"The body must be {JSON} or {FORM}.")

    return read


def documented(kind: type[Body]) -> dict[str, Any]:
    """The OpenAPI fragment for a route whose body is read by ``sent(kind)``."""
    schema = kind.model_json_schema()
    enums = schema.pop("$defs", {})
    for name, field in schema["properties"].items():
        if "$ref" in field:
            schema["properties"][name] = enums[field["$ref"].rpartition("/")[2]]
    content = {media_type: {"schema": schema} for media_type in (JSON, FORM)}
    return {"requestBody": {"required": True, "content": content}}


async def _limited(request: Request) -> bytes:
    raw = b""
    async for chunk in request.stream():
        raw += chunk
        if len(raw) > _LIMIT_BYTES:
            raise TooLarge(f"The body is longer than {_LIMIT_BYTES} bytes.")
    return raw
