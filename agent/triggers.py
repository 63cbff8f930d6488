"""When a study is wanted, and why: a pure decision over the live shape and the schedule.

A study is never wanted on missing data: the caller has no shape then and asks nothing here but
the schedule and a person's order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from domain.slo import SLO
from domain.study import Trigger
from domain.traffic import TrafficShape, distance


class Wanted(NamedTuple):
    """A study is wanted, for this cause and for this reason in one sentence."""

    trigger: Trigger
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sensitivity:
    """From how many requests in the window a shape counts, and what distance is drift."""

    min_requests: int
    drift_distance: float


def wanted(
    shape: TrafficShape,
    tuned_for: TrafficShape | None,
    slo: SLO,
    sensitivity: Sensitivity,
) -> Wanted | None:
    """Why a study is wanted for this shape; ``None`` where production may stay as it is."""
    if shape.requests < sensitivity.min_requests:
        return None
    if breach := slo_breach(shape, slo):
        if tuned_for is None:
            return Wanted(Trigger.SLO_BREACH, breach)
        if distance(shape, tuned_for) >= sensitivity.drift_distance:
            return Wanted(Trigger.SLO_BREACH, f"{breach} The traffic has changed since tuning.")
        return None
    if tuned_for is None:
        return Wanted(Trigger.FIRST, "This traffic was never tuned for.")
    moved = distance(shape, tuned_for)
    if moved >= sensitivity.drift_distance:
        return Wanted(
            Trigger.DRIFT,
            f"The traffic lies {moved:.2f} from the shape that production was tuned for "
            f"(limit {sensitivity.drift_distance:.2f}).",
        )
    return None


def slo_breach(shape: TrafficShape, slo: SLO) -> str | None:
    """Which limit the live 95th percentile breaks, in one sentence; ``None`` where none."""
    live = shape.latencies
    for name, seen_ms, limit_ms in (
        ("TTFT", live.ttft_p95_ms, slo.ttft_ms),
        ("TPOT", live.tpot_p95_ms, slo.tpot_ms),
        ("E2EL", live.e2el_p95_ms, slo.e2el_ms),
    ):
        if seen_ms is not None and limit_ms is not None and seen_ms > limit_ms:
            return f"{name} p95 is {seen_ms:.0f} ms, the SLO allows {limit_ms:.0f} ms."
    return None
