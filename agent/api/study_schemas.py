"""What the API says of studies and their trials, made from their nouns by ``of``."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Self

from agent.api.schemas import ChangeView, ConfigView, View
from agent.api.verdict_schemas import VerdictView
from agent.graph import fidelity
from agent.store import GivenVerdict
from canary.budget import spent
from domain.engine import EngineConfig
from domain.fidelity import Fidelity, FidelityRow
from domain.study import Cost, Measurement, Study, Trial


class MeasurementView(View):
    """``null`` where nothing was measured long enough to say."""

    level: str
    requests: int
    failed: int
    seconds: float
    goodput_rps: float | None
    output_tok_s: float | None
    stream_rps: float | None
    ttft_p50_ms: float | None
    ttft_p95_ms: float | None
    tpot_p95_ms: float | None
    prefix_hit_rate: float | None
    draft_acceptance: float | None
    preemptions: float | None

    @classmethod
    def of(cls, measured: Measurement) -> Self:
        timed = measured.seconds > 0
        return cls(
            level=measured.level,
            requests=measured.requests,
            failed=measured.failed,
            seconds=measured.seconds,
            goodput_rps=measured.goodput_rps if timed else None,
            output_tok_s=measured.output_tok_s if timed else None,
            stream_rps=measured.stream_rps,
            ttft_p50_ms=_percentile(measured.ttft_ms, 50),
            ttft_p95_ms=_percentile(measured.ttft_ms, 95),
            tpot_p95_ms=_percentile(measured.tpot_ms, 95),
            prefix_hit_rate=measured.prefix_hit_rate,
            draft_acceptance=measured.draft_acceptance,
            preemptions=measured.preemptions,
        )


class QualityView(View):
    right: int
    asked: int


class FidelityRowView(View):
    """One signal; ``low`` to ``high`` are the rehearsed figures that count as close."""

    signal: str
    words: str
    unit: str
    live: float | None
    rehearsed: float | None
    difference: float | None
    low: float | None
    high: float | None
    agreement: str
    live_n: float
    rehearsed_n: int

    @classmethod
    def of(cls, row: FidelityRow) -> Self:
        return cls(
            signal=row.signal.value,
            words=row.signal.words,
            unit=row.signal.unit,
            live=row.live,
            rehearsed=row.rehearsed,
            difference=row.difference,
            low=row.low,
            high=row.high,
            agreement=row.agreement.value,
            live_n=row.live_n,
            rehearsed_n=row.rehearsed_n,
        )


class FidelityView(View):
    """How closely the rehearsed baseline reproduces what production measured live."""

    grade: str
    words: str
    reasons: list[str]
    rows: list[FidelityRowView]

    @classmethod
    def of(cls, found: Fidelity) -> Self:
        return cls(
            grade=found.grade.value,
            words=found.grade.words,
            reasons=list(found.reasons),
            rows=[FidelityRowView.of(row) for row in found.rows],
        )


class TrialView(View):
    number: int
    purpose: str
    state: str
    config: ConfigView
    changes: list[ChangeView]
    hypothesis: str
    started_s: float
    ended_s: float | None
    measurement: MeasurementView | None
    quality: QualityView | None
    failure: str | None
    cut_short: str

    @classmethod
    def of(cls, trial: Trial, baseline: EngineConfig) -> Self:
        quality = trial.quality
        return cls(
            number=trial.number,
            purpose=trial.purpose.value,
            state=trial.state.value,
            config=ConfigView.of(trial.config),
            changes=ChangeView.between(baseline, trial.config),
            hypothesis=trial.hypothesis,
            started_s=trial.started_s,
            ended_s=trial.ended_s,
            measurement=MeasurementView.of(trial.measurement) if trial.measurement else None,
            quality=QualityView(right=quality.right, asked=quality.asked) if quality else None,
            failure=trial.failure.sentence if trial.failure else None,
            cut_short=trial.cut_short,
        )


class CostView(View):
    """Starts of engines, and seconds that the canary lane is held."""

    engine_starts: int
    lane_s: float
    words: str

    @classmethod
    def of(cls, cost: Cost) -> Self:
        return cls(engine_starts=cost.starts, lane_s=cost.seconds, words=str(cost))


class StudyView(View):
    """``most`` is what it may cost; ``null`` where nobody reckoned that. ``replicas`` shared the
    live traffic, and a trial rehearses what one of them got."""

    id: str
    created_s: float
    trigger: str
    reason: str
    objective: str
    slo: str
    state: str
    conclusion: str
    trial_budget: int
    replicas: int
    most: CostView | None
    baseline: ConfigView

    @classmethod
    def of(cls, study: Study) -> Self:
        return cls(
            id=study.id,
            created_s=study.created_s,
            trigger=study.trigger.value,
            reason=study.reason,
            objective=study.objective.value,
            slo=str(study.slo),
            state=study.state.value,
            conclusion=study.conclusion,
            trial_budget=study.trial_budget,
            replicas=study.replicas,
            most=CostView.of(study.lane.most) if study.lane is not None else None,
            baseline=ConfigView.of(study.baseline),
        )


class StudyDetail(View):
    """A study with its trials by number and the verdicts of its confirmations, oldest first.

    ``fidelity`` is ``null`` until the baseline has been measured. ``cost`` is what the study has
    cost so far.
    """

    study: StudyView
    cost: CostView
    fidelity: FidelityView | None
    trials: list[TrialView]
    verdicts: list[VerdictView]

    @classmethod
    def of(
        cls, study: Study, trials: Sequence[Trial], verdicts: Sequence[GivenVerdict], now: float
    ) -> Self:
        found = fidelity(trials)
        longest_s = study.lane.run_s if study.lane is not None else None
        return cls(
            study=StudyView.of(study),
            cost=CostView.of(spent(trials, longest_s, now)),
            fidelity=FidelityView.of(found) if found else None,
            trials=[TrialView.of(trial, study.baseline) for trial in trials],
            verdicts=[VerdictView.of(given) for given in verdicts],
        )


def _percentile(values: Sequence[float], percent: int) -> float | None:
    if len(values) < 2:
        return values[0] if values else None
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]
