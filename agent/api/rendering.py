"""Templates into text, with the words and figures that all pages share; all text is escaped."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from agent.api.plots import front_marks, interval_marks

_TEMPLATES = Path(__file__).parent / "templates"


def environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["number"] = _number
    made.filters["percent"] = _percent
    made.filters["clock"] = _clock
    made.filters["moment"] = _moment
    made.filters["date"] = _date
    made.filters["words"] = lambda name: name.replace("_", " ")
    made.filters["knob_value"] = lambda value: "default" if value is None else str(value)
    made.globals["interval_marks"] = interval_marks
    made.globals["front_marks"] = front_marks
    return made


def _number(value: float | None, digits: int = 3) -> str:
    """At least ``digits`` significant digits, thousands set apart; a dash for what is unknown."""
    if value is None or not math.isfinite(value):
        return "–"
    if value == 0:
        return "0"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{min(decimals, 4)}f}"
    return (text.rstrip("0").rstrip(".") if "." in text else text).replace(",", "\u202f")


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{_number(share * 100)} %"


def _clock(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%H:%M:%S")


def _moment(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%d %B at %H:%M:%S")


def _date(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%d %B %Y at %H:%M")
