"""From readings to the shape of live traffic.

``profile`` is pure; ``read_shape`` asks the questions it needs. A required signal that is missing,
partial or failed makes the answer ``Missing``, which is a hold; it is never filled in. So does one
that counts an engine more than once.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Final

from domain.burstiness import burstiness
from domain.metrics import Failed, NoData, Partial, Query, Reading, Sample
from domain.ports import MetricSource
from domain.traffic import Distribution, Latencies, TrafficShape
from tools import arrivals, queries
from tools.arrivals import Arrivals
from tools.completeness import LEAST_ANSWERED
from tools.jobs import doubled

_START: Final = "at the window's start"
_INSIDE: Final = ("running", "waiting")
_FAULTS: Final[Mapping[type, str]] = {
    NoData: "is missing",
    Partial: "is partial",
    Failed: "could not be read",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """Why there is no answer, in one sentence, and the signals that are to blame."""

    reason: str
    signals: tuple[str, ...]


def shape_queries(*, model: str, arm: str | None, window_s: float) -> Mapping[str, Query]:
    """The questions of a TrafficShape, by the name of their signal."""
    where = queries.where(model_name=model, arm=arm)
    return {
        "finished": queries.finished(window_s, where),
        "running": queries.average(queries.RUNNING, window_s, where),
        "waiting": queries.average(queries.WAITING, window_s, where),
        "running now": queries.now(queries.RUNNING, where, by=queries.ENGINE),
        "waiting now": queries.now(queries.WAITING, where, by=queries.ENGINE),
        "isl": queries.buckets(queries.ISL, window_s, where),
        "isl total": queries.total(queries.ISL, window_s, where),
        "osl": queries.buckets(queries.OSL, window_s, where),
        "osl total": queries.total(queries.OSL, window_s, where),
        "rejected": queries.rejected(window_s, where),
        "ttft": queries.buckets(queries.TTFT, window_s, where),
        "tpot": queries.buckets(queries.TPOT, window_s, where),
        "itl": queries.buckets(queries.INTER_TOKEN, window_s, where),
        "e2el": queries.buckets(queries.E2EL, window_s, where),
        "output tokens": queries.increase(queries.GENERATION_TOKENS, window_s, where),
        "prefix queries": queries.increase(queries.PREFIX_QUERIES, window_s, where),
        "prefix hits": queries.increase(queries.PREFIX_HITS, window_s, where),
        "draft tokens": queries.increase(queries.DRAFT_TOKENS, window_s, where),
        "accepted tokens": queries.increase(queries.ACCEPTED_TOKENS, window_s, where),
        "kv usage": queries.kv_usage(window_s, where),
        "preemptions": queries.increase(queries.PREEMPTIONS, window_s, where),
    }


REQUIRED: Final = (
    "finished",
    "running",
    "waiting",
    "running now",
    "waiting now",
    "isl",
    "isl total",
    "osl",
    "osl total",
    f"running {_START}",
    f"waiting {_START}",
)
"""Signals without which there is no shape; the last two show that the window is wholly covered."""


async def read_shape(
    source: MetricSource,
    *,
    model: str,
    arm: str | None,
    end_s: float,
    window_s: float,
    scrape_s: float = 5.0,
    with_arrivals: bool = True,
) -> TrafficShape | Missing:
    """The shape of the ``window_s`` seconds before ``end_s`` (Unix seconds).

    ``model`` is the served model's name: engines of another are never counted in. ``arm`` is the
    arm's label, ``None`` for all arms. ``scrape_s`` is about the time between two scrapes, or less.
    To count arrivals takes most of the time: without ``with_arrivals`` burstiness stays unknown.
    """
    asked = shape_queries(model=model, arm=arm, window_s=window_s)
    start_s = end_s - window_s
    questions = {name: (query, end_s) for name, query in asked.items()} | {
        f"running {_START}": (asked["running now"], start_s),
        f"waiting {_START}": (asked["waiting now"], start_s),
    }
    answers = await asyncio.gather(*(source.read(*question) for question in questions.values()))
    readings = dict(zip(questions, answers, strict=True))
    if fault := _incomplete(readings, window_s):
        return fault
    spacing_s = arrivals.spacing(window_s, scrape_s)
    ranges = arrivals.range_queries(queries.where(model_name=model, arm=arm), spacing_s)
    if not with_arrivals:
        ranges = {name: ranges[name] for name in _INSIDE if _changed(readings, name)}
    series = await asyncio.gather(
        *(source.read_range(query, start_s, end_s, spacing_s) for query in ranges.values())
    )
    moments = dict(zip(ranges, series, strict=True))
    arrived = arrivals.count(moments, spacing_s) if with_arrivals else None
    return profile(readings, moments, arrived, model=model, now=end_s, window_s=window_s)


def profile(
    readings: Mapping[str, Reading],
    moments: arrivals.Ranges,
    arrived: Arrivals | None,
    *,
    model: str,
    now: float,
    window_s: float,
) -> TrafficShape | Missing:
    """The shape that the readings of ``shape_queries`` and the arrivals show; demand is what was
    admitted or rejected: completions, the change of requests in the engine, and rejections.

    ``moments`` are what ran and waited all through the window; where no engine came or went they
    are not needed."""
    if fault := _incomplete(readings, window_s):
        return fault

    def value(name: str) -> float:
        return amount(readings, name) or 0.0

    running, waiting = (_inside(readings, moments, name) for name in _INSIDE)
    if running is None or waiting is None:
        return Missing(
            reason="engines came or went, and were not seen throughout the window",
            signals=_INSIDE,
        )
    completions = value("finished")
    inside = value("running now") + value("waiting now")
    inside_before = value(f"running {_START}") + value(f"waiting {_START}")
    demand = completions + inside - inside_before + value("rejected")
    output_tokens = amount(readings, "output tokens")
    return TrafficShape(
        model=model,
        end_s=now,
        window_s=window_s,
        requests=completions,
        rate_rps=max(demand, 0.0) / window_s,
        running=running,
        waiting=waiting,
        isl=distribution(readings["isl"], value("isl total")),
        osl=distribution(readings["osl"], value("osl total")),
        latencies=_latencies(readings),
        output_tok_s=None if output_tokens is None else output_tokens / window_s,
        prefix_hit_rate=share(readings, "prefix hits", "prefix queries"),
        draft_acceptance=share(readings, "accepted tokens", "draft tokens"),
        kv_cache_usage=_fullest(readings["kv usage"]),
        preemptions=amount(readings, "preemptions"),
        burstiness=burstiness(arrived.counts, arrived.step_s) if arrived else (),
        covered=arrived.covered if arrived else None,
        finish_reasons=_reasons(readings["finished"]),
        rejected=amount(readings, "rejected"),
    )


def _incomplete(readings: Mapping[str, Reading], window_s: float) -> Missing | None:
    """Why the readings make no shape.

    What no engine shows is left out. What could not be asked, or was answered in part, may not be:
    rejections that were not read are not none.
    """
    unread = (name for name, found in readings.items() if isinstance(found, Partial | Failed))
    fault = missing(readings, tuple(dict.fromkeys((*REQUIRED, *unread))))
    if fault and all(signal.endswith(_START) for signal in fault.signals):
        reason = f"the metrics do not cover all of the last {window_s:g} s ({fault.reason})"
        return Missing(reason=reason, signals=fault.signals)
    return fault


def _inside(readings: Mapping[str, Reading], moments: arrivals.Ranges, name: str) -> float | None:
    """The mean over the window of the requests that were running, or waiting, in all engines.

    An engine's own mean is of the time that it was there. Where engines came or went, the sum of
    those means counts one and the one in its place as both: then it is the mean of the moments,
    ``None`` where too many of them are not known.
    """
    if not _changed(readings, name):
        return amount(readings, name)
    totals = [one.total() for one in moments[name] if isinstance(one, Sample)]
    return fmean(totals) if totals and len(totals) >= LEAST_ANSWERED * len(moments[name]) else None


def _changed(readings: Mapping[str, Reading], name: str) -> bool:
    """Whether other engines show what is running, or waiting, now than at the window's start."""
    return _targets(readings[f"{name} {_START}"]) != _targets(readings[f"{name} now"])


