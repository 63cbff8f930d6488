"""Whether a cron schedule fell due between two moments (pure; the rules are APScheduler's)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from apscheduler.triggers.cron import CronTrigger

from domain.errors import BadInput


class Schedule:
    """A crontab expression of five fields in a time zone, for example ``"0 2 * * *"``."""

    def __init__(self, crontab: str, timezone: str) -> None:
        try:
            self._trigger = CronTrigger.from_crontab(crontab, timezone=timezone)
        except (ValueError, KeyError, LookupError) as error:
            raise BadInput(
                f"The schedule {crontab!r} in time zone {timezone!r} cannot be read ({error}); "
                "write five fields like '0 2 * * *' and a zone like 'Europe/Berlin'."
            ) from None

    def due(self, since_s: float, now_s: float) -> str | None:
        """The first time after ``since_s`` that is not after ``now_s`` (Unix seconds), as text."""
        since = datetime.fromtimestamp(since_s, UTC) + timedelta(microseconds=1)
        fires = self._trigger.get_next_fire_time(None, since)
        if fires is None or fires.timestamp() > now_s:
            return None
        return str(fires.strftime("%Y-%m-%d %H:%M %Z"))
