"""Does the rehearsal reproduce production? What the baseline's trial measured against the live
shape: pure.

Whatever a study finds holds for the load that it was found under. So the first trial, production's
own config under the plan, is held against what production measured of itself, signal by signal. A
figure that decides what an engine has to do (how much, how long, how much of it cached) and that is
far off makes the grade D. It must not soften a missing signal into agreement, nor into a failure;
where most of what matters is missing there is no grade.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from canary.allowance import (
    Figure,
    bucket_quantile,
    compared,
    exact,
    flow,
    mean,
    quantile,
    share,
    unstated_quantile,
)
from domain.fidelity import Agreement, Fidelity, FidelityRow, Grade, Signal
from domain.study import Measurement
from domain.traffic import Distribution, TrafficShape

MAIN = frozenset(
    {
        Signal.RATE,
        Signal.OUTPUT,
        Signal.ISL_MEAN,
        Signal.OSL_MEAN,
        Signal.PREFIX_HIT_RATE,
        Signal.DRAFT_ACCEPTANCE,
        Signal.TTFT_P50,
        Signal.TPOT_P50,
    }
)
"""Signals that refuse a rehearsal where they are far off; the others only lower its grade."""

MOST_OFF = 2
"""Rows that may be off before the grade falls to C."""


def compare(shape: TrafficShape, measured: Measurement) -> Fidelity:
    """The grade of a rehearsal of production's own config, with a row for each signal.

    Lengths and the hit rate of the plan were made after this very shape, so their live figures
    count as exact; flows and times are samples on both sides.
    """
    rows = tuple(_rows(shape, measured))
    grade = _grade(rows)
    return Fidelity(grade=grade, rows=rows, reasons=tuple(_reasons(rows)))


def _rows(shape: TrafficShape, measured: Measurement) -> Iterator[FidelityRow]:
    """What is asked of the engine first, then what came of it."""
    completed = measured.requests - measured.failed
    # Counters hold all that was sent, from the start of the run on.
    counted = max(completed, len(measured.isl))
    yield from _lengths((Signal.ISL_MEAN, Signal.ISL_P50, Signal.ISL_P95), shape.isl, measured.isl)
    yield from _lengths((Signal.OSL_MEAN, Signal.OSL_P50, Signal.OSL_P95), shape.osl, measured.osl)
    yield compared(
        Signal.PREFIX_HIT_RATE,
        exact(shape.prefix_hit_rate, max(shape.requests, shape.isl.n)),
        _from_cold(share(measured.prefix_hit_rate, counted), measured),
    )
    if shape.draft_acceptance is not None or measured.draft_acceptance is not None:
        yield compared(
            Signal.DRAFT_ACCEPTANCE,
            share(shape.draft_acceptance, shape.requests),
            share(measured.draft_acceptance, counted),
        )
    yield from _flows(shape, measured, completed)
    live = shape.latencies
    for signal, of, value, values, q in (
        (Signal.TTFT_P50, live.ttft_ms, live.ttft_p50_ms, measured.ttft_ms, 0.5),
        (Signal.TTFT_P95, live.ttft_ms, live.ttft_p95_ms, measured.ttft_ms, 0.95),
        (Signal.TPOT_P50, live.tpot_ms, live.tpot_p50_ms, measured.tpot_ms, 0.5),
        (Signal.TPOT_P95, live.tpot_ms, live.tpot_p95_ms, measured.tpot_ms, 0.95),
    ):
        stated = bucket_quantile(of, q) if of else unstated_quantile(value, shape.requests)
        yield compared(signal, stated, quantile(values, q))


def _flows(shape: TrafficShape, measured: Measurement, completed: int) -> Iterator[FidelityRow]:
    """Requests and tokens a second. Requests count where they ended, on both sides: of an
    overloaded production a closed load repeats the work that is done, not demand that piles up."""
    finished = shape.requests / shape.window_s if shape.window_s > 0 else None
    timed = measured.seconds > 0
    for signal, live, rehearsed in (
        (Signal.RATE, finished, completed / measured.seconds if timed else None),
        (Signal.OUTPUT, shape.output_tok_s, measured.output_tok_s if timed else None),
    ):
        whole = _in_whole_streams(flow(live, shape.requests), shape.concurrency, measured.streams)
        yield compared(signal, whole, flow(rehearsed, completed))


def _lengths(
    signals: tuple[Signal, Signal, Signal], live: Distribution, rehearsed: Sequence[int]
) -> Iterator[FidelityRow]:
    """Mean, p50 and p95; only buckets tell live quantiles, while the live mean is known."""
    at_mean, at_p50, at_p95 = signals
    yield compared(at_mean, exact(live.mean, live.n), mean(rehearsed))
    yield compared(at_p50, bucket_quantile(live, 0.5), quantile(rehearsed, 0.5))
    yield compared(at_p95, bucket_quantile(live, 0.95), quantile(rehearsed, 0.95))


def _in_whole_streams(
    live: Figure | None, concurrency: float, streams: int | None
) -> Figure | None:
    """Open up to what the next whole number of streams would give, one at least: a closed load
    keeps no half request under way."""
    if live is None or streams is None or concurrency <= 0:
        return live
    whole = min(max(streams, math.floor(concurrency)), max(math.ceil(concurrency), 1))
    times = whole / concurrency
    return live._replace(low=live.low * min(times, 1.0), high=live.high * max(times, 1.0))


def _from_cold(rehearsed: Figure | None, measured: Measurement) -> Figure | None:
    """Open up to what the empty cache at the start of a run has cost."""
    planned, possible = measured.planned_hit_rate, measured.possible_hit_rate
    if rehearsed is None or planned is None or possible is None:
        return rehearsed
    return rehearsed._replace(high=min(rehearsed.high + max(planned - possible, 0.0), 1.0))


def _grade(rows: Sequence[FidelityRow]) -> Grade:
    far = [row.signal for row in rows if row.agreement is Agreement.FAR]
    off = [row.signal for row in rows if row.agreement is Agreement.OFF]
    unknown = [row.signal for row in rows if row.agreement is Agreement.UNKNOWN]
    main = [row.signal for row in rows if row.signal in MAIN]
    if 2 * len(MAIN.intersection(unknown)) > len(main):
        return Grade.UNKNOWN
    if MAIN.intersection(far):
        return Grade.D
    if far or len(off) > MOST_OFF:
        return Grade.C
    return Grade.B if off or unknown else Grade.A


def _reasons(rows: Sequence[FidelityRow]) -> Iterator[str]:
    """The gravest first."""
    far = [row for row in rows if row.agreement is Agreement.FAR]
    far.sort(key=lambda row: row.signal not in MAIN)
    off = [row for row in rows if row.agreement is Agreement.OFF]
    unknown = [row for row in rows if row.agreement is Agreement.UNKNOWN]
    close = len(rows) - len(far) - len(off) - len(unknown)
    if far:
        yield f"Far off: {'; '.join(row.sentence for row in far)}."
    if off:
        yield f"Off: {'; '.join(row.sentence for row in off)}."
    if unknown:
        yield f"Not known, or on too few requests: {', '.join(r.signal.words for r in unknown)}."
    yield f"Close: {close} of {len(rows)} figures."
