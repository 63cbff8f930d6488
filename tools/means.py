"""Mean latencies of one window, and where the time to a first token goes.

A mean needs no bucket, so it tells small changes that a quantile hides or makes up. What is left of
TTFT beside queue and prefill is spent in the API server: on parsing, tokenizing and passing on.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from domain.metrics import Query, Sample
from domain.ports import MetricSource
from tools import queries


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """Mean milliseconds of a request; ``None`` where a signal is missing, or nothing finished."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    e2el_ms: float | None = None
    queued_ms: float | None = None
    prefill_ms: float | None = None

    @property
    def server_ms(self) -> float | None:
        """What neither queue nor prefill explain; never below zero."""
        if self.ttft_ms is None or self.queued_ms is None or self.prefill_ms is None:
            return None
        return max(self.ttft_ms - self.queued_ms - self.prefill_ms, 0.0)


def mean_queries(*, model: str, arm: str | None, window_s: float) -> dict[str, Query]:
    """The questions, by the name of the figure."""
    where = queries.where(model_name=model, arm=arm)
    return {
        "finished": queries.increase(queries.FINISHED, window_s, where),
        "ttft": queries.total(queries.TTFT, window_s, where),
        "tpot": queries.total(queries.TPOT, window_s, where),
        "e2el": queries.total(queries.E2EL, window_s, where),
        "queued": queries.total(queries.QUEUED, window_s, where),
        "prefill": queries.total(queries.PREFILL, window_s, where),
    }


async def read_means(
    source: MetricSource, *, model: str, arm: str | None, end_s: float, window_s: float
) -> Means:
    """The means over the ``window_s`` seconds before ``end_s`` (Unix seconds)."""
    asked = mean_queries(model=model, arm=arm, window_s=window_s)
    answers = await asyncio.gather(*(source.read(query, end_s) for query in asked.values()))
    amounts = {
        name: reading.total() if isinstance(reading, Sample) else None
        for name, reading in zip(asked, answers, strict=True)
    }
    finished = amounts["finished"]
    if not finished:
        return Means()
    means = {
        f"{name}_ms": None if seconds is None else 1000 * seconds / finished
        for name, seconds in amounts.items()
        if name != "finished"
    }
    return Means(**means)
