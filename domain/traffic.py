"""The shape of live traffic in one window."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import accumulate
from operator import add
from typing import NamedTuple

from domain.interval import Interval


class Bounds(NamedTuple):
    """What buckets leave open: the value lies above ``low`` and is ``high`` at most."""

    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """A histogram: ``counts[i]`` values lie in (``bounds[i-1]``, ``bounds[i]``].

    ``bounds`` rise; the last may be infinite. ``total`` is the sum of the values themselves.
    """

    bounds: tuple[float, ...]
    counts: tuple[float, ...]
    total: float

    @classmethod
    def of_values(cls, values: Iterable[float], bounds: tuple[float, ...]) -> Distribution:
        counts = [0.0] * (len(bounds) + 1)
        total = 0.0
        for value in values:
            counts[bisect_left(bounds, value)] += 1
            total += value
        return cls(bounds=(*bounds, math.inf), counts=tuple(counts), total=total)

    @property
    def n(self) -> float:
        return sum(self.counts)

    @property
    def mean(self) -> float | None:
        return self.total / self.n if self.n > 0 else None

    def quantile(self, q: float) -> float | None:
        """Linear interpolation inside the bucket, as Prometheus does; ``None`` where empty.

        A quantile that falls into the infinite bucket is that bucket's lower bound.
        """
        place = self._place(q)
        if place is None:
            return None
        (low, high), part = place
        return low if math.isinf(high) else low + (high - low) * part

    def quantile_bounds(self, q: float) -> Bounds | None:
        """The lowest and the highest value that the quantile may have; ``None`` where empty.

        Buckets tell no more: ``quantile`` is a guess between the two, that values spread evenly
        in their bucket. The mean needs no guess, for the sum is counted apart.
        """
        place = self._place(q)
        return None if place is None else place[0]

    def _place(self, q: float) -> tuple[Bounds, float] | None:
        """The bucket that the quantile falls into, and which part of the bucket lies below it."""
        rank = q * self.n
        lower, below = 0.0, 0.0
        place = None
        for bound, count in zip(self.bounds, self.counts, strict=True):
            if count > 0:
                place = Bounds(lower, bound), max(0.0, min(rank - below, count)) / count
                if below + count >= rank:
                    break
            below += count
            lower = bound
        return place

    @property
    def longest(self) -> float | None:
        """The bound below which all values lie, the last finite one where they lie beyond; ``None``
        where empty."""
        reached = [bound for bound, count in zip(self.bounds, self.counts, strict=True) if count]
        if not reached:
            return None
        return max((b for b in self.bounds if b <= reached[-1] and b != math.inf), default=None)

    def with_also(self, other: Distribution) -> Distribution:
        """The values of both; those of other buckets add nothing, since nobody knows where to."""
        if other.bounds != self.bounds:
            return self
        return Distribution(
            bounds=self.bounds,
            counts=tuple(map(add, self.counts, other.counts)),
            total=self.total + other.total,
        )

    def times(self, factor: float) -> Distribution:
        """The same values in another unit."""
        return Distribution(
            bounds=tuple(bound * factor for bound in self.bounds),
            counts=self.counts,
            total=self.total * factor,
        )

    def cumulative(self) -> tuple[float, ...]:
        """Shares of values up to each bound, 0–1; all zero where empty."""
        n = self.n
        return tuple(total / n if n else 0.0 for total in accumulate(self.counts))


@dataclass(frozen=True, slots=True, kw_only=True)
class Latencies:
    """Live latency quantiles in milliseconds; ``None`` where the engine did not say.

    ``e2el_longest_ms`` is the bound below which the longest lies, or the last one that the engine
    tells. ``ttft_ms`` and ``tpot_ms`` are the histograms that they come from.
    """

    ttft_p50_ms: float | None = None
    ttft_p95_ms: float | None = None
    tpot_p50_ms: float | None = None
    tpot_p95_ms: float | None = None
    itl_p50_ms: float | None = None
    itl_p95_ms: float | None = None
    e2el_p50_ms: float | None = None
    e2el_p95_ms: float | None = None
    e2el_longest_ms: float | None = None
    ttft_ms: Distribution | None = None
    tpot_ms: Distribution | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Burstiness:
    """The variance over the mean of arrivals in intervals of ``scale_s``: 1 for a Poisson stream.

    ``interval`` says where it lies, and from how many intervals of time that is known.
    """

    scale_s: float
    dispersion: float
    interval: Interval

    def __str__(self) -> str:
        return f"{self.dispersion:.2g} over {self.scale_s:.3g} s"

    def part(self, engines: int) -> Burstiness:
        """That of the arrivals at one of so many engines, which whole sessions meet by chance: what
        is more or less than a Poisson stream's is left in proportion."""

        def thinned(dispersion: float) -> float:
            return 1 + (dispersion - 1) / engines

        low, high = thinned(self.interval.low), thinned(self.interval.high)
        interval = replace(self.interval, low=low, high=high)
        return replace(self, dispersion=thinned(self.dispersion), interval=interval)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficShape:
    """What live traffic looked like in the window that ended at ``end_s`` (Unix seconds).

    ``rate_rps`` is admitted demand: running, waiting and rejected requests count, not completions
    alone. ``burstiness`` has a row for each scale at which the scrapes can tell it, shortest
    first; ``covered`` is the share (0–1) of the scrape intervals whose arrivals are known. Both may
    be of an earlier window that overlaps with this one.
    ``finish_reasons`` holds how many requests ended for each reason, by its name; ``rejected``
    counts those that were turned away. ``correlation`` is that of ISL and OSL, request by request
    (Spearman's), which counters cannot tell.
    ``kv_cache_usage`` is the mean share (0–1) of the fullest engine. Optional figures are ``None``
    where the signal is missing.
    """

    model: str
    end_s: float
    window_s: float
    requests: float
    rate_rps: float
    running: float
    waiting: float
    isl: Distribution
    osl: Distribution
    latencies: Latencies
    output_tok_s: float | None = None
    burstiness: tuple[Burstiness, ...] = ()
    covered: float | None = None
    finish_reasons: tuple[tuple[str, float], ...] = ()
    rejected: float | None = None
    correlation: float | None = None
    prefix_hit_rate: float | None = None
    draft_acceptance: float | None = None
    kv_cache_usage: float | None = None
    preemptions: float | None = None

    @property
    def concurrency(self) -> float:
        """Mean requests in the engine, running or waiting."""
        return self.running + self.waiting

    @property
    def grown(self) -> float:
        """By how many requests those in the engine became more in the window: what came and was
        neither answered nor turned away."""
        return self.rate_rps * self.window_s - self.requests - (self.rejected or 0.0)

    @property
    def burstiest(self) -> Burstiness | None:
        """The scale at which most burstiness is sure."""
        return max(self.burstiness, key=lambda one: one.interval.low, default=None)

    def part(self, engines: int) -> TrafficShape:
        """What one of so many engines gets that share this traffic evenly.

        All that is counted is shared out. Lengths, latencies and shares are alike on each, and rest
        on what all of them showed.
        """
        if engines == 1:
            return self

        def shared(amount: float | None) -> float | None:
            return None if amount is None else amount / engines

        return replace(
            self,
            requests=self.requests / engines,
            rate_rps=self.rate_rps / engines,
            running=self.running / engines,
            waiting=self.waiting / engines,
            output_tok_s=shared(self.output_tok_s),
            burstiness=tuple(one.part(engines) for one in self.burstiness),
            finish_reasons=tuple((reason, n / engines) for reason, n in self.finish_reasons),
            rejected=shared(self.rejected),
            preemptions=shared(self.preemptions),
        )
