"""What the API says of a study's report, made from its nouns by ``of``."""

from __future__ import annotations

from typing import Self

from agent.api.schemas import ChangeView, ConfigView, ShapeView, View
from agent.api.study_schemas import FidelityView, QualityView, StudyView
from agent.api.verdict_schemas import EffectView, VerdictView
from agent.report import Cost, Figures, Finalist, FrontRow, Load, Rate, Report, Run
from canary.ablation import SwitchEffect
from canary.objective import METRICS
from domain.engine import EngineConfig
from domain.study import Failure, Measurement, Study


class RateView(View):
    """A rate and its interval within one run; ``null`` bounds where the run was too short."""

    value: float
    low: float | None
    high: float | None
    level: float | None
    method: str | None
    n: int | None

    @classmethod
    def of(cls, rate: Rate) -> Self:
        found = rate.interval
        return cls(
            value=rate.value,
            low=found.low if found else None,
            high=found.high if found else None,
            level=found.level if found else None,
            method=found.method if found else None,
            n=found.n if found else None,
        )


class LoadView(View):
    """What an engine gave at one load. ``best`` is the one of several at which a token costs least:
    there ``engine_s_a_million`` good output tokens take the fewest seconds of an engine."""

    level: str
    requests: int
    slo_met: bool | None
    goodput_tok_s: float
    engine_s_a_million: float | None
    ttft_p95_ms: float | None
    tpot_p95_ms: float | None
    best: bool

    @classmethod
    def of(cls, load: Load) -> Self:
        return cls(**load._asdict())


class RunFiguresView(View):
    """One run at the live load. Goodput and output are output tokens a second, the good ones and
    all; ``stream_rps`` is completed requests a second of waiting, ``null`` where that is unknown.
    ``loads`` has the live one and the heavier ones, ``capacity_tok_s`` is the goodput at the best
    of them, ``null`` where there is one alone. ``heavier_end`` says why a heavier one that was
    tried has no figures."""

    level: str
    requests: int
    failed: int
    seconds: float
    goodput_rps: float
    goodput_tok_s: RateView
    output_tok_s: RateView
    stream_rps: RateView | None
    capacity_tok_s: RateView | None
    ttft_p50_ms: float | None
    ttft_p95_ms: float | None
    tpot_p50_ms: float | None
    tpot_p95_ms: float | None
    prefix_hit_rate: float | None
    draft_acceptance: float | None
    preemptions: float | None
    loads: list[LoadView]
    heavier_end: str

    @classmethod
    def of(cls, measured: Measurement, figures: Figures) -> Self:
        return cls(
            level=measured.level,
            requests=measured.requests,
            failed=measured.failed,
            seconds=measured.seconds,
            goodput_rps=figures.goodput_rps,
            goodput_tok_s=RateView.of(figures.goodput),
            output_tok_s=RateView.of(figures.output),
            stream_rps=RateView.of(figures.speed) if figures.speed else None,
            capacity_tok_s=RateView.of(figures.capacity) if figures.capacity else None,
            ttft_p50_ms=figures.ttft_p50_ms,
            ttft_p95_ms=figures.ttft_p95_ms,
            tpot_p50_ms=figures.tpot_p50_ms,
            tpot_p95_ms=figures.tpot_p95_ms,
            prefix_hit_rate=measured.prefix_hit_rate,
            draft_acceptance=measured.draft_acceptance,
            preemptions=measured.preemptions,
            loads=[LoadView.of(load) for load in figures.loads],
            heavier_end=measured.heavier_end,
        )


class FailureView(View):
    kind: str
    sentence: str
    log_tail: str

    @classmethod
    def of(cls, failure: Failure) -> Self:
        return cls(kind=failure.kind.value, sentence=failure.sentence, log_tail=failure.log_tail)


class RunView(View):
    """One trial. ``overridden`` is what the engine made otherwise of its config; ``expected`` says
    what was expected and what was measured, and is empty where that is not known."""

    number: int
    purpose: str
    state: str
    config: ConfigView
    changes: list[ChangeView]
    overridden: list[ChangeView]
    hypothesis: str
    diagnosis: str
    expected: str
    started_s: float
    ended_s: float | None
    minutes: float | None
    figures: RunFiguresView | None
    quality: QualityView | None
    failure: FailureView | None
    cut_short: str
    lane: str

    @classmethod
    def of(cls, run: Run, baseline: EngineConfig) -> Self:
        trial, figures, quality = run.trial, run.figures, run.trial.quality
        measured = trial.measurement
        return cls(
            number=trial.number,
            purpose=trial.purpose.value,
            state=trial.state.value,
            config=ConfigView.of(trial.config),
            changes=ChangeView.between(baseline, trial.config),
            overridden=[ChangeView(**change._asdict()) for change in trial.overridden],
            hypothesis=trial.hypothesis,
            diagnosis=trial.diagnosis,
            expected=str(run.seen or ""),
            started_s=trial.started_s,
            ended_s=trial.ended_s,
            minutes=run.minutes,
            figures=RunFiguresView.of(measured, figures) if measured and figures else None,
            quality=QualityView(right=quality.right, asked=quality.asked) if quality else None,
            failure=FailureView.of(trial.failure) if trial.failure else None,
            cut_short=trial.cut_short,
            lane=trial.lane,
        )


