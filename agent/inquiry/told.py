"""The answer to a question, as plain lines and as JSON. Pure.

Names and titles in it come from elsewhere and were cleaned where they were read; it is cleaned once
more, for a terminal reads it too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from zoneinfo import ZoneInfo

from agent.inquiry.dialogue import Reading
from agent.inquiry.period import Period
from agent.inquiry.rules import Diagnosis
from domain.figure import Figure
from domain.outside import cleaned

RULES = "rules"
_LINE = 4_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """``text`` is by ``author``; ``note`` says in a sentence why it is not the language model's,
    where it is not. ``used`` are the figures that stand in it."""

    question: str
    period: Period
    zone: ZoneInfo
    diagnosis: Diagnosis
    text: str
    author: str
    note: str
    used: tuple[Figure, ...]
    readings: tuple[Reading, ...] = ()


def window(period: Period, zone: ZoneInfo) -> str:
    """Both windows in words, in the local time."""
    times = (period.start_s - period.seconds, period.start_s, period.end_s)
    before, start, end = (datetime.fromtimestamp(at_s, zone) for at_s in times)
    read = f" ({period.said!r})" if period.said else " (no time was named: the last window)"
    return (
        f"{start:%Y-%m-%d %H:%M:%S} to {end:%Y-%m-%d %H:%M:%S} {zone.key}{read}, compared with "
        f"{before:%Y-%m-%d %H:%M:%S} to {start:%Y-%m-%d %H:%M:%S}"
    )


def text(answered: Answered) -> str:
    return "\n".join(cleaned(line, _LINE) if line.strip() else "" for line in _lines(answered))


def document(answered: Answered) -> str:
    period = answered.period
    return json.dumps(
        {
            "question": answered.question,
            "window": {"start_s": period.start_s, "end_s": period.end_s, "read": period.said},
            "cause": answered.diagnosis.cause.value,
            "also": [cause.value for cause in answered.diagnosis.also],
            "diagnosis": answered.diagnosis.sentence,
            "answer": answered.text,
            "author": answered.author,
            "note": answered.note,
            "numbers": [
                {"name": f.name, "value": f.value, "unit": f.unit.value, "source": f.source}
                for f in answered.used
            ],
            "readings": [reading._asdict() for reading in answered.readings],
        },
        indent=2,
    )


def _lines(answered: Answered) -> Iterator[str]:
    yield f"About {window(answered.period, answered.zone)}."
    yield ""
    yield answered.text
    if answered.author != RULES:
        yield ""
        yield f"The rules say: {answered.diagnosis.sentence}"
    yield ""
    yield "Numbers that it stands on:" if answered.used else "It stands on no numbers."
    for figure in answered.used:
        yield f"- {figure.name}: {figure}, {figure.source}"
    for number, reading in enumerate(answered.readings, start=1):
        end = f": not read, {reading.fault}" if reading.fault else ""
        yield f"Reading {number}: {reading.tool} {reading.arguments}{end}"
    yield ""
    yield f"Answered by the {answered.author}." + (f" {answered.note}" if answered.note else "")
