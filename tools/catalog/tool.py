"""What a tool of the catalog is, and what it tells: bounded, checked, and marked as data. Pure.

A tool reads. Its arguments are a flat object with every field required, checked here before it
runs; what it tells is one JSON document whose every text from outside is cleaned, and which is cut
by whole rows.
"""

from __future__ import annotations

import json
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from domain.errors import BadInput
from domain.figure import Figure
from domain.outside import cleaned

MOST_CHARACTERS: Final = 4_000
"""Most characters of what one call tells."""

_WORDS: Final = 300
_SHOWN: Final = 80

Schema: TypeAlias = Mapping[str, Mapping[str, Any]]
"""By name of the argument its JSON schema: a text, a number, an integer or one of some words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of what was found: ``words`` by what they are, and figures that are named alike."""

    words: Mapping[str, str]
    figures: tuple[Figure, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What a call found, the most important rows first; ``about`` says what it is of."""

    about: Mapping[str, str]
    rows: tuple[Row, ...] = ()

    @property
    def figures(self) -> tuple[Figure, ...]:
        return tuple(figure for row in self.rows for figure in row.figures)

    def renamed(self, prefix: str) -> Told:
        """The same with ``prefix`` before the name of each figure, so that calls do not collide."""
        rows = (
            Row(
                words=row.words,
                figures=tuple(
                    Figure(name=f"{prefix}{f.name}", value=f.value, unit=f.unit, source=f.source)
                    for f in row.figures
                ),
            )
            for row in self.rows
        )
        return Told(about=self.about, rows=tuple(rows))

    def fitted(self, most: int = MOST_CHARACTERS) -> Told:
        """As many of the first rows as ``text`` has room for; what is cut is told."""
        kept = self
        while kept.rows and len(kept.text) > most:
            rows = kept.rows[: len(kept.rows) - max(1, len(kept.rows) // 10)]
            left = f"{len(self.rows) - len(rows)} rows"
            kept = Told(about={**self.about, "left out for size": left}, rows=rows)
        return kept

    @property
    def text(self) -> str:
        """The document between the marks of data, which nothing in it can close."""
        about = _clean(self.about)
        rows = [
            _clean(row.words) | {figure.name: str(figure) for figure in row.figures}
            for row in self.rows
        ]
        document = json.dumps({**about, "rows": rows} if rows else about, ensure_ascii=False)
        return f"<data>{document}</data>"


def _clean(words: Mapping[str, str]) -> dict[str, str]:
    return {cleaned(key, _SHOWN): cleaned(text, _WORDS) for key, text in words.items()}


Run: TypeAlias = Callable[[Mapping[str, Any]], Awaitable[Told]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """``run`` gets arguments that match ``arguments``; it raises a SerinusError whose sentence
    mends them, or says why nothing can be read now."""

    name: str
    about: str
    arguments: Schema
    run: Run

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON schema of the arguments: closed, flat, every field required."""
        return {
            "type": "object",
            "properties": {name: dict(kind) for name, kind in self.arguments.items()},
            "required": list(self.arguments),
            "additionalProperties": False,
        }

    def checked(self, given: object) -> Mapping[str, Any]:
        """The arguments, if they match; BadInput names the first that does not."""
        if not isinstance(given, Mapping):
            raise BadInput(f"The arguments of {self.name} must be a JSON object.")
        wanted = ", ".join(self.arguments) or "none"
        if given.keys() != self.arguments.keys():
            raise BadInput(f"{self.name} takes exactly these arguments: {wanted}.")
        for name, kind in self.arguments.items():
            if fault := _fault(kind, given[name]):
                raise BadInput(f"The argument {name} of {self.name} {fault}.")
        return given


def text_of(most: int, about: str) -> dict[str, Any]:
    return {"type": "string", "maxLength": most, "description": about}


def one_of(words: tuple[str, ...], about: str) -> dict[str, Any]:
    return {"type": "string", "enum": list(words), "description": about}


def number(low: float, high: float, about: str) -> dict[str, Any]:
    return {"type": "number", "minimum": low, "maximum": high, "description": about}


def integer(low: int, high: int, about: str) -> dict[str, Any]:
    return {**number(low, high, about), "type": "integer"}


def _fault(kind: Mapping[str, Any], value: object) -> str:
    match kind["type"]:
        case "string":
            if not isinstance(value, str):
                return "must be a text"
            if "enum" in kind and value not in kind["enum"]:
                return f"must be one of {', '.join(kind['enum'])}"
            if len(value) > kind.get("maxLength", math.inf):
                return f"must have {kind['maxLength']} characters at most"
            return ""
        case "integer" | "number" as of:
            whole = isinstance(value, int) and not isinstance(value, bool)
            if not whole and not (of == "number" and isinstance(value, float)):
                return f"must be {'an' if of == 'integer' else 'a'} {of}"
            assert isinstance(value, int | float)
            low, high = kind["minimum"], kind["maximum"]
            # Not a number is in no range.
            return "" if low <= value <= high else f"must be from {low:g} to {high:g}"
    raise AssertionError(kind)
