"""Confidence intervals for rates, quantiles and proportions; pure, every draw comes from ``seed``.

A load test's requests lean on one another (they share batches and queues), and all requests of one
engine share its start. So engines are compared run by run, one figure a run, and a rate within one
run is resampled by blocks of time, never request by request. Bootstrap intervals are percentile
intervals widened for few units as Student's t would (Hesterberg's expanded percentiles). Nothing
here judges; see ``canary.judge``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtrit

from domain.errors import BadInput
from domain.interval import Interval
from domain.traffic import Distribution

Floats: TypeAlias = NDArray[np.float64]

DRAWS = 4000
USUAL_SPREAD = 0.05
"""Relative standard deviation between starts of one engine, as engines usually differ: what a few
runs say of their spread is held against it, with the weight of ``USUAL_DOF`` degrees of freedom."""
USUAL_DOF = 2
_MOST_LOG = math.log(1e12)


class Share(NamedTuple):
    """Hits among tries, block by block."""

    hits: tuple[float, ...]
    tries: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """What came out in each block of time, and its seconds; equal lengths, not empty, and not all
    of no seconds.

    With a ``share``, the rate is the amount a second times the share of hits among all tries.
    """

    amounts: tuple[float, ...]
    seconds: tuple[float, ...]
    share: Share | None = None

    @property
    def rate(self) -> float:
        return _a_second(self) if self.share is None else _a_second(self) * _overall(self.share)


def _a_second(blocks: Blocks) -> float:
    return sum(blocks.amounts) / sum(blocks.seconds)


def _overall(share: Share) -> float:
    return sum(share.hits) / sum(share.tries) if sum(share.tries) else 0.0


def _deviate(level: float) -> float:
    """The normal deviate of a two-sided interval at ``level``."""
    return NormalDist().inv_cdf(0.5 + level / 2)


def _student(level: float, dof: int) -> float:
    """Student's deviate of a two-sided interval at ``level``."""
    return float(stdtrit(dof, 0.5 + level / 2))


def _percentiles(draws: Floats, level: float, units: int, method: str, n: int) -> Interval:
    """The interval of ``draws``, widened for ``units`` resampled units in the smaller sample."""
    dof = max(units - 1, 1)
    tail = NormalDist().cdf(-math.sqrt((dof + 1) / dof) * _student(level, dof))
    low, high = np.quantile(draws, (tail, 1 - tail))
    return Interval(low=float(low), high=float(high), level=level, method=method, n=n)


def _resampled_rates(blocks: Blocks, generator: np.random.Generator) -> Floats:
    """``DRAWS`` rates, each of as many blocks as there are, drawn with replacement."""
    n = len(blocks.amounts)
    times = generator.multinomial(n, np.full(n, 1 / n), size=DRAWS)
    amounts, seconds = times @ np.asarray(blocks.amounts), times @ np.asarray(blocks.seconds)
    # A draw of nothing but blocks in which nobody waited says nothing of the rate.
    rates: Floats = np.where(
        seconds > 0, amounts / np.where(seconds > 0, seconds, 1), _a_second(blocks)
    )
    if blocks.share is None:
        return rates
    hits, tries = times @ np.asarray(blocks.share.hits), times @ np.asarray(blocks.share.tries)
    # A draw of nothing but blocks in which no request ended says nothing of the share.
    return rates * np.where(tries > 0, hits / np.maximum(tries, 1), _overall(blocks.share))


def rate_interval(blocks: Blocks, *, level: float, seed: int) -> Interval:
    """The interval of one rate, a second."""
    n = len(blocks.amounts)
    draws = _resampled_rates(blocks, np.random.default_rng(seed))
    return _percentiles(draws, level, n, "block bootstrap of a rate", n)


def rate_ratio(candidate: Blocks, baseline: Blocks, *, least: float) -> float:
    """Candidate's rate over the baseline's; a rate below ``least``, above zero, is taken as it.

    So a baseline without any divides by no zero, and nothing against nothing is 1.
    """
    return max(candidate.rate, least) / max(baseline.rate, least)


def rate_ratio_interval(
    candidate: Blocks, baseline: Blocks, *, least: float, level: float, seed: int
) -> Interval:
    """The interval of ``rate_ratio``; both arms' blocks are resampled, each for itself."""
    generator = np.random.default_rng(seed)
    above = np.maximum(_resampled_rates(candidate, generator), least)
    below = np.maximum(_resampled_rates(baseline, generator), least)
    units = (len(candidate.amounts), len(baseline.amounts))
    method = f"block bootstrap of a ratio of rates, at least {least:.4g} a second each"
    return _percentiles(above / below, level, min(units), method, sum(units))


def quantile(values: ArrayLike, q: float) -> float:
    """The smallest value that at least the share ``q`` of ``values`` does not exceed."""
    return float(np.quantile(np.asarray(values, dtype=float), q, method="inverted_cdf"))


class RunRatio(NamedTuple):
    """Two arms' geometric means over their runs, and the interval of the ratio of these."""

    candidate: float
    baseline: float
    interval: Interval

    @property
    def estimate(self) -> float:
        return self.candidate / self.baseline


