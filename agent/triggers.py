"""When a study is wanted, and why: a pure decision over the live shape and the schedule.

A study is never wanted on missing data: the caller has no shape then and asks nothing here but
the schedule and a person's order.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, NamedTuple

from domain.drift import Component, Drift, DriftRules, DriftState, Window, advance, counts
from domain.slo import SLO
from domain.study import Trigger
from domain.traffic import TrafficShape

BREACH_WINDOWS: Final = 2
"""While the SLO is broken, so many windows in a row beyond noise are enough of a change: one may be
a burst that is over before a study begins, and a whole run would take long."""


class Wanted(NamedTuple):
    """A study is wanted, for this cause and for this reason in one sentence."""

    trigger: Trigger
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sensitivity:
    """From how many requests in the window a shape counts, and what is drift.

    Nearer than ``drift_distance`` nothing is; a large change lasts ``drift_windows`` in a row.
    """

    min_requests: int
    drift_distance: float
    drift_windows: int


def evidence(
    state: DriftState | None,
    shape: TrafficShape,
    tuned_for: TrafficShape | None,
    sensitivity: Sensitivity,
) -> bool:
    """Whether ``watched`` would learn anything from this shape."""
    if tuned_for is None or shape.requests < sensitivity.min_requests:
        return False
    return counts(state, tuned_for, shape)


def watched(
    state: DriftState | None,
    shape: TrafficShape,
    tuned_for: TrafficShape | None,
    sensitivity: Sensitivity,
) -> DriftState | None:
    """What is known of drift after this shape; as before where the shape is no evidence."""
    if tuned_for is None or shape.requests < sensitivity.min_requests:
        return state
    rules = DriftRules(least=sensitivity.drift_distance, run=sensitivity.drift_windows)
    return advance(state, tuned_for, shape, rules)


def wanted(
    shape: TrafficShape,
    tuned_for: TrafficShape | None,
    slo: SLO,
    sensitivity: Sensitivity,
    watch: DriftState | None,
) -> Wanted | None:
    """Why a study is wanted for this shape; ``None`` where production may stay as it is.

    ``watch`` is what ``watched`` returned for the shape.
    """
    if shape.requests < sensitivity.min_requests:
        return None
    breach = slo_breach(shape, slo)
    if tuned_for is None:
        if breach:
            return Wanted(Trigger.SLO_BREACH, breach)
        return Wanted(Trigger.FIRST, "This traffic was never tuned for.")
    if watch is None:
        return None
    if watch.drift is not None:
        change = moved(watch.drift, watch.reference)
        if breach:
            return Wanted(Trigger.SLO_BREACH, f"{breach} {change}")
        return Wanted(Trigger.DRIFT, change)
    if breach and len(watch.pending) >= BREACH_WINDOWS:
        return Wanted(Trigger.SLO_BREACH, f"{breach} The traffic has changed since tuning.")
    return None


def moved(drift: Drift, reference: Window) -> str:
    """What moved since the tuned shape, how far, and how far it moves by itself, in a sentence."""
    what = _movement(drift.component, reference, drift.window)
    windows = f"{drift.calm} windows without change"
    noise = (
        f"noise up to {drift.noise:.2f}, n={windows}"
        if drift.noise is not None
        else f"noise unknown after {windows}"
    )
    return (
        f"{what} for {drift.run} windows (distance {drift.distance:.2f}, "
        f"limit {drift.limit:.2f}, {noise})."
    )


def _movement(component: Component, before: Window, now: Window) -> str:
    match component:
        case Component.DEMAND:
            return _times("Demand", before.rate_rps, now.rate_rps)
        case Component.CONCURRENCY:
            return _times("The number in the engine", before.concurrency, now.concurrency)
        case Component.ISL | Component.OSL:
            isl = component is Component.ISL
            one, other = (before.isl, now.isl) if isl else (before.osl, now.osl)
            name = f"Mean {component.value}"
            if one is None or other is None:
                return f"{name} changed"
            gap = 2 * one.gap(other)
            if gap > abs(math.log2(other.mean / one.mean)):
                return f"{component.value} of {gap / 2:.0%} of the requests changed"
            return _times(name, one.mean, other.mean)
        case Component.HIT_RATE:
            return _share("The prefix hit rate", before.prefix_hit_rate, now.prefix_hit_rate)
        case Component.ACCEPTANCE:
            return _share("Draft acceptance", before.draft_acceptance, now.draft_acceptance)


def _times(name: str, before: float, now: float) -> str:
    verb = "rose" if now >= before else "fell"
    low, high = sorted((before, now))
    return f"{name} {verb} {high / low:.1f}-fold" if low > 0 else f"{name} {verb} to {now:.3g}"


def _share(name: str, before: float | None, now: float | None) -> str:
    return f"{name} went from {before or 0.0:.2f} to {now or 0.0:.2f}"


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
