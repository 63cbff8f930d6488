"""How unevenly requests arrive, at several scales; pure.

The index of dispersion is the variance of the counts over their mean: 1 for a Poisson stream,
whatever its rate, below it for an even one and above it for bursts. It depends on how long the
counted intervals are, so it is never told without its scale.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist, fmean
from typing import Final

from domain.interval import Interval
from domain.traffic import Burstiness

SCALES: Final = (1, 4, 16)
"""So many steps are counted together."""
LEAST: Final = 5
"""Fewer counts than these tell no variance."""

_LEVEL: Final = 0.95
_METHOD: Final = "chi-square, degrees of freedom by kurtosis"


def burstiness(
    counts: Sequence[float | None], step_s: float, scales: Sequence[int] = SCALES
) -> tuple[Burstiness, ...]:
    """The index of dispersion of arrivals in steps of ``step_s``, at each scale.

    ``None`` is an unknown count: no interval reaches over it. A scale with fewer than ``LEAST``
    intervals, or without arrivals, is left out.
    """
    found = []
    for scale in scales:
        sums = _sums(counts, scale)
        if len(sums) < LEAST or (mean := fmean(sums)) <= 0:
            continue
        index = sum((x - mean) ** 2 for x in sums) / (len(sums) - 1) / mean
        found.append(
            Burstiness(
                scale_s=scale * step_s, dispersion=index, interval=_interval(sums, mean, index)
            )
        )
    return tuple(found)


def _sums(counts: Sequence[float | None], size: int) -> list[float]:
    """Sums of ``size`` neighbouring counts that are all known; no count is used twice."""
    sums: list[float] = []
    run: list[float] = []
    for one in counts:
        if one is None:
            run = []
            continue
        run.append(one)
        if len(run) == size:
            sums.append(sum(run))
            run = []
    return sums


def _interval(sums: Sequence[float], mean: float, index: float) -> Interval:
    """Where the index lies: the interval of a variance, for counts with tails such as these.

    The chi-square interval holds for normal counts; heavier tails leave fewer degrees of freedom
    (Hummel, Banga and Hettmansperger, 2005). The mean is taken as known, which makes the interval
    wider than it need be, for more bursts raise both.
    """
    n = len(sums)
    freedom = 2 * n / (max(_excess_kurtosis(sums, mean), 0.0) + 2 * n / (n - 1))
    tail = (1 - _LEVEL) / 2
    low, high = (index * freedom / _chi_square(p, freedom) for p in (1 - tail, tail))
    return Interval(low=low, high=high, level=_LEVEL, method=_METHOD, n=n)


def _excess_kurtosis(sums: Sequence[float], mean: float) -> float:
    """Without bias where the values are normal; 0 where all are the same."""
    n = len(sums)
    second = fmean((x - mean) ** 2 for x in sums)
    if second <= 0:
        return 0.0
    raw = fmean((x - mean) ** 4 for x in sums) / second**2 - 3
    return (n - 1) / ((n - 2) * (n - 3)) * ((n + 1) * raw + 6)


def _chi_square(p: float, freedom: float) -> float:
    """The quantile of the chi-square distribution, by Wilson and Hilferty; above zero."""
    ninth = 2 / (9 * freedom)
    root = 1 - ninth + NormalDist().inv_cdf(p) * math.sqrt(ninth)
    return max(freedom * root**3, 1e-6)
