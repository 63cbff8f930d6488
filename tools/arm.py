"""The live figures of one arm, for judging a step of a rollout; nothing is judged here."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from domain.metrics import Query, Sample
from domain.ports import MetricSource
from domain.traffic import Distribution
from tools import queries
from tools.profiler import Missing, amount, distribution, missing, share
from tools.promql import promql

REQUIRED: Final = ("finished", "ttft", "ttft total", "tpot", "tpot total")
"""Signals without which a step cannot be judged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmReading:
    """One arm in the window (Unix seconds): requests that ended, by how they ended, and latency.

    ``cut`` are those of the ``completed`` that ended at their longest length.

    ``ttft_s`` and ``tpot_s`` are in seconds, in the engine's own buckets. ``prefix_hit_rate``
    (0–1) is ``None`` where no prefix was looked up. ``queries`` are the questions asked.
    """

    arm: str
    start_s: float
    end_s: float
    completed: float
    cut: float
    aborted: float
    errored: float
    ttft_s: Distribution
    tpot_s: Distribution
    prefix_hit_rate: float | None
    queries: tuple[str, ...]


def arm_queries(*, model: str, arm: str, window_s: float) -> Mapping[str, Query]:
    """The questions of an ArmReading, by the name of their signal."""
    where = queries.where(model_name=model, arm=arm)
    return {
        "finished": queries.finished(window_s, where),
        "ttft": queries.buckets(queries.TTFT, window_s, where),
        "ttft total": queries.total(queries.TTFT, window_s, where),
        "tpot": queries.buckets(queries.TPOT, window_s, where),
        "tpot total": queries.total(queries.TPOT, window_s, where),
        "prefix queries": queries.increase(queries.PREFIX_QUERIES, window_s, where),
        "prefix hits": queries.increase(queries.PREFIX_HITS, window_s, where),
    }


async def read_arm(
    source: MetricSource, *, model: str, arm: str, end_s: float, window_s: float
) -> ArmReading | Missing:
    """The arm's figures over the ``window_s`` seconds before ``end_s``; Missing is a hold.

    Engines of another model than the served one, by its name, are never counted in.
    """
    asked = arm_queries(model=model, arm=arm, window_s=window_s)
    answers = await asyncio.gather(*(source.read(query, end_s) for query in asked.values()))
    readings = dict(zip(asked, answers, strict=True))
    if fault := missing(readings, REQUIRED):
        return fault
    finished = readings["finished"]
    ended = finished.by("finished_reason") if isinstance(finished, Sample) else {}
    return ArmReading(
        arm=arm,
        start_s=end_s - window_s,
        end_s=end_s,
        completed=sum(ended.get(reason, 0.0) for reason in queries.COMPLETED_REASONS),
        cut=ended.get(queries.CUT_REASON, 0.0),
        aborted=ended.get(queries.ABORTED_REASON, 0.0),
        errored=ended.get(queries.ERROR_REASON, 0.0),
        ttft_s=distribution(readings["ttft"], amount(readings, "ttft total")),
        tpot_s=distribution(readings["tpot"], amount(readings, "tpot total")),
        prefix_hit_rate=share(readings, "prefix hits", "prefix queries"),
        queries=tuple(promql(query) for query in asked.values()),
    )
