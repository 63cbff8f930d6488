"""The recent past of the scraped targets, in bounded memory, and the answers it gives.

It means what a Prometheus server means: labels of a target win over the engine's own, a series
that is missing from a scrape is stale at once, a failed scrape makes all series of its target
stale and sets its ``up`` to 0, a target with too many series counts as failed. It knows no network
and no clock: whoever records says when.
"""

from __future__ import annotations

import math
import struct
from array import array
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

from domain.metrics import Function, NoData, Partial, Query, Reading, Sample, Series
from tools.completeness import LEAST_ANSWERED, missed, target_where
from tools.exposition import Labels, Point
from tools.overtime import OVER_TIME, Window
from tools.queries import UP

_STALE_BITS: Final = struct.pack("<Q", 0x7FF8_0000_0000_0002)
_STALE: Final = struct.unpack("<d", _STALE_BITS)[0]
_DEAD_PREFIX: Final = 64


class _Ring:
    """The samples of one series: times in milliseconds, rising, and their values.

    ``marked`` says that a stale marker was ever among them: most series never have one.
    """

    __slots__ = ("marked", "times_ms", "values")

    def __init__(self) -> None:
        self.times_ms: array[int] = array("q")
        self.values: array[float] = array("d")
        self.marked = False

    def add(self, at_ms: int, value: float, oldest_ms: int) -> None:
        self.times_ms.append(at_ms)
        self.values.append(value)
        dead = bisect_right(self.times_ms, oldest_ms)
        if dead >= _DEAD_PREFIX:
            del self.times_ms[:dead]
            del self.values[:dead]

    def mark_stale(self, at_ms: int, oldest_ms: int) -> None:
        self.marked = True
        self.add(at_ms, _STALE, oldest_ms)

    def last(self, after_ms: int, at_ms: int) -> float | None:
        """The newest value in (``after_ms``, ``at_ms``]; ``None`` where there is none or stale."""
        newest = bisect_right(self.times_ms, at_ms) - 1
        if newest < 0 or self.times_ms[newest] <= after_ms or _is_stale(self.values[newest]):
            return None
        return self.values[newest]

    def window(self, start_ms: int, end_ms: int) -> Window:
        low, high = bisect_right(self.times_ms, start_ms), bisect_right(self.times_ms, end_ms)
        if not self.marked:
            return Window(start_ms, end_ms, self.times_ms[low:high], self.values[low:high])
        kept = [i for i in range(low, high) if not _is_stale(self.values[i])]
        return Window(
            start_ms, end_ms, [self.times_ms[i] for i in kept], [self.values[i] for i in kept]
        )


