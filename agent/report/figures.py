"""What a report says of one measured run, each figure as search and judge understand it (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, assert_never

from canary.ablation import within_run
from canary.intervals import quantile
from canary.objective import value
from domain.study import Measurement, Objective
from domain.verdict import Interval


class Rate(NamedTuple):
    """A rate and the interval within its run; ``None`` for one too short to have any."""

    value: float
    interval: Interval | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """``goodput`` and ``output`` are output tokens a second: those of requests that met the SLO,
    and all. ``speed`` is completed requests a second of waiting, ``None`` where that is unknown. A
    tail is ``None`` where no request had such a latency."""

    goodput_rps: float
    goodput: Rate
    output: Rate
    speed: Rate | None
    ttft_p50_ms: float | None
    ttft_p95_ms: float | None
    tpot_p50_ms: float | None
    tpot_p95_ms: float | None

    def rate(self, objective: Objective) -> Rate | None:
        match objective:
            case Objective.GOODPUT:
                return self.goodput
            case Objective.THROUGHPUT:
                return self.output
            case Objective.LATENCY:
                return self.speed
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
        ttft_p50_ms=_quantile(measured.ttft_ms, 0.5),
        ttft_p95_ms=_quantile(measured.ttft_ms, 0.95),
        tpot_p50_ms=_quantile(measured.tpot_ms, 0.5),
        tpot_p95_ms=_quantile(measured.tpot_ms, 0.95),
    )


def _rate(measured: Measurement, objective: Objective, seed: int) -> Rate | None:
    found = value(measured, objective)
    return None if found is None else Rate(found, within_run(measured, objective, seed=seed))


def _quantile(values: Sequence[float], q: float) -> float | None:
    return quantile(values, q) if values else None