def run_ratio(candidate: Sequence[float], baseline: Sequence[float], *, level: float) -> RunRatio:
    """Compare one positive figure a run, at least two runs an arm, each of a fresh engine.

    Student's interval on the logarithms, with one spread for both arms, moderated by what is usual
    (Smyth 2004, as limma does): the spread of two or three runs is itself mostly chance, so that
    some pairs would prove anything and others nothing. It holds all that varies from run to run.
    Where runs of both arms alternate, a host that drifts widens it and moves it little.
    """
    ours, theirs = np.log(np.asarray(candidate)), np.log(np.asarray(baseline))
    squares = ((ours - ours.mean()) ** 2).sum() + ((theirs - theirs.mean()) ** 2).sum()
    dof = len(ours) + len(theirs) - 2 + USUAL_DOF
    spread = math.sqrt((squares + USUAL_DOF * USUAL_SPREAD**2) / dof)
    half = _student(level, dof) * spread * math.sqrt(1 / len(ours) + 1 / len(theirs))
    centre = float(ours.mean() - theirs.mean())
    return RunRatio(
        candidate=float(np.exp(ours.mean())),
        baseline=float(np.exp(theirs.mean())),
        interval=Interval(
            low=_exp(centre - half),
            high=_exp(centre + half),
            level=level,
            method=f"moderated t on logarithms of {len(ours)} + {len(theirs)} runs",
            n=len(ours) + len(theirs),
        ),
    )


def _exp(log: float) -> float:
    """At most 1e12 either way, so that an interval from two runs stays a number."""
    return math.exp(min(max(log, -_MOST_LOG), _MOST_LOG))


def _resampled_histogram_quantiles(
    values: Distribution, q: float, generator: np.random.Generator
) -> Floats:
    """``DRAWS`` quantiles of histograms drawn from ``values``, each of as many values."""
    counts = np.asarray(values.counts)
    n = max(1, round(values.n))
    drawn = generator.multinomial(n, counts / counts.sum(), size=DRAWS)
    reached = np.cumsum(drawn, axis=1)
    bucket = np.argmax(reached >= q * n, axis=1)
    inside = np.take_along_axis(drawn, bucket[:, None], axis=1)[:, 0]
    below = np.take_along_axis(reached, bucket[:, None], axis=1)[:, 0] - inside
    uppers = np.asarray(values.bounds)
    lowers = np.concatenate(([0.0], uppers[:-1]))
    # The infinite bucket has no width that is known: its values are taken at its lower bound.
    widths = np.where(np.isinf(uppers), 0.0, uppers - lowers)
    share = np.maximum(q * n - below, 0.0) / np.maximum(inside, 1)
    result: Floats = lowers[bucket] + widths[bucket] * share
    return result


def histogram_quantile_difference_interval(
    candidate: Distribution, baseline: Distribution, q: float, *, level: float, seed: int
) -> Interval:
    """The interval of candidate's quantile minus the baseline's, in the bounds' own unit; of one
    window each, where only the histograms are known; neither empty."""
    generator = np.random.default_rng(seed)
    ours = _resampled_histogram_quantiles(candidate, q, generator)
    theirs = _resampled_histogram_quantiles(baseline, q, generator)
    sizes = (round(candidate.n), round(baseline.n))
    method = f"multinomial bootstrap of a difference of histograms' p{q * 100:g}"
    return _percentiles(ours - theirs, level, min(sizes), method, sum(sizes))


def _mean_variance(values: Distribution) -> float:
    """The variance of the mean of what a histogram counted. In a bucket values lie evenly; in the
    infinite one they fall off behind its bound, as far as their sum says."""
    counts, uppers = np.asarray(values.counts), np.asarray(values.bounds)
    lowers = np.concatenate(([0.0], uppers[:-1]))
    endless = np.isinf(uppers)
    uppers = np.where(endless, lowers, uppers)
    middles, n = (lowers + uppers) / 2, counts.sum()
    beyond = max(0.0, values.total - counts @ middles) / max(counts @ endless, 1.0)
    middles = middles + endless * beyond
    inside = (uppers - lowers) ** 2 / 12 + endless * beyond**2
    spread = counts @ ((middles - counts @ middles / n) ** 2 + inside) / n
    return float(spread / max(n - 1, 1))


def histogram_mean_difference_interval(
    candidate: Distribution, baseline: Distribution, *, level: float
) -> Interval:
    """The interval of candidate's mean minus the baseline's, in the bounds' own unit; neither
    empty. The means are exact, since a histogram sums its values apart; their spread is not."""
    ours, theirs = candidate.mean, baseline.mean
    if ours is None or theirs is None:
        raise BadInput("A mean of nothing has no interval.")
    half = _deviate(level) * math.sqrt(_mean_variance(candidate) + _mean_variance(baseline))
    return Interval(
        low=ours - theirs - half,
        high=ours - theirs + half,
        level=level,
        method="normal, of a difference of histograms' means",
        n=round(candidate.n + baseline.n),
    )


def proportion_interval(hits: int, n: int, *, level: float) -> Interval:
    """Wilson's interval of ``hits`` out of ``n``; (0, 1) where nothing was tried."""
    if n == 0:
        return Interval(low=0.0, high=1.0, level=level, method="Wilson", n=0)
    z, p = _deviate(level), hits / n
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    low, high = max(0.0, centre - half), min(1.0, centre + half)
    return Interval(low=low, high=high, level=level, method="Wilson", n=n)


def proportion_difference_interval(
    candidate_hits: int, candidate_n: int, baseline_hits: int, baseline_n: int, *, level: float
) -> Interval:
    """Newcombe's interval of the candidate's proportion minus the baseline's."""
    ours = proportion_interval(candidate_hits, candidate_n, level=level)
    theirs = proportion_interval(baseline_hits, baseline_n, level=level)
    p = candidate_hits / max(candidate_n, 1)
    q = baseline_hits / max(baseline_n, 1)
    return Interval(
        low=p - q - math.hypot(p - ours.low, theirs.high - q),
        high=p - q + math.hypot(ours.high - p, q - theirs.low),
        level=level,
        method="Newcombe",
        n=candidate_n + baseline_n,
    )