def _targets(reading: Reading) -> frozenset[arrivals.Target]:
    series = reading.series if isinstance(reading, Sample) else ()
    return frozenset(one.labels for one in series)


def missing(readings: Mapping[str, Reading], required: tuple[str, ...]) -> Missing | None:
    """Which of the required readings are no complete answers, or count an engine more than once;
    ``None`` where none is."""
    faults: dict[str, str] = {}
    for name in required:
        reading = readings[name]
        if not isinstance(reading, Sample):
            faults[name] = f"{name} {_FAULTS[type(reading)]} ({reading.reason})"
        elif again := doubled(reading.series):
            faults[name] = f"{name} counts an engine more than once ({again})"
    if not faults:
        return None
    first, *others = faults.values()
    more = f", and {len(others)} more signals" if others else ""
    return Missing(reason=f"{first}{more}", signals=tuple(faults))


def amount(readings: Mapping[str, Reading], name: str) -> float | None:
    """The total of a complete answer; ``None`` for any other."""
    reading = readings[name]
    return reading.total() if isinstance(reading, Sample) else None


def _fullest(reading: Reading) -> float | None:
    """Of several engines the one with the largest value."""
    return max(s.value for s in reading.series) if isinstance(reading, Sample) else None


def share(readings: Mapping[str, Reading], part: str, whole: str) -> float | None:
    """Part over whole, 0–1; ``None`` where either is not known or there was nothing."""
    some, every = amount(readings, part), amount(readings, whole)
    return min(some / every, 1.0) if some is not None and every else None


