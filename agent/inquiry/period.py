"""Which time a question is about, read by code: "since 14:00", "in the last 30 minutes", and so on.

Pure: now and the time zone are arguments. What names no time is about the last window.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from typing import Final
from zoneinfo import ZoneInfo

from domain.errors import BadInput

LONGEST_S: Final = 7 * 86_400.0
_UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_WORDS: Final = {"an": 1.0, "a": 1.0, "one": 1.0, "two": 2.0, "three": 3.0, "half": 0.5, "": 1.0}

# A bare number is an hour only where nothing says that it counts something else.
_BARE: Final = r"(?![\w:.%])(?!\s*(?!(?:yesterday|today|on|and|to|in|this|until|why|what|is)\b)\w)"
_CLOCK: Final = (
    rf"(\d{{1,2}})(?:[:.](\d{{2}})(?::\d{{2}})?(?!\w)|(?=\s*(?:am|pm|o'?clock)\b)|{_BARE})"
    r"\s*(am\b|pm\b|o'?clock\b)?"
)
_DAY: Final = r"(today|yesterday|\d{4}-\d{2}-\d{2})"
_SPAN: Final = (
    r"(\d{1,6}(?:\.\d+)?|half an|half a|an|a|one|two|three)?\s*"
    r"(s|secs?|seconds?|m|mins?|minutes?|h|hrs?|hours?|d|days?|weeks?)"
)
_BETWEEN: Final = re.compile(rf"\b(?:between|from)\s+{_CLOCK}\s*(?:and|to|until|-|–)\s*{_CLOCK}")
_SINCE: Final = re.compile(rf"\b(?:since|after)\s+(?:{_DAY}\s+)?(?:at\s+)?{_CLOCK}")
_SINCE_DAY: Final = re.compile(rf"\bsince\s+{_DAY}\b")
_AT: Final = re.compile(rf"\b(?:at|around|about)\s+(?=\d+(?::|\s*[ap]m|\s*o)){_CLOCK}")
_LAST: Final = re.compile(rf"\b(?:last|past|previous|since|for)\s+{_SPAN}\b(?!\s+ago)")
_AGO: Final = re.compile(rf"\b(?:since\s+)?{_SPAN}\s+ago\b")
_ON_DAY: Final = re.compile(rf"\b{_DAY}\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    """Unix seconds, and what of the question said so; empty where nothing did. It is compared with
    the time just as long before it."""

    start_s: float
    end_s: float
    said: str = ""

    @property
    def seconds(self) -> float:
        return self.end_s - self.start_s


def period(question: str, now: float, zone: ZoneInfo, window_s: float, least_s: float) -> Period:
    """The time that ``question`` is about; BadInput where it is none, in the future, shorter than
    ``least_s`` or longer than a week. ``window_s`` seconds where only one end is named, or none.
    """
    text = " ".join(question.lower().split())
    found = _read(text, now, zone, window_s) or Period(start_s=now - window_s, end_s=now)
    said = f"{found.said!r}" if found.said else "The window"
    if found.start_s >= now:
        raise BadInput(f"{said} is in the future; ask about a time that has been.")
    end_s = min(found.end_s, now)
    if end_s - found.start_s < least_s:
        raise BadInput(
            f"{said} is shorter than {least_s:g} s, which holds too few scrapes; ask about a longer"
            " time."
        )
    if end_s - found.start_s > LONGEST_S:
        raise BadInput(f"{said} is longer than a week; ask about a shorter time.")
    return Period(start_s=found.start_s, end_s=end_s, said=found.said)


def _read(text: str, now: float, zone: ZoneInfo, window_s: float) -> Period | None:
    """The first reading that fits, the most telling forms first."""
    here = datetime.fromtimestamp(now, zone)
    named = _ON_DAY.search(text)
    day = _day(named[1], here) if named else None
    if match := _BETWEEN.search(text):
        start_s = _moment(match.groups()[:3], day, here, zone)
        end_s = _moment(match.groups()[3:6], day or _date(start_s, zone), here, zone)
        if end_s <= start_s:
            # The second time is of the next day, as in "between 23:00 and 1:00".
            end_s = _moment(
                match.groups()[3:6], _date(start_s, zone) + timedelta(days=1), here, zone
            )
        return Period(start_s=start_s, end_s=end_s, said=match[0].strip())
    if (match := _LAST.search(text)) and _is_span(match):
        return Period(start_s=now - _span(match), end_s=now, said=match[0].strip())
    if match := _SINCE.search(text):
        of = _day(match[1], here) if match[1] else day
        return Period(
            start_s=_moment(match.groups()[1:4], of, here, zone), end_s=now, said=match[0]
        )
    if match := _SINCE_DAY.search(text):
        return Period(
            start_s=_midnight(_day(match[1], here), zone), end_s=now, said=match[0].strip()
        )
    if match := _AT.search(text):
        start_s = _moment(match.groups(), day, here, zone)
        return Period(start_s=start_s, end_s=start_s + window_s, said=match[0].strip())
    if match := _AGO.search(text):
        start_s = now - _span(match)
        end_s = now if match[0].startswith("since") else start_s + window_s
        return Period(start_s=start_s, end_s=end_s, said=match[0].strip())
    if named and day is not None:
        next_day = day + timedelta(days=1)
        return Period(start_s=_midnight(day, zone), end_s=_midnight(next_day, zone), said=named[0])
    return None


def _is_span(match: re.Match[str]) -> bool:
    """A word such as "for" needs a number behind it, and not one of seconds that something took."""
    word = match[0].split()[0]
    return word in ("last", "past", "previous") or (
        match[1] is not None and (word == "since" or match[2][0] != "s")
    )


def _span(match: re.Match[str]) -> float:
    number, unit = (match[1] or "").removesuffix(" an").removesuffix(" a"), match[2]
    return (_WORDS[number] if number in _WORDS else float(number)) * _UNITS[unit[0]]


def _moment(
    parts: tuple[str | None, ...], day: date | None, here: datetime, zone: ZoneInfo
) -> float:
    """The time on that day; without one, its last occurrence. BadInput where it is no time."""
    hour, minute, half = int(parts[0] or 0), int(parts[1] or 0), parts[2] or ""
    if half in ("am", "pm"):
        hour = hour % 12 + (12 if half == "pm" else 0) if 1 <= hour <= 12 else 99
    shown = f"{parts[0]}{f':{parts[1]}' if parts[1] else ''}{half}"
    if hour == 24 and minute == 0:
        return _midnight((day or here.date()) + timedelta(days=1), zone)
    if hour > 23 or minute > 59:
        raise BadInput(f"{shown!r} is no time of day; write it like 14:00.")
    wanted = time(hour, minute)
    found = datetime.combine(day or here.date(), wanted, zone)
    if day is None and found > here:
        found = datetime.combine(here.date() - timedelta(days=1), wanted, zone)
    return found.timestamp()


def _day(word: str, here: datetime) -> date:
    if word == "today":
        return here.date()
    if word == "yesterday":
        return here.date() - timedelta(days=1)
    try:
        return date.fromisoformat(word)
    except ValueError:
        raise BadInput(f"{word!r} is no date; write it like 2026-05-31.") from None


def _midnight(day: date, zone: ZoneInfo) -> float:
    return datetime.combine(day, time(), zone).timestamp()


def _date(at_s: float, zone: ZoneInfo) -> date:
    return datetime.fromtimestamp(at_s, zone).date()
