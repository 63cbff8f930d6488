"""The tool that tells of the traffic, and the figures of a shape, by names that stay the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from domain.errors import Temporary
from domain.figure import Figure, Unit
from domain.metrics import Query
from domain.ports import MetricSource
from domain.traffic import TrafficShape
from tools.catalog.range import AGO, LENGTH, range_of
from tools.catalog.tool import Row, Told, Tool
from tools.profiler import Missing, read_shape, shape_queries


class _Read(NamedTuple):
    """How a figure is got from a shape, and from which signal it comes."""

    unit: Unit
    signal: str
    of: Callable[[TrafficShape], float | None]


FIGURES: Final[Mapping[str, _Read]] = {
    "demand": _Read(Unit.REQUESTS_A_SECOND, "finished", lambda s: s.rate_rps),
    "finished": _Read(Unit.REQUESTS, "finished", lambda s: s.requests),
    "rejected": _Read(Unit.REQUESTS, "rejected", lambda s: s.rejected),
    "running": _Read(Unit.REQUESTS, "running", lambda s: s.running),
    "waiting": _Read(Unit.REQUESTS, "waiting", lambda s: s.waiting),
    "isl": _Read(Unit.TOKENS, "isl total", lambda s: s.isl.mean),
    "isl_p95": _Read(Unit.TOKENS, "isl", lambda s: s.isl.quantile(0.95)),
    "osl": _Read(Unit.TOKENS, "osl total", lambda s: s.osl.mean),
    "output": _Read(Unit.TOKENS_A_SECOND, "output tokens", lambda s: s.output_tok_s),
    "ttft_p50": _Read(Unit.MILLISECONDS, "ttft", lambda s: s.latencies.ttft_p50_ms),
    "ttft_p95": _Read(Unit.MILLISECONDS, "ttft", lambda s: s.latencies.ttft_p95_ms),
    "tpot_p50": _Read(Unit.MILLISECONDS, "tpot", lambda s: s.latencies.tpot_p50_ms),
    "tpot_p95": _Read(Unit.MILLISECONDS, "tpot", lambda s: s.latencies.tpot_p95_ms),
    "itl_p50": _Read(Unit.MILLISECONDS, "itl", lambda s: s.latencies.itl_p50_ms),
    "itl_p95": _Read(Unit.MILLISECONDS, "itl", lambda s: s.latencies.itl_p95_ms),
    "e2el_p50": _Read(Unit.MILLISECONDS, "e2el", lambda s: s.latencies.e2el_p50_ms),
    "e2el_p95": _Read(Unit.MILLISECONDS, "e2el", lambda s: s.latencies.e2el_p95_ms),
    "hit_rate": _Read(Unit.SHARE, "prefix hits", lambda s: s.prefix_hit_rate),
    "acceptance": _Read(Unit.SHARE, "accepted tokens", lambda s: s.draft_acceptance),
    "kv_cache": _Read(Unit.SHARE, "kv usage", lambda s: s.kv_cache_usage),
    "preemptions": _Read(Unit.A_REQUEST, "preemptions", lambda s: _each(s.preemptions, s)),
}
"""By name. SHARE is 0–1; the KV cache's is of the fullest engine."""


def figures_of(shape: TrafficShape, arm: str | None, suffix: str = "") -> tuple[Figure, ...]:
    """The figures that are known, each named with the ``suffix``."""
    asked = shape_queries(model=shape.model, arm=arm, window_s=shape.window_s)
    known = ((name, read, read.of(shape)) for name, read in FIGURES.items())
    return tuple(
        Figure(name=f"{name}{suffix}", value=value, unit=read.unit, source=told(asked[read.signal]))
        for name, read, value in known
        if value is not None
    )


def told(query: Query) -> str:
    """What was asked, for people."""
    where = ", ".join(f'{label}="{value}"' for label, value in query.matches)
    window = f"[{query.window_s:g}s]"
    return f"{query.function.value}({query.metric}{{{where}}}{window})"


def traffic(
    source: MetricSource, *, model: str, arm: str | None, scrape_s: float, now: float
) -> Tool:
    """``now`` is when ranges are counted from; the rest is of ``read_shape``."""

    async def run(given: Mapping[str, Any]) -> Told:
        span = range_of(given, now)
        shape = await read_shape(
            source,
            model=model,
            arm=arm,
            end_s=span.end_s,
            window_s=span.seconds,
            scrape_s=scrape_s,
            with_arrivals=False,
        )
        if isinstance(shape, Missing):
            raise Temporary(f"The traffic of {span} is not known: {shape.reason}.")
        rows = tuple(Row(words={}, figures=(figure,)) for figure in figures_of(shape, arm))
        return Told(about={"traffic of": str(span), "model": model}, rows=rows)

    return Tool(
        name="traffic",
        about="Rates, lengths, latencies, queue, cache and drafts of the fleet in a time range.",
        arguments={"minutes_ago": AGO, "minutes": LENGTH},
        run=run,
    )


def _each(count: float | None, shape: TrafficShape) -> float | None:
    return count / shape.requests if count is not None and shape.requests > 0 else None