def distribution(reading: Reading, total: float | None) -> Distribution:
    """The histogram of cumulative bucket counts by ``le``; empty where there is no answer.

    Only bounds that all engines with a value have are told, for nobody knows how many values of the
    others lie up to any further one. Each bucket is extrapolated by itself, so a count may lie a
    little below the one before it: it is raised to that, as Prometheus' own quantiles do. Without a
    ``total`` each value counts as its bucket's middle.
    """
    rising = sorted(_cumulative(reading).items())
    bounds, counts, below, middles, lower = [], [], 0.0, 0.0, 0.0
    for bound, count in rising:
        bounds.append(bound)
        counts.append(max(count - below, 0.0))
        middles += counts[-1] * (lower if math.isinf(bound) else (lower + bound) / 2)
        below, lower = max(below, count), bound
    return Distribution(
        bounds=tuple(bounds), counts=tuple(counts), total=middles if total is None else total
    )


def _cumulative(reading: Reading) -> Mapping[float, float]:
    """By bound, how many values of all engines lie up to it."""
    engines: dict[arrivals.Target, dict[float, float]] = {}
    for one in reading.series if isinstance(reading, Sample) else ():
        engine = tuple(label for label in one.labels if label[0] != "le")
        engines.setdefault(engine, {})[float(one.label("le"))] = one.value
    counted = [each for each in engines.values() if any(each.values())] or [*engines.values()][:1]
    shared = set.intersection(*map(set, counted)) if counted else set()
    return {bound: sum(each[bound] for each in counted) for bound in shared}


def _reasons(finished: Reading) -> tuple[tuple[str, float], ...]:
    """How many requests ended for each reason for which any did."""
    ended = finished.by("finished_reason") if isinstance(finished, Sample) else {}
    return tuple((reason, n) for reason, n in sorted(ended.items()) if n > 0)


def _latencies(readings: Mapping[str, Reading]) -> Latencies:
    def quantile_ms(name: str, q: float) -> float | None:
        seconds = distribution(readings[name], None).quantile(q)
        return None if seconds is None else seconds * 1000

    def longest_ms(name: str) -> float | None:
        seconds = distribution(readings[name], None).longest
        return None if seconds is None else seconds * 1000

    def histogram_ms(name: str) -> Distribution | None:
        seconds = distribution(readings[name], None)
        return seconds.times(1000) if seconds.n > 0 else None

    return Latencies(
        ttft_p50_ms=quantile_ms("ttft", 0.5),
        ttft_p95_ms=quantile_ms("ttft", 0.95),
        tpot_p50_ms=quantile_ms("tpot", 0.5),
        tpot_p95_ms=quantile_ms("tpot", 0.95),
        itl_p50_ms=quantile_ms("itl", 0.5),
        itl_p95_ms=quantile_ms("itl", 0.95),
        e2el_p50_ms=quantile_ms("e2el", 0.5),
        e2el_p95_ms=quantile_ms("e2el", 0.95),
        e2el_longest_ms=longest_ms("e2el"),
        ttft_ms=histogram_ms("ttft"),
        tpot_ms=histogram_ms("tpot"),
    )
