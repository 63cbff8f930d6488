"""A crontab line falls due once, in its own time zone."""

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from agent.schedule import Schedule
from domain.errors import BadInput


def at(text: str, zone: str = "Europe/Berlin") -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp()


def test_due_once_between_two_moments():
    nightly = Schedule("0 2 * * *", "Europe/Berlin")
    assert nightly.due(at("2026-03-10 01:59"), at("2026-03-10 02:01")) == "2026-03-10 02:00 CET"
    assert nightly.due(at("2026-03-10 02:00"), at("2026-03-10 02:01")) is None
    assert nightly.due(at("2026-07-10 01:59"), at("2026-07-10 02:00")) == "2026-07-10 02:00 CEST"


@pytest.mark.parametrize(("crontab", "zone"), [("x y", "UTC"), ("0 2 * * *", "Mars/Olympus")])
def test_unreadable_schedule_says_how_to_write_one(crontab, zone):
    with pytest.raises(BadInput, match=r"five fields like '0 2 \* \* \*'"):
        Schedule(crontab, zone)
