"""How many requests arrived between two scrapes; pure.

A request that arrived has finished, was rejected, or is inside the engine: so arrivals are the rise
of the first two counters and the change of what is running and waiting. They are told for each
target by itself, between scrapes that really happened, since a counter that fell, or a scrape that
was missed, must leave a gap and never a number.

Moments stand closer together than scrapes; which of them saw a scrape is asked by COUNT. Nothing
is assumed about when the scrapes of a target fall, or that all targets are scraped at once. Where
they are not, a burst of all of them that is shorter than a scrape interval is spread over two.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from statistics import fmean, median
from typing import Final, NamedTuple, TypeAlias

from domain.metrics import Failed, Function, Partial, Query, Reading, Sample
from tools import queries

MOMENTS_A_SCRAPE: Final = 4
"""So many moments to the scrape interval tell a scrape that came late from one that was missed."""
LEAST_A_SCRAPE: Final = 2.5
"""With fewer moments between two scrapes, several scrapes are taken as one."""
MOST: Final = 4_000
"""Moments that are read at most; over a longer window they stand further apart."""

_TARGET: Final = ("instance", "replica")

Target: TypeAlias = tuple[tuple[str, str], ...]
Ranges: TypeAlias = Mapping[str, Sequence[Reading]]
"""The readings of ``range_queries``, by their names, all at the same moments."""


class Arrivals(NamedTuple):
    """Arrivals of the whole fleet in each interval of ``step_s``; ``None`` where they are unknown.

    ``step_s`` is the time between scrapes as it was, not as it was meant to be.
    """

    step_s: float
    counts: tuple[float | None, ...]

    @property
    def covered(self) -> float:
        """The share of the intervals that were scraped throughout, 0–1."""
        known = sum(count is not None for count in self.counts)
        return known / len(self.counts) if self.counts else 0.0


class _Scrape(NamedTuple):
    """What one target showed: requests that came to an end, and those inside."""

    moment: int
    ended: float
    inside: float


def spacing(window_s: float, interval_s: float) -> float:
    """Seconds between the moments to read, for scrapes about every ``interval_s``.

    They are whole milliseconds, as those of every range.
    """
    spacing_s = max(interval_s / MOMENTS_A_SCRAPE, window_s / MOST)
    return max(math.floor(spacing_s * 1000), 1) / 1000


def range_queries(where: queries.Where, spacing_s: float) -> Mapping[str, Query]:
    """The questions that ``count`` needs answered at moments ``spacing_s`` apart."""

    def each(metric: str, function: Function = Function.LAST) -> Query:
        return Query(metric=metric, function=function, window_s=spacing_s, where=where, by=_TARGET)

    return {
        "finished": each(queries.FINISHED),
        "rejected": each(queries.REJECTED),
        "running": each(queries.RUNNING),
        "waiting": each(queries.WAITING),
        "scraped": each(queries.RUNNING, Function.COUNT),
    }


def count(ranges: Ranges, spacing_s: float) -> Arrivals | None:
    """The arrivals that the readings show; ``None`` where too few scrapes tell their interval.

    An interval is unknown where a target missed a scrape, fell back to lower counters, came or
    went. Rejections that an engine does not count are none.
    """
    moments = len(ranges["running"])
    scrapes = _scrapes(ranges, moments)
    step = _step(scrapes)
    if step is None:
        return None
    holes = [0]
    for moment in range(moments):
        holes.append(holes[-1] + any(_is_hole(ranges[name][moment]) for name in ranges))
    slots = int((moments - 1) / step)
    found = [_Slot(0.0, 0, False) for _ in range(slots + 1)]
    for target in scrapes.values():
        for slot, arrived in _by_slot(target, step, holes):
            if slot <= slots:
                found[slot] = found[slot].with_one(arrived)
    # The first holds no whole interval, and the last none of the targets that come late in it.
    return Arrivals(step * spacing_s, tuple(one.arrived for one in found[1:slots]))


class _Slot(NamedTuple):
    """What is known of one interval of the fleet: the sum, of how many targets, and any gap."""

    total: float
    targets: int
    gap: bool

    def with_one(self, arrived: float | None) -> _Slot:
        if arrived is None:
            return self._replace(gap=True)
        return _Slot(self.total + arrived, self.targets + 1, self.gap)

    @property
    def arrived(self) -> float | None:
        return self.total if self.targets and not self.gap else None


def _scrapes(ranges: Ranges, moments: int) -> Mapping[Target, list[_Scrape]]:
    """What each target showed at each of its scrapes."""
    found: dict[Target, list[_Scrape]] = {}
    for moment in range(moments):
        scraped = _by_target(ranges["scraped"][moment])
        if not any(scraped.values()):
            continue
        finished, rejected, running, waiting = (
            _by_target(ranges[name][moment])
            for name in ("finished", "rejected", "running", "waiting")
        )
        for target in scraped:
            if target in finished and target in running and target in waiting:
                found.setdefault(target, []).append(
                    _Scrape(
                        moment,
                        finished[target] + rejected.get(target, 0.0),
                        running[target] + waiting[target],
                    )
                )
    return found


def _by_target(reading: Reading) -> Mapping[Target, float]:
    if isinstance(reading, Partial):
        reading = reading.sample
    if not isinstance(reading, Sample):
        return {}
    return {series.labels: series.value for series in reading.series}


def _is_hole(reading: Reading) -> bool:
    """Whether the answer lacks a target that is there; no data is no hole, but no scrape."""
    return isinstance(reading, Partial | Failed)


def _step(scrapes: Mapping[Target, Sequence[_Scrape]]) -> float | None:
    """Moments between two scrapes: the mean, without those far from the median, which were missed.

    Where scrapes are closer together than the moments can tell, it is of several.
    """
    gaps = [b.moment - a.moment for target in scrapes.values() for a, b in pairwise(target)]
    if not gaps:
        return None
    middle = median(gaps)
    step = fmean(gap for gap in gaps if abs(gap - middle) <= 1)
    return step * max(1, math.ceil(LEAST_A_SCRAPE / step))


def _by_slot(
    scrapes: Sequence[_Scrape], step: float, holes: Sequence[int]
) -> Iterator[tuple[int, float | None]]:
    """The arrivals of one target in each interval that it was there for, ``None`` for a gap.

    ``holes`` counts the moments with a hole before each moment.
    """
    slot, taken = int(scrapes[0].moment / step), 0
    yield slot, None
    while (following := _following(scrapes, taken, step)) is not None:
        before, after = scrapes[taken], scrapes[following]
        passed = round((after.moment - before.moment) / step)
        yield from ((missed, None) for missed in range(slot + 1, slot + passed))
        ended = after.ended - before.ended
        whole = passed == 1 and holes[after.moment + 1] == holes[before.moment]
        slot += passed
        yield slot, ended + after.inside - before.inside if whole and ended >= 0 else None
        taken = following
    yield slot + 1, None


def _following(scrapes: Sequence[_Scrape], taken: int, step: float) -> int | None:
    """The scrape that is nearest to one interval later; ``None`` after the last."""
    best, least = None, math.inf
    for index in range(taken + 1, len(scrapes)):
        passed = scrapes[index].moment - scrapes[taken].moment
        if passed <= step / 2:
            continue
        if abs(passed - step) >= least:
            break
        best, least = index, abs(passed - step)
    return best
