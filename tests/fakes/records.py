"""Small, complete nouns for tests of the store, the API, the planners and the study's graph."""

from __future__ import annotations

from typing import Any

from domain.approval import ApprovalRequest, Command, CommandKind
from domain.engine import EngineConfig, Knob, Place, Value
from domain.fidelity import Agreement, Fidelity, FidelityRow, Grade, Signal
from domain.interval import Interval
from domain.rollout import Phase, Rollout, RolloutPlan, StallAction, Step
from domain.slo import SLO
from domain.study import (
    Block,
    Measurement,
    Objective,
    Study,
    Trial,
    TrialPurpose,
    Trigger,
)
from domain.traffic import Burstiness, Distribution, Latencies, TrafficShape
from domain.verdict import Effect, Evidence, Outcome, Verdict

BASELINE = EngineConfig.of({"max_num_seqs": 256})
CANDIDATE = EngineConfig.of({"max_num_seqs": 512, "async_scheduling": True})

BURSTINESS = tuple(
    Burstiness(
        scale_s=scale_s,
        dispersion=dispersion,
        interval=Interval(low=low, high=high, level=0.95, method="chi-square", n=n),
    )
    for scale_s, dispersion, low, high, n in ((5.0, 1.1, 0.8, 1.9, 23), (20.0, 4.2, 2.0, 20.0, 5))
)


def knob(name: str, domain: tuple[Value, ...], default: Value | None = None, **rules: Any) -> Knob:
    """A knob of this domain; its default is the first value unless one is given."""
    place = Place.ENVIRONMENT if name.isupper() else Place.FLAG
    chosen = domain[0] if default is None else default
    return Knob(name=name, place=place, domain=domain, default=chosen, **rules)


def shape(**changes: Any) -> TrafficShape:
    lengths = Distribution.of_values([300.0, 500.0, 700.0], (256.0, 512.0, 1024.0))
    values: dict[str, Any] = {
        "model": "demo-hybrid",
        "end_s": 1000.0,
        "window_s": 120.0,
        "requests": 480.0,
        "rate_rps": 4.0,
        "running": 40.0,
        "waiting": 8.0,
        "isl": lengths,
        "osl": lengths,
        "latencies": Latencies(ttft_p95_ms=420.0, tpot_p95_ms=31.0),
        "prefix_hit_rate": 0.62,
    }
    return TrafficShape(**values | changes)


def study(**changes: Any) -> Study:
    values: dict[str, Any] = {
        "id": "study-1",
        "created_s": 1000.0,
        "trigger": Trigger.DRIFT,
        "reason": "Concurrency doubled.",
        "shape": shape(),
        "slo": SLO.parse("ttft<=500ms, tpot<=50ms"),
        "objective": Objective.GOODPUT,
        "baseline": BASELINE,
        "trial_budget": 8,
        "seed": 7,
    }
    return Study(**values | changes)


def measurement(good: int = 90, **changes: Any) -> Measurement:
    values: dict[str, Any] = {
        "level": "48 streams",
        "seed": 7,
        "requests": 100,
        "failed": 1,
        "blocks": (Block(seconds=10.0, requests=100, good=good, failed=1, output_tokens=50_000.0),),
        "ttft_ms": tuple(100.0 + n for n in range(100)),
        "tpot_ms": tuple(20.0 + n / 10 for n in range(100)),
        "prefix_hit_rate": 0.6,
    }
    return Measurement(**values | changes)


def measured(output_tok_s: float, good: int = 0) -> Measurement:
    """Ten requests at this rate, in one block of a second; the waits for them are the shorter the
    more tokens there were. No heavier load was borne."""
    block = Block(
        seconds=1.0,
        requests=10,
        good=good,
        failed=0,
        output_tokens=output_tok_s,
        waited_s=1000 / max(output_tok_s, 1.0),
    )
    return measurement(requests=10, failed=0, blocks=(block,), heavier=())


def fidelity(**changes: Any) -> Fidelity:
    """A hit rate that is close, and a live TTFT that nobody knows."""
    hits = FidelityRow(
        signal=Signal.PREFIX_HIT_RATE,
        live=0.62,
        rehearsed=0.6,
        agreement=Agreement.CLOSE,
        low=0.5,
        high=0.74,
        live_n=480.0,
        rehearsed_n=100,
    )
    unknown = FidelityRow(
        signal=Signal.TTFT_P50, live=None, rehearsed=150.0, agreement=Agreement.UNKNOWN
    )
    values: dict[str, Any] = {
        "grade": Grade.B,
        "rows": (hits, unknown),
        "reasons": ("Not known: TTFT p50.", "Close: 1 of 2 figures."),
    }
    return Fidelity(**values | changes)


def trial(number: int = 1, **changes: Any) -> Trial:
    values: dict[str, Any] = {
        "id": f"study-1-trial-{number}",
        "study_id": "study-1",
        "number": number,
        "purpose": TrialPurpose.SEARCH,
        "config": CANDIDATE,
        "hypothesis": "rulebook: more sequences fill the GPU",
        "started_s": 1010.0,
    }
    return Trial(**values | changes)


def rollout(**changes: Any) -> Rollout:
    values: dict[str, Any] = {
        "id": "rollout-1",
        "study_id": "study-1",
        "version": 1,
        "created_s": 2000.0,
        "baseline": BASELINE,
        "candidate": CANDIDATE,
        "plan": RolloutPlan(
            steps=(Step(weight=5, bake_s=60.0), Step(weight=100, bake_s=60.0)),
            min_requests=50,
            stall_s=600.0,
            stall_action=StallAction.HOLD,
            start_s=300.0,
        ),
        "phase": Phase.WAITING_APPROVAL,
        "phase_since_s": 2000.0,
    }
    return Rollout(**values | changes)


def verdict(**changes: Any) -> Verdict:
    interval = Interval(low=1.31, high=1.52, level=0.95, method="block bootstrap", n=24)
    effect = Effect(
        metric="goodput",
        baseline=9.0,
        candidate=12.7,
        estimate=1.41,
        unit="ratio",
        interval=interval,
    )
    values: dict[str, Any] = {
        "outcome": Outcome.PASS,
        "reason": "Goodput rose and no limit was crossed.",
        "effects": (effect,),
        "evidence": Evidence(baseline_n=1180, candidate_n=1204, start_s=1500.0, end_s=1900.0),
    }
    return Verdict(**values | changes)


def request(**changes: Any) -> ApprovalRequest:
    values: dict[str, Any] = {
        "id": "approval-1",
        "rollout_id": "rollout-1",
        "rollout_version": 1,
        "digest": CANDIDATE.digest,
        "created_s": 2000.0,
        "expires_s": 5000.0,
    }
    return ApprovalRequest(**values | changes)


def command(**changes: Any) -> Command:
    values: dict[str, Any] = {
        "id": "command-1",
        "kind": CommandKind.PAUSE,
        "actor": "ada",
        "created_s": 2000.0,
    }
    return Command(**values | changes)
