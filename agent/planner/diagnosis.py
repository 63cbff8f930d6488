"""What limits this traffic, put into words: planners reason better from words than from figures.

Pure: the figures in the sentence are filled in here and come from the study and its trials alone.
It names a cause, never a config; that is the rulebook's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from agent.planner import history
from domain.engine import SearchSpace
from domain.study import Study, Trial


class Bottleneck(Enum):
    PREFILL = "prefill"
    DECODE = "decode"
    KV_CACHE = "kv_cache"
    SCHEDULER = "scheduler"
    SPECULATION = "speculation"
    UNKNOWN = "unknown"


_MEANS = {
    Bottleneck.PREFILL: "Reading prompts limits this traffic",
    Bottleneck.DECODE: "Generating tokens limits this traffic",
    Bottleneck.KV_CACHE: "Memory for the KV cache limits this traffic",
    Bottleneck.SCHEDULER: "Requests wait for a place in the batch",
    Bottleneck.SPECULATION: "Drafted tokens are wasted",
    Bottleneck.UNKNOWN: "Nothing is known yet of what limits this traffic",
}

FULL = 0.9
"""Mean share of the KV cache in use from which waiting requests wait for memory."""

PREEMPTED = 0.01
"""Preemptions a request from which the KV cache counts as too small."""

WAITING = 0.1
"""Waiting requests a running one from which the queue counts as the limit."""

POOR_ACCEPTANCE = 0.5
"""Share of accepted drafts below which drafting costs more than it gives on a full GPU."""

PROMPT_HEAVY = 8.0
"""Prompt tokens that must be computed for each generated one from which prefill dominates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What limits the traffic, and a sentence that says why with the figures."""

    bottleneck: Bottleneck
    sentence: str


class Figures(NamedTuple):
    """The figures a diagnosis rests on: live ones of a replica, else the latest baseline trial's.

    Rates are shares of 1, ``preemptions`` is per request; ``None`` where nobody measured it.
    """

    streams: float
    isl: float | None
    osl: float | None
    hit_rate: float | None
    acceptance: float | None
    preemptions: float | None
    kv_cache_usage: float | None


def figures(study: Study, space: SearchSpace, trials: Sequence[Trial]) -> Figures:
    shape = study.part
    past = history.read(study, space, trials)
    measured = past.measurement_of(past.baseline)
    hit_rate, acceptance = shape.prefix_hit_rate, shape.draft_acceptance
    preemptions = None
    if shape.preemptions is not None and shape.requests > 0:
        preemptions = shape.preemptions / shape.requests
    if measured is not None:
        hit_rate = measured.prefix_hit_rate if hit_rate is None else hit_rate
        acceptance = measured.draft_acceptance if acceptance is None else acceptance
        if preemptions is None and measured.preemptions is not None and measured.requests > 0:
            preemptions = measured.preemptions / measured.requests
    return Figures(
        streams=shape.concurrency,
        isl=shape.isl.mean,
        osl=shape.osl.mean,
        hit_rate=hit_rate,
        acceptance=acceptance,
        preemptions=preemptions,
        kv_cache_usage=shape.kv_cache_usage,
    )


def diagnose(study: Study, space: SearchSpace, trials: Sequence[Trial]) -> Diagnosis:
    """Name the bottleneck of the study's traffic under its baseline."""
    seen = figures(study, space, trials)
    bottleneck, because = _cause(study, space, seen)
    return Diagnosis(
        bottleneck=bottleneck,
        sentence=f"{_MEANS[bottleneck]}: {because}. The traffic: {_facts(study, seen)}.",
    )


class _Cause(NamedTuple):
    bottleneck: Bottleneck
    because: str


