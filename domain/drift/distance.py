"""How far two windows of traffic lie apart, and in what.

Every component has a scale of its own on which 1 is about as grave: demand and mean lengths double
or halve, half of the requests move to other lengths, twice or half as many prompt tokens miss the
prefix cache, half of the drafted tokens more or fewer are accepted. A component that either window
does not know is left out. Nothing here says how far is too far.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from enum import Enum
from itertools import accumulate, pairwise
from typing import Final, NamedTuple

from domain.traffic import Distribution, TrafficShape

LEAST_RATE_RPS: Final = 0.001
"""A lower rate is taken as this one, so that none at all has a distance too."""
LEAST_CONCURRENCY: Final = 1.0
"""Fewer requests in the engine than this are taken as this many: no config minds the difference."""
LEAST_MISSED: Final = 0.05
"""A smaller share of prompt tokens outside the prefix cache is taken as this one."""


class Component(Enum):
    """What of a shape can move; the value is what a sentence calls it."""

    DEMAND = "demand"
    CONCURRENCY = "requests in the engine"
    ISL = "ISL"
    OSL = "OSL"
    HIT_RATE = "prefix hit rate"
    ACCEPTANCE = "draft acceptance"


class Distance(NamedTuple):
    """The largest component's distance, 0 for the same; ``component`` says which it is."""

    value: float
    component: Component


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """A distribution of lengths in tokens, in few numbers.

    Up to the length ``bounds[i]`` lies the share ``reached[i]`` of all, and between bounds it rises
    evenly: only bounds at which the slope changes are kept. ``variation`` is the standard deviation
    over the mean, taken from the buckets' middles.
    """

    mean: float
    variation: float
    bounds: tuple[float, ...]
    reached: tuple[float, ...]

    @classmethod
    def of(cls, values: Distribution) -> Lengths | None:
        """``None`` where there is no length at all."""
        mean = values.mean
        if mean is None or mean <= 0:
            return None
        finite = [bound for bound in values.bounds if not math.isinf(bound)]
        edges = [0.0, *finite]
        middles = [(low + high) / 2 for low, high in pairwise(edges)]
        middles += [edges[-1]] * (len(values.bounds) - len(finite))
        n = values.n
        centre = sum(m * count for m, count in zip(middles, values.counts, strict=True)) / n
        squares = sum(
            count * (middle - centre) ** 2
            for middle, count in zip(middles, values.counts, strict=True)
        )
        counts = [0.0, *values.counts, 0.0]
        bends = [i for i in range(len(finite)) if counts[i + 1] > 0 or counts[i + 2] > 0]
        # Rounded, as many of these are stored as text.
        reached = [round(total / n, 5) for total in accumulate(values.counts)]
        return cls(
            mean=mean,
            variation=math.sqrt(squares / n) / centre if centre > 0 else 0.0,
            bounds=tuple(finite[i] for i in bends),
            reached=tuple(reached[i] for i in bends),
        )

    def up_to(self, length: float) -> float:
        """The share of lengths up to this one, 0–1; beyond the last bound that bound's share."""
        place = bisect_left(self.bounds, length)
        if place == len(self.bounds):
            return self.reached[-1] if self.reached else 0.0
        high, above = self.bounds[place], self.reached[place]
        low = self.bounds[place - 1] if place else 0.0
        below = self.reached[place - 1] if place else 0.0
        return below + (above - below) * (length - low) / (high - low)

    def gap(self, other: Lengths) -> float:
        """The largest gap between the two cumulative shares (Kolmogorov's), 0–1.

        Taken at the bounds of both; where one of them has only its open bucket left, nothing more
        is known.
        """
        if not self.bounds or not other.bounds:
            return 0.0
        last = min(self.bounds[-1], other.bounds[-1])
        shared = {bound for bound in (*self.bounds, *other.bounds) if bound <= last}
        return max((abs(self.up_to(b) - other.up_to(b)) for b in shared), default=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """What drift looks at in one shape, small enough to keep many; ``end_s`` in Unix seconds."""

    end_s: float
    requests: float
    rate_rps: float
    concurrency: float
    isl: Lengths | None
    osl: Lengths | None
    dispersion: float | None = None
    prefix_hit_rate: float | None = None
    draft_acceptance: float | None = None

    @classmethod
    def of(cls, shape: TrafficShape) -> Window:
        return cls(
            end_s=shape.end_s,
            requests=shape.requests,
            rate_rps=shape.rate_rps,
            concurrency=shape.concurrency,
            isl=Lengths.of(shape.isl),
            osl=Lengths.of(shape.osl),
            dispersion=shape.burstiness[-1].dispersion if shape.burstiness else None,
            prefix_hit_rate=shape.prefix_hit_rate,
            draft_acceptance=shape.draft_acceptance,
        )


def distance(one: TrafficShape, other: TrafficShape) -> Distance:
    """How far two shapes lie apart, in what they differ most; the same in both directions."""
    first, second = Window.of(one), Window.of(other)
    distances = (Distance(apart(each, first, second) or 0.0, each) for each in Component)
    return max(distances, key=lambda each: each.value)


def apart(component: Component, one: Window, other: Window) -> float | None:
    """How far the windows lie apart in one component; ``None`` where one does not know it."""
    match component:
        case Component.DEMAND:
            return _octaves(max(one.rate_rps, LEAST_RATE_RPS), max(other.rate_rps, LEAST_RATE_RPS))
        case Component.CONCURRENCY:
            return _octaves(
                max(one.concurrency, LEAST_CONCURRENCY), max(other.concurrency, LEAST_CONCURRENCY)
            )
        case Component.ISL:
            return _lengths_apart(one.isl, other.isl)
        case Component.OSL:
            return _lengths_apart(one.osl, other.osl)
        case Component.HIT_RATE:
            if one.prefix_hit_rate is None or other.prefix_hit_rate is None:
                return None
            return _octaves(missed(one.prefix_hit_rate), missed(other.prefix_hit_rate))
        case Component.ACCEPTANCE:
            if one.draft_acceptance is None or other.draft_acceptance is None:
                return None
            return 2 * abs(one.draft_acceptance - other.draft_acceptance)


def missed(hit_rate: float) -> float:
    """The share of prompt tokens that must be computed, not less than ``LEAST_MISSED``."""
    return max(1.0 - hit_rate, LEAST_MISSED)


def _octaves(one: float, other: float) -> float:
    return abs(math.log2(one / other))


def _lengths_apart(one: Lengths | None, other: Lengths | None) -> float | None:
    if one is None or other is None:
        return None
    return max(_octaves(one.mean, other.mean), 2 * one.gap(other))
