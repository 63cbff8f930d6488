"""What the API says of verdicts, made from their nouns by ``of``."""

from __future__ import annotations

from typing import Self

from agent.api.schemas import View
from agent.store import GivenVerdict
from domain.verdict import Effect


class EffectView(View):
    """One metric of both arms; ``low`` to ``high`` is the interval of ``estimate``.

    ``unit`` says whether the estimate is a ratio to the baseline or a difference from it.
    """

    metric: str
    baseline: float
    candidate: float
    estimate: float
    unit: str
    low: float
    high: float
    level: float
    method: str
    n: int

    @classmethod
    def of(cls, effect: Effect) -> Self:
        interval = effect.interval
        return cls(
            metric=effect.metric,
            baseline=effect.baseline,
            candidate=effect.candidate,
            estimate=effect.estimate,
            unit=effect.unit,
            low=interval.low,
            high=interval.high,
            level=interval.level,
            method=interval.method,
            n=interval.n,
        )


class VerdictView(View):
    """Sample counts, window and queries are ``null`` or empty where no evidence was at hand."""

    at_s: float
    outcome: str
    reason: str
    effects: list[EffectView]
    baseline_n: int | None
    candidate_n: int | None
    start_s: float | None
    end_s: float | None
    queries: list[str]
    notes: list[str]

    @classmethod
    def of(cls, given: GivenVerdict) -> Self:
        verdict, evidence = given.verdict, given.verdict.evidence
        return cls(
            at_s=given.at_s,
            outcome=verdict.outcome.value,
            reason=verdict.reason,
            effects=[EffectView.of(effect) for effect in verdict.effects],
            baseline_n=evidence.baseline_n if evidence else None,
            candidate_n=evidence.candidate_n if evidence else None,
            start_s=evidence.start_s if evidence else None,
            end_s=evidence.end_s if evidence else None,
            queries=list(evidence.queries) if evidence else [],
            notes=list(evidence.notes) if evidence else [],
        )
