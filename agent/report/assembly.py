"""Puts the rows of one study together; complete for a study that runs, failed or found nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from agent import graph
from agent.planner.expectations import Calibration, Seen, calibrations, seen
from agent.report.commands import Reproduction, reproduction
from agent.report.figures import Figures, figures
from agent.report.finalists import Finalist, finalists
from agent.store import GivenVerdict
from canary.ablation import SwitchEffect, switch_effects
from canary.pareto import Point, on_front
from domain.engine import EngineConfig
from domain.fidelity import Fidelity
from domain.study import (
    FailureKind,
    Objective,
    Study,
    StudyState,
    Trial,
    TrialPurpose,
    TrialState,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A trial and its figures; ``minutes`` is ``None`` for one that has not ended, ``seen`` where
    nothing was expected, or measured."""

    trial: Trial
    figures: Figures | None
    minutes: float | None
    seen: Seen | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontRow:
    """One config among all measured ones: the mean of its ``trials``, which are its fresh runs
    where it had any, since a search's winner flatters itself. ``kept`` is on the front."""

    config: EngineConfig
    trials: tuple[int, ...]
    point: Point
    kept: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """``starts`` are trials that asked for an engine; ``refused`` ones cost none. Minutes of the
    lane count from a trial's start to its end, which for one that was cut off is when that was
    found; ``measuring_minutes`` are those of them that figures rest on. ``running`` trials have not
    ended and count no minutes."""

    starts: int
    refused: int
    failed: int
    running: int
    lane_minutes: float
    measuring_minutes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """``verdicts`` are those that the study gave, ``finalists`` the configs that had fresh runs.

    ``switches`` holds all pairs of one run each that differ in one switch. ``recommended`` is
    ``None`` where nothing is. ``simulated`` says that no figure is of a real engine.
    """

    study: Study
    simulated: bool
    recommended: EngineConfig | None
    verdicts: tuple[GivenVerdict, ...]
    finalists: tuple[Finalist, ...]
    front: tuple[FrontRow, ...]
    switches: tuple[SwitchEffect, ...]
    runs: tuple[Run, ...]
    calibrations: tuple[Calibration, ...]
    fidelity: Fidelity | None
    cost: Cost
    reproduction: Reproduction


def assemble(
    study: Study,
    trials: Sequence[Trial],
    verdicts: Sequence[GivenVerdict],
    *,
    simulated: bool,
) -> Report:
    """The report of a study in any state, of its trials in any state."""
    ordered = sorted(trials, key=lambda trial: trial.number)
    runs = tuple(_run(trial, study.seed, seen(trial, ordered)) for trial in ordered)
    recommended = _recommended(study, ordered)
    return Report(
        study=study,
        simulated=simulated,
        recommended=recommended,
        verdicts=tuple(verdicts),
        finalists=finalists(ordered),
        front=_front(runs, study.objective),
        switches=switch_effects(ordered, study.baseline, study.objective, seed=study.seed),
        runs=runs,
        calibrations=calibrations(run.seen for run in runs if run.seen),
        fidelity=graph.fidelity(ordered),
        cost=_cost(runs),
        reproduction=reproduction(study, recommended),
    )


def _run(trial: Trial, seed: int, found: Seen | None) -> Run:
    measured = trial.measurement if trial.state is TrialState.MEASURED else None
    ended_s = trial.ended_s
    return Run(
        trial=trial,
        figures=figures(measured, seed=seed) if measured is not None else None,
        minutes=None if ended_s is None else max(0.0, ended_s - trial.started_s) / 60,
        seen=found,
    )


def _recommended(study: Study, trials: Sequence[Trial]) -> EngineConfig | None:
    """A study that recommends ends with the fresh runs of what it recommends."""
    if study.state is not StudyState.RECOMMENDED:
        return None
    confirmed = [trial.config for trial in trials if trial.purpose is TrialPurpose.CONFIRM]
    return confirmed[-1] if confirmed else None


def _front(runs: Sequence[Run], objective: Objective) -> tuple[FrontRow, ...]:
    """All measured configs whose rate is known, the highest first."""
    by_config: dict[EngineConfig, list[Run]] = {}
    for run in runs:
        if run.figures is not None and run.figures.rate(objective) is not None:
            by_config.setdefault(run.trial.config, []).append(run)
    counted = [
        [run for run in all_of_it if not run.trial.purpose.explores] or all_of_it
        for all_of_it in by_config.values()
    ]
    points = [_mean([r.figures for r in some if r.figures], objective) for some in counted]
    rows = [
        FrontRow(
            config=config,
            trials=tuple(run.trial.number for run in some),
            point=point,
            kept=kept,
        )
        for config, some, point, kept in zip(
            by_config, counted, points, on_front(points), strict=True
        )
    ]
    return tuple(sorted(rows, key=lambda row: -row.point.rate))


def _mean(some: Sequence[Figures], objective: Objective) -> Point:
    return Point(
        rate=fmean(rate.value for one in some if (rate := one.rate(objective)) is not None),
        ttft_p95_ms=_mean_known([one.ttft_p95_ms for one in some]),
        tpot_p95_ms=_mean_known([one.tpot_p95_ms for one in some]),
    )


def _mean_known(values: Sequence[float | None]) -> float | None:
    """``None`` where one of them is unknown: the rest would be another figure."""
    known = [value for value in values if value is not None]
    return fmean(known) if len(known) == len(values) else None


def _cost(runs: Sequence[Run]) -> Cost:
    failures = [run.trial.failure for run in runs if run.trial.failure is not None]
    refused = sum(failure.kind is FailureKind.REFUSED for failure in failures)
    measured = [run.trial.measurement for run in runs if run.figures is not None]
    return Cost(
        starts=len(runs) - refused,
        refused=refused,
        failed=len(failures) - refused,
        running=sum(run.minutes is None for run in runs),
        lane_minutes=sum(run.minutes or 0.0 for run in runs),
        measuring_minutes=sum(
            load.seconds for one in measured if one is not None for load in one.levels
        )
        / 60,
    )
