"""What all readers of traces share: lines by number, whole numbers, order, and how they refuse."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from domain.errors import BadInput
from domain.trace import TracedRequest


def numbered(lines: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Lines that hold something, with their number from 1."""
    return ((number, line) for number, line in enumerate(lines, 1) if line.strip())


def bad_line(number: int, what: str) -> BadInput:
    return BadInput(f"Line {number} of the trace: {what}.")


def whole(number: int, row: Mapping[str, Any], name: str, *, least: int) -> int:
    """A whole number of at least ``least``; BadInput for anything else."""
    value = row.get(name)
    if type(value) is not int or value < least:
        raise bad_line(number, f"{name} must be a whole number from {least} up; got {value!r}")
    return value


def ordered(requests: Iterable[TracedRequest]) -> tuple[TracedRequest, ...]:
    """By offset; requests of one instant stay in the order of their lines."""
    return tuple(sorted(requests, key=lambda request: request.offset_s))
