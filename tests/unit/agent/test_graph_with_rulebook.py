"""The station's case as one study: the rulebook plans, the graph runs, a surface answers."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import pytest

from agent.graph import Conclusion, Look, StudyGraph
from agent.planner.rulebook import Rulebook
from agent.rehearsals import unresolved
from domain.engine import Condition, EngineConfig, SearchSpace
from domain.fidelity import Fidelity, Grade
from domain.study import (
    Measurement,
    Objective,
    QualityScore,
    StudyState,
    Trial,
    TrialPurpose,
    TrialState,
)
from domain.verdict import Outcome, Verdict
from tests.fakes.records import knob, measured, shape, study

SPACE = SearchSpace(
    knobs=(
        knob("speculative_method", ("none", "mtp")),
        knob(
            "num_speculative_tokens", (1, 3), only_if=(Condition("speculative_method", ("mtp",)),)
        ),
        knob("OMP_NUM_THREADS", (0, 1)),
        knob("async_scheduling", (False, True)),
        knob("mamba_backend", ("triton", "flashinfer")),
        knob("mamba_ssm_cache_dtype", ("float32", "float16"), lossy_values=("float16",)),
        knob(
            "enable_mamba_cache_stochastic_rounding",
            (False, True),
            only_if=(Condition("mamba_ssm_cache_dtype", ("float16",)),),
        ),
        knob("max_num_batched_tokens", (8192, 4096, 2048)),
    )
)
STUDY = study(
    objective=Objective.THROUGHPUT, baseline=EngineConfig(), shape=shape(running=256.0, waiting=0.0)
)


def surface(config: EngineConfig) -> float:
    tokens = 6058.0
    if config.get("speculative_method") == "mtp":
        tokens *= 1.30 if config.get("num_speculative_tokens") == 3 else 1.42
    tokens *= 1.10 if config.get("async_scheduling") else 1.0
    tokens *= 1.15 if config.get("mamba_backend") else 1.0
    return tokens * (1.08 if config.get("mamba_ssm_cache_dtype") else 1.0)


class Rows(dict[str, Trial]):
    def trials(self, study_id: str) -> tuple[Trial, ...]:
        return tuple(self.values())

    def add(self, trial: Trial) -> None:
        self[trial.id] = trial

    save = add


class NoClock:
    def now(self) -> float:
        return 0.0

    async def sleep(self, seconds: float) -> None:
        raise AssertionError("a study does not sleep")


def best(trials: Sequence[Trial], objective: Objective) -> Trial | None:
    return max(trials, key=lambda t: surface(t.config), default=None)


def judge(baseline: Sequence[Measurement], candidate: Sequence[Measurement]) -> Look:
    better = candidate[0].output_tok_s > 1.03 * baseline[0].output_tok_s
    outcome = Outcome.PASS if better else Outcome.INCONCLUSIVE
    return Look(Verdict(outcome=outcome, reason="By 3 %."), open=False)


def judge_quality(baseline: QualityScore, candidate: QualityScore) -> Verdict:
    outcome = Outcome.PASS if candidate.right >= baseline.right else Outcome.FAIL
    return Verdict(outcome=outcome, reason="By the answers.")


async def concluded(rows: Rows, right_when_lossy: int) -> Conclusion:
    async def rehearse(trial: Trial, quality: bool) -> Trial:
        right = right_when_lossy if SPACE.lossy_changes(trial.config) else 90
        return replace(
            trial,
            state=TrialState.MEASURED,
            measurement=measured(surface(trial.config)),
            quality=QualityScore(right=right, asked=100) if quality else None,
        )

    ids = itertools.count()
    graph = StudyGraph(
        planner=Rulebook(),
        diagnose=lambda *asked: "Nothing limits it.",
        space=SPACE,
        log=rows,
        rehearse=rehearse,
        resolve=unresolved,
        ask=lambda trials, configs, without: configs[0] if configs else None,
        best=best,
        judge=judge,
        judge_quality=judge_quality,
        compare=lambda shape, found: Fidelity(grade=Grade.A, rows=(), reasons=()),
        fidelity_limit=Grade.C,
        rounds=1,
        clock=NoClock(),
        new_id=lambda: f"t{next(ids)}",
    )
    return await graph.run(STUDY)


@pytest.mark.parametrize(("right_when_lossy", "gain"), [(90, 1.94), (50, 1.796)])
async def test_the_stations_gain_is_recommended_within_eight_trials(
    right_when_lossy: int, gain: float
) -> None:
    rows = Rows()
    conclusion = await concluded(rows, right_when_lossy)
    assert conclusion.study.state is StudyState.RECOMMENDED
    assert conclusion.recommendation is not None
    config = conclusion.recommendation.config
    assert surface(config) / 6058 == pytest.approx(gain, abs=0.001)
    assert bool(SPACE.lossy_changes(config)) == (right_when_lossy == 90)
    searched = (TrialPurpose.BASELINE, TrialPurpose.SEARCH)
    assert len([t for t in rows.values() if t.purpose in searched]) == 8
