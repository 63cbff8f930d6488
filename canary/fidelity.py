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
from dataclasses import replace

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

QUEUED = frozenset({Signal.TTFT_P50, Signal.TTFT_P95})
"""Signals that tell how old a growing queue is."""

# Requests in an engine at two moments differ by chance: two standard errors of a Poisson number.
_ERRORS = 2.0
# A queue that grew by less than this share of itself, or of what was served, hardly moves a median.
_GREW = 0.25

MOST_OFF = 2
"""Rows that may be off before the grade falls to C."""


def compare(shape: TrafficShape, measured: Measurement) -> Fidelity:
    """The grade of a rehearsal of production's own config, with a row for each signal.

    Lengths and the hit rate of the plan were made after this very shape, so their live figures
    count as exact; flows and times are samples on both sides. Of a production whose queue grows,
    TTFT is shown and not graded.
    """
    rows = tuple(_rows(shape, measured))
    growing = _growing(shape)
    if growing:
        rows = tuple(_left_out(row) if row.signal in QUEUED else row for row in rows)
    return Fidelity(grade=_grade(rows), rows=rows, reasons=tuple(_reasons(rows, growing)))


def _growing(shape: TrafficShape) -> str:
    """Why live TTFT tells how long the queue has been growing; empty where it is steady.

    A steady queue, however long, is no reason: a closed load with as many requests at once waits
    as long (Little's law). Of what came and did not end, the queue took at most twice its mean.
    """
    grown = min(shape.grown, 2 * shape.waiting)
    chance = _ERRORS * math.sqrt(2 * shape.concurrency)
    if grown <= max(chance, _GREW * min(shape.waiting, shape.requests)):
        return ""
    return (
        f"about {shape.grown:.0f} more requests came than ended while {shape.waiting:.0f} waited,"
        " so live TTFT tells how old that queue is, which no rehearsal repeats"
    )


def _left_out(row: FidelityRow) -> FidelityRow:
    known = row.agreement is not Agreement.UNKNOWN
    return replace(row, agreement=Agreement.LEFT_OUT) if known else row


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
    counted = (row.signal for row in rows if row.agreement is not Agreement.LEFT_OUT)
    main = MAIN.intersection(counted)
    if 2 * len(MAIN.intersection(unknown)) > len(main):
        return Grade.UNKNOWN
    if MAIN.intersection(far):
        return Grade.D
    if far or len(off) > MOST_OFF:
        return Grade.C
    return Grade.B if off or unknown else Grade.A


def _reasons(rows: Sequence[FidelityRow], growing: str) -> Iterator[str]:
    """The gravest first; ``growing`` is why some are left out."""
    far = [row for row in rows if row.agreement is Agreement.FAR]
    far.sort(key=lambda row: row.signal not in MAIN)
    off = [row for row in rows if row.agreement is Agreement.OFF]
    unknown = [row for row in rows if row.agreement is Agreement.UNKNOWN]
    close = [row for row in rows if row.agreement is Agreement.CLOSE]
    left_out = [row for row in rows if row.agreement is Agreement.LEFT_OUT]
    if far:
        yield f"Far off: {'; '.join(row.sentence for row in far)}."
    if off:
        yield f"Off: {'; '.join(row.sentence for row in off)}."
    if unknown:
        yield f"Not known, or on too few requests: {', '.join(r.signal.words for r in unknown)}."
    if left_out:
        yield f"Left out: {'; '.join(row.sentence for row in left_out)}: {growing}."
    yield f"Close: {len(close)} of {len(rows)} figures."
