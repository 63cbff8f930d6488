"""A figure that was read, under a name by which a text can ask for it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Unit(Enum):
    """What a figure counts; SHARE is 0–1 and shown in percent, TIMES is now over before."""

    MILLISECONDS = "ms"
    SECONDS = "s"
    SHARE = "%"
    TIMES = "times"
    REQUESTS = "requests"
    REQUESTS_A_SECOND = "requests/s"
    TOKENS = "tokens"
    TOKENS_A_SECOND = "tokens/s"
    ENGINES = "engines"
    A_REQUEST = "a request"
    A_SECOND = "/s"
    A_MINUTE = "/min"
    NONE = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """``value`` is finite. ``source`` says what was asked, and of which window, for people."""

    name: str
    value: float
    unit: Unit
    source: str

    @property
    def shown_value(self) -> str:
        """The number alone, as a text shows it: three digits, of large ones the whole."""
        value = 100 * self.value if self.unit is Unit.SHARE else self.value
        return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"

    def __str__(self) -> str:
        if self.unit is Unit.SHARE:
            return f"{self.shown_value} %"
        words = self.unit.value
        if self.value == 1 and self.unit in (Unit.REQUESTS, Unit.TOKENS, Unit.ENGINES):
            words = words.removesuffix("s")
        return f"{self.shown_value} {words}".strip()
