"""The TrafficShape of a stretch of a trace, so that a trace can be tuned for as live traffic is.

Pure. What engines alone know (latencies, running requests) a trace does not tell.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from statistics import correlation

from canary.traces.prefixes import ideal_reuse
from domain.burstiness import LEAST, SCALES, burstiness
from domain.errors import BadInput
from domain.trace import Trace
from domain.traffic import Distribution, Latencies, TrafficShape

# vLLM's own buckets of lengths, so that a trace's shape lies beside a live one.
BOUNDS = tuple(float(digit * 10**power) for power in range(6) for digit in (1, 2, 5))
# Arrivals are counted as often as Prometheus would look, or more often in a short stretch, so that
# the longest scale is told as well.
INTERVAL_S = 15.0
LEAST_INTERVALS = LEAST * max(SCALES)


def shape_of(
    trace: Trace,
    start_s: float = 0.0,
    window_s: float | None = None,
    *,
    model: str = "",
    running: float = 0.0,
    bounds: tuple[float, ...] = BOUNDS,
) -> TrafficShape:
    """The shape of [``start_s``, ``start_s + window_s``), by default all from ``start_s`` on.

    Prefix reuse is what an unbounded cache would find that all earlier requests of the trace have
    filled. ``running`` is the concurrency to assume. BadInput for a stretch without requests, and
    for a trace without lengths.
    """
    if window_s is None:
        window_s = max(trace.length_s - start_s, 1.0)
    requests = trace.window(start_s, window_s).requests
    lengths = [(r.isl, r.osl) for r in requests if r.isl is not None and r.osl is not None]
    if not requests:
        raise BadInput(
            f"The trace has no request from {start_s:g} s on for {window_s:g} s; it is"
            f" {trace.length_s:g} s long."
        )
    if len(lengths) < len(requests):
        raise BadInput("The trace tells no lengths, and a shape without them imitates nothing.")
    before = trace.window(0.0, start_s + window_s)
    step_s = min(INTERVAL_S, window_s / LEAST_INTERVALS)
    return TrafficShape(
        model=model,
        end_s=(trace.start_s or 0.0) + start_s + window_s,
        window_s=window_s,
        requests=float(len(requests)),
        rate_rps=len(requests) / window_s,
        running=running,
        waiting=0.0,
        isl=Distribution.of_values((isl for isl, _ in lengths), bounds),
        osl=Distribution.of_values((osl for _, osl in lengths), bounds),
        latencies=Latencies(),
        burstiness=burstiness(_counts([r.offset_s for r in requests], window_s, step_s), step_s),
        correlation=length_correlation(lengths),
        prefix_hit_rate=ideal_reuse(before, from_s=start_s),
    )


def length_correlation(lengths: Sequence[tuple[int, int]]) -> float | None:
    """Spearman's rank correlation (−1 to 1) of ISL and OSL; ``None`` where it has no meaning."""
    isl, osl = [float(pair[0]) for pair in lengths], [float(pair[1]) for pair in lengths]
    if len(set(isl)) < 2 or len(set(osl)) < 2:
        return None
    return correlation(_ranks(isl), _ranks(osl))


def _counts(offsets_s: Sequence[float], window_s: float, step_s: float) -> list[float]:
    """Arrivals in each whole step of the window."""
    counts = [0.0] * math.floor(window_s / step_s + 1e-9)
    for offset_s in offsets_s:
        if (step := int(offset_s / step_s)) < len(counts):
            counts[step] += 1
    return counts


def _ranks(values: Sequence[float]) -> list[float]:
    """Ranks from 0; equal values share the mean of theirs."""
    rising = sorted(values)
    return [(bisect_left(rising, value) + bisect_right(rising, value) - 1) / 2 for value in values]
