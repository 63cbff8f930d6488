"""What is asked of a language model, and what it answers: text, which is never an order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from domain.errors import SerinusError


class Speaker(Enum):
    """Who says a message, by the chat API's names."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"


@dataclass(frozen=True, slots=True)
class Message:
    speaker: Speaker
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """``purpose`` names what it is for in budgets, notes and recordings, for example ``propose``.

    ``schema`` is the JSON schema that the answer has to match, ``None`` where it is free text.
    ``max_tokens`` bounds the answer. ``subject`` is the id of the study that pays for it; empty
    where there is none.
    """

    purpose: str
    messages: tuple[Message, ...]
    schema: Mapping[str, Any] | None
    max_tokens: int
    subject: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """What was read and written, as the server counts it; estimated where it does not say."""

    read: int
    written: int

    @property
    def total(self) -> int:
        return self.read + self.written

    def __add__(self, other: Tokens) -> Tokens:
        return Tokens(read=self.read + other.read, written=self.written + other.written)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Complete text, not checked for anything but that it is complete."""

    text: str
    tokens: Tokens


class Silence(Enum):
    """Why there is no answer."""

    UNREACHABLE = "unreachable"
    SLOW = "slow"
    REFUSED = "refused"
    CUT_OFF = "cut off"
    EMPTY = "empty"
    MALFORMED = "malformed"
    OVER_BUDGET = "over budget"


class NoAnswer(SerinusError):
    """A language model gave no answer that could be read; the text says why, without the server's
    own words. ``tokens`` is what it cost all the same, ``None`` where nobody can tell."""

    def __init__(self, silence: Silence, why: str, tokens: Tokens | None = None) -> None:
        super().__init__(why)
        self.silence = silence
        self.tokens = tokens
