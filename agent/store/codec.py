"""Nouns as JSON documents and back, without loss; it knows no table and no single noun.

JSON has no infinity and no NaN, and PostgreSQL refuses them, so they are written as the words
``"Infinity"``, ``"-Infinity"`` and ``"NaN"`` and read back as floats wherever a field is a float.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any, TypeAlias, TypeVar, cast

from pydantic import TypeAdapter, ValidationError

from domain.errors import InvariantViolation

Json: TypeAlias = bool | int | float | str | list["Json"] | dict[str, "Json"] | None
Noun = TypeVar("Noun")


_adapters: Callable[[Any], TypeAdapter[Any]] = cache(TypeAdapter)


def encode(noun: object) -> Json:
    """The noun as a JSON value of dicts, lists, words and finite numbers."""
    return _worded(cast(Json, _adapters(type(noun)).dump_python(noun, mode="json")))


def decode(kind: type[Noun], document: Json) -> Noun:
    """The noun of that kind; InvariantViolation where the document is not one."""
    try:
        noun: Noun = _adapters(kind).validate_python(document)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise InvariantViolation(
            f"A stored {kind.__name__} cannot be read: {place}: {first['msg']}."
        ) from error
    return noun


def _worded(value: Json) -> Json:
    if isinstance(value, float):
        return value if math.isfinite(value) else _word(value)
    if isinstance(value, list):
        return [_worded(item) for item in value]
    if isinstance(value, dict):
        return {key: _worded(item) for key, item in value.items()}
    return value


def _word(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
