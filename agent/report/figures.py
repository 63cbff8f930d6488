"""What a report says of one measured run, each figure as search and judge understand it (pure)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, assert_never

from canary.ablation import within_run
from canary.intervals import quantile
from canary.objective import best_level, value
from domain.interval import Interval
from domain.study import Measurement, Objective

MILLION = 1e6


class Rate(NamedTuple):
    """A rate and the interval within its run; ``None`` for one too short to have any."""

    value: float
    interval: Interval | None


class Load(NamedTuple):
    """What an engine gave at one load; ``slo_met`` is ``None`` where nobody said,
    ``engine_s_a_million`` the seconds of an engine that a million good output tokens take."""

    level: str
    requests: int
    slo_met: bool | None
    goodput_tok_s: float
    engine_s_a_million: float | None
    ttft_p95_ms: float | None
    tpot_p95_ms: float | None
    best: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """``goodput`` and ``output`` are output tokens a second: those of requests that met the SLO,
    and all. ``speed`` is completed requests a second of waiting, ``None`` where that is unknown.
    ``capacity`` is the goodput at the best of the ``loads``, the live one first, ``None`` where
    that is the only one. A tail is ``None`` where no request had such a latency."""

    goodput_rps: float
    goodput: Rate
    output: Rate
    speed: Rate | None
    capacity: Rate | None
    ttft_p50_ms: float | None
    ttft_p95_ms: float | None
    tpot_p50_ms: float | None
    tpot_p95_ms: float | None
    loads: tuple[Load, ...]

    def rate(self, objective: Objective) -> Rate | None:
        match objective:
            case Objective.GOODPUT:
                return self.goodput
            case Objective.THROUGHPUT:
                return self.output
            case Objective.LATENCY:
                return self.speed
            case Objective.COST:
                return self.capacity
            case _:
                assert_never(objective)


def figures(measured: Measurement, *, seed: int) -> Figures | None:
    """``None`` where the measuring never began."""
    if measured.seconds <= 0:
        return None

    rates = {each: _rate(measured, each, seed) for each in Objective}
    goodput, output = rates[Objective.GOODPUT], rates[Objective.THROUGHPUT]
    if goodput is None or output is None:
        return None
    return Figures(
        goodput_rps=measured.goodput_rps,
        goodput=goodput,
        output=output,
        speed=rates[Objective.LATENCY],
        capacity=rates[Objective.COST],
        ttft_p50_ms=_quantile(measured.ttft_ms, 0.5),
        ttft_p95_ms=_quantile(measured.ttft_ms, 0.95),
        tpot_p50_ms=_quantile(measured.tpot_ms, 0.5),
        tpot_p95_ms=_quantile(measured.tpot_ms, 0.95),
        loads=tuple(_loads(measured)),
    )


def _loads(measured: Measurement) -> Iterator[Load]:
    best = best_level(measured)
    for level in measured.levels:
        tok_s = value(level, Objective.GOODPUT) or 0.0
        yield Load(
            level=level.level,
            requests=level.requests,
            slo_met=level.slo_met,
            goodput_tok_s=tok_s,
            engine_s_a_million=MILLION / tok_s if tok_s > 0 else None,
            ttft_p95_ms=_quantile(level.ttft_ms, 0.95),
            tpot_p95_ms=_quantile(level.tpot_ms, 0.95),
            best=level is best,
        )


def _rate(measured: Measurement, objective: Objective, seed: int) -> Rate | None:
    found = value(measured, objective)
    return None if found is None else Rate(found, within_run(measured, objective, seed=seed))


def _quantile(values: Sequence[float], q: float) -> float | None:
    return quantile(values, q) if values else None