def _cause(study: Study, space: SearchSpace, seen: Figures) -> _Cause:
    shape = study.part
    if seen.streams <= 0 or not seen.isl or not seen.osl:
        return _Cause(Bottleneck.UNKNOWN, "no requests were seen in the window")
    if seen.preemptions is not None and seen.preemptions > PREEMPTED:
        return _Cause(
            Bottleneck.KV_CACHE, f"{seen.preemptions:.2g} preemptions a request throw work away"
        )
    if shape.waiting >= 1 and shape.waiting > WAITING * shape.running:
        return _queue(study, space, seen)
    if seen.acceptance is not None and seen.acceptance < POOR_ACCEPTANCE:
        return _Cause(
            Bottleneck.SPECULATION, f"only {seen.acceptance:.0%} of drafted tokens are accepted"
        )
    return _slower_half(study, seen)


def _queue(study: Study, space: SearchSpace, seen: Figures) -> _Cause:
    shape = study.part
    seats = space.effective(study.baseline, "max_num_seqs")
    queue = f"{shape.waiting:.0f} requests wait beside {shape.running:.0f} running"
    if isinstance(seats, int | float) and shape.running >= 0.9 * seats:
        return _Cause(Bottleneck.SCHEDULER, f"{queue}, and max_num_seqs is {seats:g}")
    used = seen.kv_cache_usage
    if used is not None and used >= FULL:
        return _Cause(Bottleneck.KV_CACHE, f"{queue}, and the KV cache is {used:.0%} full")
    if _prompt_tokens(seen) > PROMPT_HEAVY:
        return _Cause(Bottleneck.PREFILL, f"{queue} while prompts are long")
    if used is not None:
        room = f"the KV cache is {used:.0%} full"
        return _Cause(Bottleneck.PREFILL, f"{queue} though the batch has places left and {room}")
    return _Cause(Bottleneck.KV_CACHE, f"{queue} though the batch has places left")


def _slower_half(study: Study, seen: Figures) -> _Cause:
    live, slo = study.shape.latencies, study.slo
    first = _pressure(live.ttft_p95_ms, slo.ttft_ms)
    each = _pressure(live.tpot_p95_ms, slo.tpot_ms)
    if first is not None and first > 1 and first > (each or 0.0):
        return _Cause(Bottleneck.PREFILL, f"TTFT p95 is {first:.2f} times its limit")
    if each is not None and each > 1:
        return _Cause(Bottleneck.DECODE, f"TPOT p95 is {each:.2f} times its limit")
    prompt = _prompt_tokens(seen)
    because = f"{prompt:.1f} prompt tokens must be computed for each generated one"
    return _Cause(Bottleneck.PREFILL if prompt > PROMPT_HEAVY else Bottleneck.DECODE, because)


def _prompt_tokens(seen: Figures) -> float:
    """Prompt tokens that no prefix cache spares, for each generated token."""
    return (seen.isl or 0.0) * (1 - (seen.hit_rate or 0.0)) / max(seen.osl or 0.0, 1.0)


def _pressure(value: float | None, limit: float | None) -> float | None:
    return value / limit if value is not None and limit else None


def _facts(study: Study, seen: Figures) -> str:
    shape, live, slo = study.part, study.shape.latencies, study.slo

    def against(value: float, limit: float | None) -> str:
        return f"{value:.0f} ms" + (f" (limit {limit:g} ms)" if limit else "")

    each = f" on each of {study.replicas} replicas" if study.replicas > 1 else ""
    facts = [f"{seen.streams:.0f} requests at once{each} ({shape.waiting:.0f} of them waiting)"]
    if seen.isl is not None and seen.osl is not None:
        facts.append(f"{seen.isl:.0f} tokens in and {seen.osl:.0f} out on average")
    if seen.hit_rate is not None:
        facts.append(f"{seen.hit_rate:.0%} of prompt tokens found in the prefix cache")
    if seen.kv_cache_usage is not None:
        facts.append(f"the KV cache {seen.kv_cache_usage:.0%} full")
    if seen.acceptance is not None:
        facts.append(f"{seen.acceptance:.0%} of drafted tokens accepted")
    if live.ttft_p95_ms is not None:
        facts.append(f"TTFT p95 {against(live.ttft_p95_ms, slo.ttft_ms)}")
    if live.tpot_p95_ms is not None:
        facts.append(f"TPOT p95 {against(live.tpot_p95_ms, slo.tpot_ms)}")
    return ", ".join(facts)
