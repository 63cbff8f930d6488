"""Builds the graph of one study around the canary lane: plans, seeds, search and the judge.

Composition only: what is measured and how it is judged is ``canary``'s, when is ``graph``'s.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from agent.graph import Resolve, StudyGraph, TrialLog
from agent.leadership import Leadership
from canary.fidelity import compare
from canary.judge import judge
from canary.prompts import synthesise
from canary.quality import judge_quality
from canary.search import Search
from domain.engine import EngineConfig, SearchSpace
from domain.fidelity import Grade
from domain.load import LoadPlan
from domain.ports import Clock, Planner
from domain.slo import SLO
from domain.study import Measurement, Objective, QualityScore, Study, Trial, TrialPurpose
from domain.verdict import Verdict

Rehearse = Callable[[Trial, LoadPlan, SLO, bool], Awaitable[Trial]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialLength:
    """Seconds of load before measuring begins, and of measuring; requests that a verdict needs."""

    warm_up_s: float
    measured_s: float
    min_requests: int
    max_model_len: int | None = None


async def unresolved(config: EngineConfig) -> None:
    """Resolves nothing, for engines that can only be started to see."""


class StoredTrials:
    """The graph's ``TrialLog`` over the store; every write is fenced by the lease."""

    def __init__(self, leadership: Leadership) -> None:
        self._leadership = leadership

    def trials(self, study_id: str) -> tuple[Trial, ...]:
        with self._leadership.view() as uow:
            return uow.trials.of(study_id)

    def add(self, trial: Trial) -> None:
        with self._leadership.work() as uow:
            uow.trials.add(trial)
            uow.commit()

    def save(self, trial: Trial) -> None:
        with self._leadership.work() as uow:
            uow.trials.save(trial)
            uow.commit()


class Rehearsals:
    """``graph_for`` a study; ``rehearse`` runs one trial on the lane, ``resolve`` tells what an
    engine would make of a config. Below the grade ``fidelity_limit`` no study recommends."""

    def __init__(
        self,
        *,
        log: TrialLog,
        planner: Planner,
        space: SearchSpace,
        rehearse: Rehearse,
        resolve: Resolve,
        length: TrialLength,
        fidelity_limit: Grade,
        clock: Clock,
        new_id: Callable[[], str],
    ) -> None:
        self._log = log
        self._planner = planner
        self._space = space
        self._rehearse = rehearse
        self._resolve = resolve
        self._length = length
        self._fidelity_limit = fidelity_limit
        self._clock = clock
        self._new_id = new_id

    def graph_for(self, study: Study) -> StudyGraph:
        search = Search(self._space, study.baseline, study.seed, study.objective)

        async def rehearse(trial: Trial, with_quality: bool) -> Trial:
            plan = await asyncio.to_thread(self.plan, study, study.seed + trial.number)
            return await self._rehearse(trial, plan, study.slo, with_quality)

        def fresh(study: Study) -> list[Trial]:
            confirming = (TrialPurpose.CONFIRM, TrialPurpose.CONFIRM_BASELINE)
            return [t for t in self._log.trials(study.id) if t.purpose in confirming]

        def best(trials: Sequence[Trial], objective: Objective) -> Trial | None:
            return search.best(trials, objective, lossy_allowed=True)

        def verdict(
            baseline: Measurement, candidate: Measurement, objective: Objective, seed: int
        ) -> Verdict:
            return judge(
                candidate,
                baseline,
                objective,
                seed=seed,
                slo=study.slo,
                min_requests=self._length.min_requests,
                start_s=min(trial.started_s for trial in fresh(study)),
                end_s=self._clock.now(),
            )

        def quality(baseline: QualityScore, candidate: QualityScore) -> Verdict:
            return judge_quality(candidate, baseline)

        return StudyGraph(
            planner=self._planner,
            space=self._space,
            log=self._log,
            rehearse=rehearse,
            resolve=self._resolve,
            ask=search.ask,
            best=best,
            judge=verdict,
            judge_quality=quality,
            compare=compare,
            fidelity_limit=self._fidelity_limit,
            clock=self._clock,
            new_id=self._new_id,
        )

    def plan(self, study: Study, seed: int) -> LoadPlan:
        """The load of one trial: the study's shape at its own concurrency, with a fresh seed."""
        streams = max(1, round(study.shape.concurrency))
        return synthesise(
            study.shape,
            level=f"{streams} streams",
            concurrency=streams,
            warm_up_s=self._length.warm_up_s,
            duration_s=self._length.warm_up_s + self._length.measured_s,
            seed=seed,
            max_model_len=self._length.max_model_len,
        )
