"""The vector selectors in a PromQL expression that somebody else wrote, as far as needed: pure.

Enough of the language to know which metrics an expression names and with which label matchers;
nothing here understands what it computes. An expression is data: what cannot be read is left out.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

_TOKEN: Final = re.compile(
    r"""
      (?P<skip>\s+|\#[^\n]*)
    | (?P<variable>\$\{[^}]*\}|\$\w+|\[\[\w+(?::\w+)?\]\])
    | (?P<string>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|`[^`]*`)
    | (?P<range>\[[^\]]*\])
    | (?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)
    | (?P<operator>=~|!~|!=|=)
    | (?P<mark>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_VARIABLE: Final = re.compile(r"\$\{|\$[A-Za-z_]|\[\[\w+(?::\w+)?\]\]")
_LITERAL: Final = re.compile(r"[\w/:@ -]+")
_ESCAPED: Final = re.compile(r"\\(.)", re.DOTALL)
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r"}
_NAME: Final = "__name__"


class Match(Enum):
    """How a label's value is compared."""

    EQUAL = "="
    NOT_EQUAL = "!="
    REGEX = "=~"
    NOT_REGEX = "!~"


@dataclass(frozen=True, slots=True, kw_only=True)
class Matcher:
    """One condition on a label. ``value`` holds no template variable."""

    label: str
    match: Match
    value: str

    @property
    def fixed(self) -> str | None:
        """The one value that the label must have; ``None`` where there can be several."""
        if self.match is Match.EQUAL or (
            self.match is Match.REGEX and _LITERAL.fullmatch(self.value)
        ):
            return self.value or None
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Selector:
    """A metric with its matchers; ``dropped`` counts those that hung on a template variable."""

    metric: str
    matchers: tuple[Matcher, ...] = ()
    dropped: int = 0


class _Token(NamedTuple):
    kind: str
    text: str


class _Braces(NamedTuple):
    """What stands between braces: a metric's name, if it stands there, and the matchers."""

    metric: str
    matchers: tuple[Matcher, ...]
    dropped: int


def selectors(expression: str, metrics: Collection[str]) -> tuple[Selector, ...]:
    """Every selector of one of the ``metrics``, in the order of the expression."""
    tokens = [
        _Token(str(found.lastgroup), found[0])
        for found in _TOKEN.finditer(expression)
        if found.lastgroup != "skip"
    ]
    return tuple(one for one in _selectors(tokens) if one.metric in metrics)


def _selectors(tokens: list[_Token]) -> Iterator[Selector]:
    name, rest = "", iter(tokens)
    for token in rest:
        if token.text == "{" and token.kind == "mark":
            inside = _braces(rest)
            yield Selector(
                metric=name or inside.metric, matchers=inside.matchers, dropped=inside.dropped
            )
            name = ""
            continue
        if name:
            yield Selector(metric=name)
        name = token.text if token.kind == "name" else ""
    if name:
        yield Selector(metric=name)


def _braces(rest: Iterator[_Token]) -> _Braces:
    """Takes the tokens up to the closing brace, or to the end where there is none."""
    metric, matchers, dropped = "", [], 0
    part: list[_Token] = []
    for token in (*_inside(rest), _Token("mark", ",")):
        if token != ("mark", ","):
            part.append(token)
            continue
        match part:
            case [("string", quoted)]:
                metric = _unquoted(quoted)
            case [("name" | "string" as kind, label), ("operator", sign), ("string", quoted)]:
                label = _unquoted(label) if kind == "string" else label
                value = _unquoted(quoted)
                if _VARIABLE.search(value):
                    dropped += 1
                elif label == _NAME and sign == "=":
                    metric = value
                else:
                    matchers.append(Matcher(label=label, match=Match(sign), value=value))
            case [_, *_]:
                dropped += 1
        part = []
    return _Braces(metric, tuple(matchers), dropped)


def _inside(rest: Iterator[_Token]) -> Iterator[_Token]:
    for token in rest:
        if token == ("mark", "}"):
            return
        yield token


def _unquoted(text: str) -> str:
    if text.startswith("`"):
        return text[1:-1]
    return _ESCAPED.sub(lambda found: _ESCAPES.get(found[1], found[1]), text[1:-1])