class History:
    """Series by metric and labels, for ``retention_s`` seconds, at most ``series_cap`` of them.

    A sample as old as ``lookback_s`` or older is stale.
    """

    def __init__(self, *, retention_s: float, lookback_s: float, series_cap: int) -> None:
        self._retention_ms = round(retention_s * 1000)
        self._lookback_ms = round(lookback_s * 1000)
        self._series_cap = series_cap
        self._rings: dict[str, dict[Labels, _Ring]] = defaultdict(dict)
        self._live: dict[Labels, dict[tuple[str, Labels], _Ring]] = {}
        self._newest_ms = -1
        self._series = 0

    @property
    def series(self) -> int:
        """How many series are kept."""
        return self._series

    def record(
        self, at_s: float, scrapes: Mapping[Labels, Sequence[Point] | None]
    ) -> tuple[str, ...]:
        """Take one round of scrapes, by the labels of their target; ``None`` is a failed scrape.

        A known target that is absent has been removed. Returns sentences about what could not be
        kept. Where the clock went back, all that was known is forgotten: a sample that claims to
        be younger than now cannot be told from a fresh one.
        """
        at_ms = round(at_s * 1000)
        faults = []
        if at_ms < self._newest_ms:
            faults.append("the clock went back, so the recorded metrics were dropped")
            self._rings.clear()
            self._live.clear()
            self._series = 0
        elif at_ms == self._newest_ms:
            return ()
        self._newest_ms = at_ms
        self._forget()
        for target in self._live.keys() - scrapes.keys():
            self._settle(at_ms, target, {})
        for target, points in scrapes.items():
            seen = None if points is None else self._take(at_ms, target, points)
            if points is not None and seen is None:
                faults.append(
                    f"a scrape was refused: more than {self._series_cap} series altogether"
                )
            alive = seen or {}
            alive[UP, target] = self._ring(UP, target)
            alive[UP, target].add(at_ms, float(seen is not None), self._oldest_ms)
            self._settle(at_ms, target, alive)
        return tuple(faults)

    def read(self, query: Query, at_s: float) -> Reading:
        """The answer as of ``at_s``, by the rules of ``domain.metrics``."""
        return self.read_at(query, (at_s,))[0]

    def read_at(self, query: Query, moments: Sequence[float]) -> tuple[Reading, ...]:
        """The answer as of each of the moments; what matches is looked up once for all."""
        matching = []
        for labels, ring in self._rings.get(query.metric, {}).items():
            if _matches(labels, query.where):
                known = dict(labels)
                matching.append((tuple(known.get(name, "") for name in query.by), ring))
        where = target_where(query)
        covered = {
            labels: ring
            for labels, ring in self._rings.get(UP, {}).items()
            if _matches(labels, where)
        }
        return tuple(self._answer(query, matching, covered, at_s) for at_s in moments)

    def _answer(
        self,
        query: Query,
        matching: Sequence[tuple[tuple[str, ...], _Ring]],
        covered: Mapping[Labels, _Ring],
        at_s: float,
    ) -> Reading:
        """The answer from the rings that match, by group, and those of the targets covered."""
        at_ms = round(at_s * 1000)
        fresh_ms = at_ms - self._lookback_ms
        sums: dict[tuple[str, ...], float] = {}
        for key, ring in matching:
            value = self._value(query, ring, at_ms, fresh_ms)
            if value is not None:
                sums[key] = sums.get(key, 0.0) + value
        absent = self._missed(query, covered, at_ms, fresh_ms)
        tail = f"; {missed(absent)}" if absent else ""
        if not matching:
            return NoData(reason=f"{query.metric}: nothing matches{tail}")
        if not sums or all(ring.last(fresh_ms, at_ms) is None for _, ring in matching):
            return NoData(reason=f"{query.metric}: nothing fresh matches{tail}")
        if not all(map(math.isfinite, sums.values())):
            return NoData(reason=f"{query.metric}: the answer is not a finite number{tail}")
        sample = Sample(
            at_s=at_s,
            series=tuple(
                Series(labels=tuple(zip(query.by, key, strict=True)), value=sums[key])
                for key in sorted(sums)
            ),
        )
        return Partial(reason=missed(absent), sample=sample) if absent else sample

    def _value(self, query: Query, ring: _Ring, at_ms: int, fresh_ms: int) -> float | None:
        if query.function is Function.LAST:
            return ring.last(fresh_ms, at_ms)
        return OVER_TIME[query.function](ring.window(at_ms - round(query.window_s * 1000), at_ms))

    def _missed(
        self, query: Query, covered: Mapping[Labels, _Ring], at_ms: int, fresh_ms: int
    ) -> list[dict[str, str]]:
        """The labels of the targets that the query covers and that missed scrapes."""
        absent = []
        for labels, ring in covered.items():
            failed = ring.last(fresh_ms, at_ms) == 0
            if not failed and query.function is not Function.LAST:
                window = ring.window(at_ms - round(query.window_s * 1000), at_ms)
                answered = OVER_TIME[Function.AVG](window)
                failed = answered is not None and answered < LEAST_ANSWERED
            if failed:
                absent.append(dict(labels))
        return absent

    def _take(
        self, at_ms: int, target: Labels, points: Sequence[Point]
    ) -> dict[tuple[str, Labels], _Ring] | None:
        """Record a target's points; ``None``, and nothing recorded, where they are too many."""
        own = dict(target)
        found = {}
        for point in points:
            theirs = {f"exported_{k}" if k in own else k: v for k, v in point.labels}
            found[point.name, tuple(sorted({**theirs, **own}.items()))] = point.value
        new = sum(labels not in self._rings[name] for name, labels in found)
        if self._series + new > self._series_cap:
            return None
        seen = {}
        for (name, labels), value in found.items():
            seen[name, labels] = self._ring(name, labels)
            seen[name, labels].add(at_ms, value, self._oldest_ms)
        return seen

    def _settle(self, at_ms: int, target: Labels, seen: dict[tuple[str, Labels], _Ring]) -> None:
        """Mark the series stale that the target had before and has not now."""
        for key, ring in self._live.get(target, {}).items():
            if key not in seen:
                ring.mark_stale(at_ms, self._oldest_ms)
        if seen:
            self._live[target] = seen
        else:
            self._live.pop(target, None)

    @property
    def _oldest_ms(self) -> int:
        return self._newest_ms - self._retention_ms

    def _ring(self, name: str, labels: Labels) -> _Ring:
        """The series' ring, made where it is new."""
        ring = self._rings[name].get(labels)
        if ring is None:
            ring = self._rings[name][labels] = _Ring()
            self._series += 1
        return ring

    def _forget(self) -> None:
        """Let go of series without a sample in the retention."""
        for rings in self._rings.values():
            for labels in [k for k, ring in rings.items() if ring.times_ms[-1] < self._oldest_ms]:
                del rings[labels]
                self._series -= 1


def _matches(labels: Labels, where: Labels) -> bool:
    known = dict(labels)
    return all(known.get(name, "") == value for name, value in where)


def _is_stale(value: float) -> bool:
    return math.isnan(value) and struct.pack("<d", value) == _STALE_BITS
