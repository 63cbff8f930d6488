"""The configs that had fresh runs beside the baseline, and what these runs show (pure).

The verdict is the judge's; its intervals are wider, since several looks share one error. These are
shown for every config that came so far, also where the study recommended nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from canary.ablation import LEVEL
from canary.intervals import quantile, run_ratio
from canary.judge import MIN_RUNS, TAIL
from canary.objective import METRICS, compared
from domain.engine import EngineConfig
from domain.study import Measurement, Objective, Trial, TrialPurpose, TrialState
from domain.verdict import Effect


@dataclass(frozen=True, slots=True, kw_only=True)
class Finalist:
    """``trials`` are the config's own fresh runs, ``baseline_trials`` those beside them; the
    effects are of the measured ones, and none where an arm has fewer than two."""

    config: EngineConfig
    trials: tuple[int, ...]
    baseline_trials: tuple[int, ...]
    effects: tuple[Effect, ...]


@dataclass(slots=True)
class _Arms:
    candidate: list[Trial] = field(default_factory=list)
    baseline: list[Trial] = field(default_factory=list)


def finalists(trials: Sequence[Trial]) -> tuple[Finalist, ...]:
    """In the order in which they were confirmed; ``trials`` are in order of number."""
    found: dict[EngineConfig, _Arms] = {}
    arms: _Arms | None = None
    for trial in trials:
        if trial.purpose is TrialPurpose.CONFIRM:
            arms = found.setdefault(trial.config, _Arms())
            arms.candidate.append(trial)
        elif trial.purpose is TrialPurpose.CONFIRM_BASELINE and arms is not None:
            arms.baseline.append(trial)
    return tuple(
        Finalist(
            config=config,
            trials=tuple(trial.number for trial in arms.candidate),
            baseline_trials=tuple(trial.number for trial in arms.baseline),
            effects=_effects(_measured(arms.candidate), _measured(arms.baseline)),
        )
        for config, arms in found.items()
    )


def _measured(trials: Sequence[Trial]) -> list[Measurement]:
    found = [trial.measurement for trial in trials if trial.state is TrialState.MEASURED]
    return [one for one in found if one is not None and one.seconds > 0]


def _effects(candidate: list[Measurement], baseline: list[Measurement]) -> tuple[Effect, ...]:
    if min(len(candidate), len(baseline)) < MIN_RUNS:
        return ()
    found = [
        _effect(METRICS[objective], arms.candidate, arms.baseline)
        for objective in Objective
        if (arms := compared(candidate, baseline, objective)) is not None
    ]
    for metric, ours, theirs in (
        ("ttft_p95_ms", [run.ttft_ms for run in candidate], [run.ttft_ms for run in baseline]),
        ("tpot_p95_ms", [run.tpot_ms for run in candidate], [run.tpot_ms for run in baseline]),
    ):
        if all(ours) and all(theirs):
            found.append(_effect(metric, _tails(ours), _tails(theirs)))
    return tuple(one for one in found if one is not None)


def _tails(runs: Sequence[Sequence[float]]) -> list[float]:
    return [quantile(run, TAIL) for run in runs]


def _effect(metric: str, candidate: list[float], baseline: list[float]) -> Effect | None:
    """``None`` where a figure is zero, of which there is no ratio."""
    if min(*candidate, *baseline) <= 0:
        return None
    ratio = run_ratio(candidate, baseline, level=LEVEL)
    return Effect(
        metric=metric,
        baseline=ratio.baseline,
        candidate=ratio.candidate,
        estimate=ratio.estimate,
        unit="ratio",
        interval=ratio.interval,
    )
