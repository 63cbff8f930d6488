"""A stretch of the past, as tools are asked for one: by minutes before now. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from tools.catalog.tool import number

LONGEST_MINUTES: Final = 1_440.0
OLDEST_MINUTES: Final = 20_160.0

AGO: Final = number(0, OLDEST_MINUTES, "how many minutes ago the range ends, 0 for now")
LENGTH: Final = number(1, LONGEST_MINUTES, "how many minutes long the range is")


class Range(NamedTuple):
    """Unix seconds."""

    start_s: float
    end_s: float

    @property
    def seconds(self) -> float:
        return self.end_s - self.start_s

    def __str__(self) -> str:
        start, end = (datetime.fromtimestamp(at, UTC) for at in self)
        return f"{start:%Y-%m-%d %H:%M:%S} to {end:%Y-%m-%d %H:%M:%S} UTC"


def range_of(given: Mapping[str, Any], now: float) -> Range:
    """The range of checked arguments ``minutes_ago`` and ``minutes``."""
    end_s = now - 60 * given["minutes_ago"]
    return Range(end_s - 60 * given["minutes"], end_s)