class FrontRowView(View):
    """One measured config: the means of ``trials``, and whether it is on the Pareto front. ``rate``
    is the figure of a run that ``metric`` names."""

    config: ConfigView
    changes: list[ChangeView]
    trials: list[int]
    metric: str
    rate: float
    ttft_p95_ms: float | None
    tpot_p95_ms: float | None
    kept: bool

    @classmethod
    def of(cls, row: FrontRow, study: Study) -> Self:
        return cls(
            config=ConfigView.of(row.config),
            changes=ChangeView.between(study.baseline, row.config),
            trials=list(row.trials),
            metric=METRICS[study.objective],
            rate=row.point.rate,
            ttft_p95_ms=row.point.ttft_p95_ms,
            tpot_p95_ms=row.point.tpot_p95_ms,
            kept=row.kept,
        )


class SwitchEffectView(View):
    """What one change did, ``runs_each`` run of each side: trial ``after`` against ``before``."""

    change: ChangeView
    before: int
    after: int
    runs_each: int
    effects: list[EffectView]

    @classmethod
    def of(cls, found: SwitchEffect) -> Self:
        return cls(
            change=ChangeView(**found.change._asdict()),
            before=found.before,
            after=found.after,
            runs_each=1,
            effects=[EffectView.of(effect) for effect in found.effects],
        )


class FinalistView(View):
    """A config that had fresh runs beside the baseline, and what they show; the verdict decides."""

    config: ConfigView
    changes: list[ChangeView]
    trials: list[int]
    baseline_trials: list[int]
    effects: list[EffectView]

    @classmethod
    def of(cls, found: Finalist, baseline: EngineConfig) -> Self:
        return cls(
            config=ConfigView.of(found.config),
            changes=ChangeView.between(baseline, found.config),
            trials=list(found.trials),
            baseline_trials=list(found.baseline_trials),
            effects=[EffectView.of(effect) for effect in found.effects],
        )


class DecisionView(View):
    """How the study ended; ``conclusion`` is empty while it runs."""

    state: str
    conclusion: str
    recommended: ConfigView | None
    changes: list[ChangeView]
    verdicts: list[VerdictView]
    finalists: list[FinalistView]

    @classmethod
    def of(cls, report: Report) -> Self:
        baseline, chosen = report.study.baseline, report.recommended
        return cls(
            state=report.study.state.value,
            conclusion=report.study.conclusion,
            recommended=ConfigView.of(chosen) if chosen else None,
            changes=ChangeView.between(baseline, chosen) if chosen else [],
            verdicts=[VerdictView.of(given) for given in report.verdicts],
            finalists=[FinalistView.of(one, baseline) for one in report.finalists],
        )


class CostView(View):
    """Engine starts asked for, and minutes of the canary lane, by the trials' rows."""

    starts: int
    refused: int
    failed: int
    running: int
    lane_minutes: float
    measuring_minutes: float

    @classmethod
    def of(cls, cost: Cost) -> Self:
        return cls(
            starts=cost.starts,
            refused=cost.refused,
            failed=cost.failed,
            running=cost.running,
            lane_minutes=cost.lane_minutes,
            measuring_minutes=cost.measuring_minutes,
        )


class ReproductionView(View):
    """A settings file as far as the store knows it, the commands that use it, and the command line
    of the recommended config: empty where there is none, with ``serve_fault`` where it is unknown.
    """

    settings: str
    commands: list[str]
    serve: str
    serve_fault: str


class ReportView(View):
    """All of a study. ``model`` is the served one; ``simulated`` says that no figure is of a real
    engine."""

    study: StudyView
    model: str
    shape: ShapeView
    simulated: bool
    decision: DecisionView
    front: list[FrontRowView]
    switches: list[SwitchEffectView]
    runs: list[RunView]
    calibrations: list[str]
    fidelity: FidelityView | None
    cost: CostView
    reproduction: ReproductionView

    @classmethod
    def of(cls, report: Report) -> Self:
        study, typed = report.study, report.reproduction
        return cls(
            study=StudyView.of(study),
            model=study.shape.model,
            shape=ShapeView.of(study.shape),
            simulated=report.simulated,
            decision=DecisionView.of(report),
            front=[FrontRowView.of(row, study) for row in report.front],
            switches=[SwitchEffectView.of(one) for one in report.switches],
            runs=[RunView.of(run, study.baseline) for run in report.runs],
            calibrations=list(map(str, report.calibrations)),
            fidelity=FidelityView.of(report.fidelity) if report.fidelity else None,
            cost=CostView.of(report.cost),
            reproduction=ReproductionView(
                settings=typed.settings,
                commands=list(typed.commands),
                serve=typed.serve,
                serve_fault=typed.serve_fault,
            ),
        )
