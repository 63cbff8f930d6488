"""Lengths of requests, drawn from the distributions of a shape. Pure, and seeded by its caller."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from statistics import NormalDist
from typing import NamedTuple

from domain.errors import BadInput
from domain.traffic import Distribution, TrafficShape

# Every run of so many draws covers the distribution evenly, so that short runs resemble it too.
_STRATA = 32


class Turn(NamedTuple):
    """Lengths of one request, in tokens."""

    isl: int
    osl: int


def fitting(isl: int, osl: int, longest: float) -> Turn:
    """The lengths, clipped so that both fit ``longest`` tokens: of the prompt, if that will do."""
    osl = int(min(osl, max(1, longest - 1)))
    return Turn(int(min(isl, max(1, longest - osl))), osl)


def draw_turns(
    shape: TrafficShape, rng: random.Random, n: int, *, longest: float, correlation: float = 0.0
) -> list[Turn]:
    """``n`` requests' lengths, distributed as in ``shape``.

    ``correlation`` of ISL and OSL is Spearman's, −1 to 1; BadInput for anything else.
    """
    if not -1 <= correlation <= 1:
        raise BadInput(f"A correlation lies between -1 and 1; got {correlation}.")
    isl, osl = _draw(shape.isl, rng, n), _draw(shape.osl, rng, n)
    if correlation:
        osl = _correlated(isl, osl, rng, correlation)
    return [fitting(*pair, longest) for pair in zip(isl, osl, strict=True)]


def in_sessions(turns: Sequence[Turn], each: int) -> list[list[Turn]]:
    """Turns dealt to sessions of ``each``; prompts grow, which leaves their distribution alone."""
    return [
        sorted(turns[first : first + each], key=lambda turn: turn.isl)
        for first in range(0, len(turns), each)
    ]


def _draw(of: Distribution, rng: random.Random, n: int) -> list[int]:
    """``n`` whole values: each bucket as often as in ``of``, and the mean of ``of``.

    Buckets are wide (500 to 1,000 tokens), so where values lie inside them follows from the known
    sum: they lie at ``u ** power`` of the width, whose mean is 1 / (1 + power).
    """
    lower = (0.0, *of.bounds[:-1])
    upper = [low if math.isinf(b) else b for low, b in zip(lower, of.bounds, strict=True)]
    width = [high - low for low, high in zip(lower, upper, strict=True)]
    base = sum(count * low for count, low in zip(of.counts, lower, strict=True)) / of.n
    spread = sum(count * wide for count, wide in zip(of.counts, width, strict=True)) / of.n
    # The step to the next whole token adds half a token on average.
    place = (of.total / of.n - 0.5 - base) / spread if spread > 0 else 0.5
    power = 1 / min(max(place, 0.01), 0.99) - 1
    reached = of.cumulative()
    values = []
    for u in _even(rng, n):
        bucket = next((i for i, share in enumerate(reached) if u < share), len(reached) - 1)
        value = lower[bucket] + width[bucket] * rng.random() ** power
        # The next whole token above: a bucket holds its upper bound, not its lower one.
        values.append(int(min(int(value) + 1, of.bounds[bucket])))
    return values


def _even(rng: random.Random, n: int) -> Iterator[float]:
    """``n`` numbers in [0, 1), one in each of ``_STRATA`` equal parts in turn, in random order."""
    for start in range(0, n, _STRATA):
        strata = list(range(_STRATA))
        rng.shuffle(strata)
        for stratum in strata[: n - start]:
            yield (stratum + rng.random()) / _STRATA


def _correlated(
    isl: Sequence[int], osl: Sequence[int], rng: random.Random, correlation: float
) -> list[int]:
    """``osl`` in another order, run by run, so that its ranks follow those of ``isl``.

    Ranks are joined by a Gaussian copula (Iman and Conover): no value is changed.
    """
    # A normal copula of this coefficient has the wanted correlation of ranks.
    normal = 2 * math.sin(math.pi * correlation / 6)
    rest = math.sqrt(max(0.0, 1 - normal**2))
    ordered: list[int] = []
    for start in range(0, len(isl), _STRATA):
        run, free = isl[start : start + _STRATA], sorted(osl[start : start + _STRATA])
        rising = sorted(range(len(run)), key=run.__getitem__)
        scores = [0.0] * len(run)
        for rank, place in enumerate(rising):
            score = NormalDist().inv_cdf((rank + 0.5) / len(run))
            scores[place] = normal * score + rest * rng.gauss(0.0, 1.0)
        given = [0] * len(run)
        for value, place in zip(free, sorted(range(len(run)), key=scores.__getitem__), strict=True):
            given[place] = value
        ordered += given
    return ordered
