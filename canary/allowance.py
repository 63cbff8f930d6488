"""How far a rehearsed figure may lie from a live one and still tell the same: pure.

Three things are allowed for: the buckets that live figures come from, which leave them open between
two bounds; the size of both samples; and a margin for what a rehearsal cannot share with production
(its hour, its client's place, its batches), stated here for each signal. It must not weigh one
signal against another; ``fidelity`` does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import NamedTuple

from domain.fidelity import Agreement, FidelityRow, Signal
from domain.traffic import Distribution

LEAST_REQUESTS = 20
"""Fewer on either side tell nothing of flows, lengths and times; a share has its own range."""

# Standard errors of a difference. Ranges of two quantiles are added instead, so that each is open
# by a share of them which makes as many where both sides are of a size.
_ERRORS = 2.0
_EACH = _ERRORS / math.sqrt(2)
# vLLM's bounds for times are at most this far apart (0.1 and 0.25 s, 1 and 2.5 s) from 1 ms up to a
# minute and more: vllm/v1/metrics/buckets.py of 0.32.
_WIDEST_BUCKET = 2.5


class Margin(NamedTuple):
    """What counts as close and what as far: shares of the live figure, or points (0–1) where
    ``points``. ``least`` is close in any case, in the signal's own unit."""

    close: float
    far: float
    least: float = 0.0
    points: bool = False


_LENGTH, _FLOW = Margin(0.05, 0.5, least=1.0), Margin(0.15, 0.5)
_SHARE = Margin(0.05, 0.2, points=True)
MARGINS = {
    Signal.RATE: _FLOW,
    Signal.OUTPUT: _FLOW,
    Signal.ISL_MEAN: _LENGTH,
    Signal.ISL_P50: _LENGTH,
    Signal.ISL_P95: _LENGTH,
    Signal.OSL_MEAN: _LENGTH,
    Signal.OSL_P50: _LENGTH,
    Signal.OSL_P95: _LENGTH,
    Signal.PREFIX_HIT_RATE: _SHARE,
    Signal.DRAFT_ACCEPTANCE: _SHARE,
    # The engine stamps a first token where it is made, the client where it arrives.
    Signal.TTFT_P50: Margin(0.25, 0.5, least=10.0),
    Signal.TTFT_P95: Margin(0.5, 1.0, least=20.0),
    Signal.TPOT_P50: Margin(0.15, 0.5, least=1.0),
    Signal.TPOT_P95: Margin(0.25, 0.5, least=2.0),
}


class Figure(NamedTuple):
    """A value, the range that its measuring leaves open, the requests that it rests on, and the
    error that so many make, one standard error either way."""

    value: float
    low: float
    high: float
    n: float
    error: float = 0.0


def exact(value: float | None, n: float) -> Figure | None:
    """A figure that the plan was made to have, so that its own sample is no question."""
    return None if value is None else Figure(value, value, value, n)


def flow(value: float | None, n: float) -> Figure | None:
    """Requests or tokens a second, of ``n`` requests in all."""
    if value is None or n <= 0:
        return None
    return Figure(value, value, value, n, value / math.sqrt(n))


def share(value: float | None, n: float) -> Figure | None:
    """A share (0–1) over the tokens of ``n`` requests, each of which may be all or nothing."""
    if value is None or n <= 0:
        return None
    drawn = (value * n + 1) / (n + 2)
    return Figure(value, value, value, n, math.sqrt(drawn * (1 - drawn) / n))


def mean(values: Sequence[float]) -> Figure | None:
    if len(values) < 2:
        return None
    middle = fmean(values)
    return Figure(middle, middle, middle, len(values), stdev(values) / math.sqrt(len(values)))


def quantile(values: Sequence[float], q: float) -> Figure | None:
    """The ``q``-quantile of single values, open between those of ranks that chance might give."""
    if not values:
        return None
    ordered, last = sorted(values), len(values) - 1
    below, above = _reach(q, len(values))
    return Figure(
        ordered[round(q * last)],
        ordered[math.floor(below * last)],
        ordered[math.ceil(above * last)],
        len(values),
    )


def bucket_quantile(of: Distribution, q: float) -> Figure | None:
    """The same where only buckets are known: open to the bounds of those that the ranks fall in."""
    value = of.quantile(q)
    if value is None:
        return None
    below, above = (of.quantile_bounds(rank) for rank in _reach(q, of.n))
    return Figure(value, below.low, above.high, of.n) if below and above else None


def unstated_quantile(value: float | None, n: float) -> Figure | None:
    """A live time that has lost its buckets: open as far as the widest would leave it."""
    if value is None:
        return None
    return Figure(value, value / _WIDEST_BUCKET, value * _WIDEST_BUCKET, n)


def compared(signal: Signal, live: Figure | None, rehearsed: Figure | None) -> FidelityRow:
    """The row of one signal; UNKNOWN where a side is missing or rests on too few requests."""
    if live is None or rehearsed is None:
        return FidelityRow(
            signal=signal,
            live=live.value if live else None,
            rehearsed=rehearsed.value if rehearsed else None,
            agreement=Agreement.UNKNOWN,
            live_n=live.n if live else 0.0,
            rehearsed_n=int(rehearsed.n) if rehearsed else 0,
        )
    margin = MARGINS[signal]
    low, high = _range(live, rehearsed, margin, margin.close)
    lowest, highest = _range(live, rehearsed, margin, margin.far)
    if min(live.n, rehearsed.n) < LEAST_REQUESTS and not margin.points:
        agreement = Agreement.UNKNOWN
    elif low <= rehearsed.value <= high:
        agreement = Agreement.CLOSE
    elif lowest <= rehearsed.value <= highest:
        agreement = Agreement.OFF
    else:
        agreement = Agreement.FAR
    return FidelityRow(
        signal=signal,
        live=live.value,
        rehearsed=rehearsed.value,
        agreement=agreement,
        low=low,
        high=high,
        live_n=live.n,
        rehearsed_n=int(rehearsed.n),
    )


class _Range(NamedTuple):
    low: float
    high: float


def _range(live: Figure, rehearsed: Figure, margin: Margin, by: float) -> _Range:
    """The rehearsed values that ``by`` allows, widened by what both figures leave open."""
    reach = _ERRORS * math.hypot(live.error, rehearsed.error)
    if margin.points:
        low, high = live.low - by, live.high + by
    else:
        low = min(live.low / (1 + by), live.low - margin.least)
        high = max(live.high * (1 + by), live.high + margin.least)
    low -= reach + rehearsed.high - rehearsed.value
    high += reach + rehearsed.value - rehearsed.low
    return _Range(max(low, 0.0), high)


def _reach(q: float, n: float) -> _Range:
    """The ranks (0–1) between which the true ``q``-quantile of ``n`` values lies."""
    reach = _EACH * math.sqrt(q * (1 - q) / n)
    return _Range(max(q - reach, 0.0), min(q + reach, 1.0))
