"""What a load test's records say, as one Measurement, or why they say nothing: pure.

Requests are counted where they end and tokens where they were generated, also those of requests
that were sent in the warm-up or cut off at the end: otherwise a slow engine, with more of both,
would look slower still at the edges of the window. Latencies are those of requests sent in the
window, since the first ones of a run queue behind each other. A request is good by how long a user
waited for it, see ``canary.waiting``.

It must not compare two measurements and must not soften a failure into a bad score.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from canary import sent
from canary.agreement import disagreement, increase, ratio
from canary.prompts import ideal_hit_rate
from canary.waiting import waited, waits_s
from domain.load import (
    BLOCK_TOKENS,
    Arrival,
    LoadPlan,
    LoadResult,
    RequestError,
    RequestRecord,
    StopCause,
)
from domain.slo import SLO
from domain.study import Block, EngineCounters, Failure, FailureKind, Measurement

LEAST_COMPLETED = 8
MOST_FAILED = 0.2


class _Span(NamedTuple):
    """Tokens that one request streamed, and from when to when."""

    first_s: float
    last_s: float
    tokens: float


class _Wait(NamedTuple):
    """Seconds that a user waited for one request, and when that was over."""

    end_s: float
    seconds: float


def measure(
    result: LoadResult,
    slo: SLO,
    before: EngineCounters | None,
    after: EngineCounters | None,
    *,
    blocks: int = 20,
    plan: LoadPlan | None = None,
) -> Measurement | Failure:
    """Measure the window from the end of the warm-up to the end of the run, in equal ``blocks``.

    ``before`` and ``after`` are the engine's counters read around the run; rates come from their
    differences and are ``None`` where a counter is missing, did not move or went back. Requests and
    tokens must agree with the client's within 2 %, and prompts must be as long as planned. With the
    ``plan`` that was sent, a prefix cache that found more than one that began empty could have
    found voids the measurement: it was warm with another run's prompts.
    """
    start_s, end_s = result.warm_up_s, result.duration_s
    if end_s <= start_s:
        return Failure(
            kind=FailureKind.INTERRUPTED,
            sentence=f"The run ended after {end_s:.1f} s, within its warm-up of {start_s:.1f} s.",
        )
    counted = sorted(
        (
            record
            for record in result.records
            if record.error is not RequestError.CANCELLED and start_s <= record.end_s <= end_s
        ),
        key=lambda record: record.end_s,
    )
    completed = [r for r in counted if r.sent_s >= start_s and r.latency is not None]
    latencies = [latency for r in completed if (latency := r.latency) is not None]
    is_open = result.arrival is Arrival.OPEN
    if failure := _failure(result, counted, len(latencies), before, after):
        return failure
    specs = sent.asked(plan, result.records)
    could = sent.findable(specs)
    hits, looked_up = (increase(before, after, f"prefix_{part}") for part in ("hits", "queries"))
    if failure := sent.warm(hits, looked_up, could):
        return failure
    lengths = sent.lengths(result.records, specs)
    good = [slo.met_by(latency) if (latency := waited(r, is_open)) else False for r in counted]
    likely = could
    if plan and could and plan.block_tokens != BLOCK_TOKENS:
        likely = sent.findable(specs, plan.block_tokens)
    return Measurement(
        level=result.plan_level,
        seed=result.seed,
        requests=len(counted),
        failed=sum(record.failed for record in counted),
        blocks=_blocks(
            counted,
            good,
            _waits(result, counted),
            _spans(result.records),
            start_s,
            end_s,
            blocks,
        ),
        ttft_ms=tuple(latency.ttft_ms for latency in latencies),
        tpot_ms=tuple(latency.tpot_ms for latency in latencies if latency.tpot_ms is not None),
        scheduled_ttft_ms=tuple(
            due.ttft_ms
            for r in completed
            if is_open and (due := r.latency_from_schedule) is not None
        ),
        prefix_hit_rate=ratio(before, after, "prefix_hits", "prefix_queries"),
        draft_acceptance=ratio(before, after, "accepted_tokens", "draft_tokens"),
        preemptions=increase(before, after, "preemptions"),
        isl=tuple(length.isl for length in lengths),
        osl=tuple(length.osl for length in lengths),
        streams=None if plan is None or is_open else plan.concurrency,
        planned_hit_rate=ideal_hit_rate(plan) if plan and could else None,
        possible_hit_rate=likely.rate if likely else None,
        slo_met=sum(good) >= slo.share * len(counted),
    )


def _waits(result: LoadResult, counted: Sequence[RequestRecord]) -> list[_Wait]:
    """What users waited for the ``counted`` requests, and for those that the end cut off."""
    left = [r for r in result.records if r.error is RequestError.CANCELLED]
    records = [*counted, *(r for r in left if r.end_s >= result.warm_up_s)]
    waits = waits_s(records, result.arrival is Arrival.OPEN)
    return [_Wait(r.end_s, seconds) for r, seconds in zip(records, waits, strict=True)]


def _failure(
    result: LoadResult,
    counted: Sequence[RequestRecord],
    completed: int,
    before: EngineCounters | None,
    after: EngineCounters | None,
) -> Failure | None:
    """Why the records are no measurement; the engine's failures come before the client's.

    Over-saturation comes after it: a client that sends late leaves its schedule behind as well.
    """
    errors = Counter(record.error for record in counted if record.error is not None)
    failed, seconds = errors.total(), result.duration_s - result.warm_up_s
    if failed > MOST_FAILED * len(counted):
        error, times = errors.most_common(1)[0]
        kind = FailureKind.REQUEST_ERRORS
        if error is RequestError.TIMEOUT:
            kind = FailureKind.HUNG
        return Failure(
            kind=kind,
            sentence=f"{failed} of {len(counted)} requests failed, {times} of them"
            f" {error.value}; more than {MOST_FAILED:.0%} is no measurement.",
        )
    if not counted and not any(r.first_s is not None for r in result.records) and result.records:
        return Failure(
            kind=FailureKind.HUNG,
            sentence=f"No request got a token in {result.duration_s:.1f} s.",
        )
    if result.stopped is not None and result.stopped.cause is StopCause.OVER_SATURATED:
        if fault := result.health.fault:
            return Failure(kind=FailureKind.CLIENT_UNFIT, sentence=fault)
        asked_rps = len(result.records) / result.duration_s
        return Failure(
            kind=FailureKind.OVER_SATURATED,
            sentence=f"Over-saturated at {asked_rps:.1f} requests/s: {result.stopped.sentence}",
        )
    if completed < LEAST_COMPLETED:
        return Failure(
            kind=FailureKind.REQUEST_ERRORS,
            sentence=f"Only {completed} requests were sent and completed in the {seconds:.1f} s"
            f" after the warm-up; a measurement needs {LEAST_COMPLETED}.",
        )
    fault = result.health.fault or disagreement(result.records, before, after)
    return Failure(kind=FailureKind.CLIENT_UNFIT, sentence=fault) if fault else None


def _blocks(
    counted: Sequence[RequestRecord],
    met: Sequence[bool],
    waits: Sequence[_Wait],
    spans: Sequence[_Span],
    start_s: float,
    end_s: float,
    blocks: int,
) -> tuple[Block, ...]:
    """Equal slices of the window. ``met`` says of each record whether it met the SLO."""
    seconds = (end_s - start_s) / blocks

    def index(at_s: float) -> int:
        return min(max(int((at_s - start_s) / seconds), 0), blocks - 1)

    requests, good, failed = [0] * blocks, [0] * blocks, [0] * blocks
    for record, is_good in zip(counted, met, strict=True):
        block = index(record.end_s)
        requests[block] += 1
        failed[block] += record.failed
        good[block] += is_good
    generated, waiting = [0.0] * blocks, [0.0] * blocks
    for ended_s, waited_s in waits:
        waiting[index(ended_s)] += waited_s
    for first_s, last_s, count in spans:
        if last_s < start_s or first_s >= end_s:
            continue
        if last_s <= first_s:
            generated[index(first_s)] += count
            continue
        for block in range(index(first_s), index(last_s) + 1):
            low = max(first_s, start_s + block * seconds)
            high = min(last_s, start_s + (block + 1) * seconds)
            generated[block] += count * max(0.0, high - low) / (last_s - first_s)
    return tuple(
        Block(
            seconds=seconds,
            requests=requests[i],
            good=good[i],
            failed=failed[i],
            output_tokens=generated[i],
            waited_s=waiting[i],
        )
        for i in range(blocks)
    )


def _spans(records: Sequence[RequestRecord]) -> list[_Span]:
    """When tokens were generated, for each request that streamed any.

    Only a completed request tells its count. One that was cut off streamed as fast as the
    completed ones on average, and never more than it was asked for.
    """
    streamed = [
        (record, record.first_s, record.last_s)
        for record in records
        if record.first_s is not None and record.last_s is not None and not record.failed
    ]
    done = [(r.osl - 1, last - first) for r, first, last in streamed if r.error is None]
    gaps, streamed_s = sum(gap for gap, _ in done), sum(time_s for _, time_s in done)
    rate = gaps / streamed_s if streamed_s > 0 else 0.0
    return [
        _Span(first, last, r.osl if r.error is None else min(r.osl, 1 + rate * (last - first)))
        for r, first, last in streamed
    ]
