"""Builds the graph of one study around the canary lane: plans, seeds, search and the judge.

Composition only: what is measured and how it is judged is ``canary``'s, when is ``graph``'s.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace

from agent.graph import (
    CONFIRMATIONS,
    Checkpoints,
    Explain,
    Look,
    Resolve,
    StudyGraph,
    TrialLog,
    forgotten,
    unexplained,
)
from agent.leadership import Leadership
from agent.loads import TrialLength, load_of
from agent.planner.diagnosis import diagnose
from canary.budget import Terms
from canary.fidelity import compare
from canary.intervals import quantile
from canary.judge import judge, may_yet_pass
from canary.objective import value
from canary.quality import judge_quality
from canary.racing import Bar
from canary.rounds import ROUND, share_of_error
from canary.search import Search
from canary.trial import PlansOf
from domain.engine import EngineConfig, Resolution, SearchSpace
from domain.fidelity import Grade
from domain.load import BLOCK_TOKENS, Arrival, LoadPlan
from domain.ports import Clock, Planner
from domain.slo import SLO
from domain.study import Measurement, Objective, QualityScore, Study, Trial, TrialPurpose
from domain.trace import Trace
from domain.verdict import Verdict

NEARLY_ALL = 0.95

SEEDS = 10_000
"""Between the seeds of two loads of one trial, more than a study has trials."""


Rehearse = Callable[[Trial, PlansOf, SLO, bool, Bar | None], Awaitable[Trial]]


async def unresolved(config: EngineConfig) -> None:
    """Resolves nothing, for engines that can only be started to see."""


async def block_tokens_of(config: EngineConfig, space: SearchSpace, resolve: Resolve) -> int:
    """Tokens of one block of the prefix cache of an engine with this config: as the engine tells,
    else as the space knows, else vLLM's default. Production's hit rate was found in its blocks."""
    told = await resolve(config)
    known = told.config if isinstance(told, Resolution) else config
    found = space.effective(known, "block_size")
    return found if type(found) is int and found > 0 else BLOCK_TOKENS


def settles(trials: Sequence[Trial], warm_up_s: float) -> bool:
    """Whether nearly all requests of the measured baseline last no longer than the warm-up: then
    those that queued behind each other at the start are over when measuring begins, and a short
    measurement tells the same as a long one."""
    measured = next(
        (t.measurement for t in trials if t.purpose is TrialPurpose.BASELINE and t.measurement),
        None,
    )
    return measured is not None and all(_settles(each, warm_up_s) for each in measured.levels)


def _settles(measured: Measurement, warm_up_s: float) -> bool:
    if not measured.ttft_ms or not measured.osl:
        return False
    ttft_ms = quantile(measured.ttft_ms, NEARLY_ALL)
    tpot_ms = quantile(measured.tpot_ms, NEARLY_ALL) if measured.tpot_ms else 0.0
    return ttft_ms + tpot_ms * quantile(measured.osl, NEARLY_ALL) <= 1000 * warm_up_s


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
    engine would make of a config. Below the grade ``fidelity_limit`` no study recommends; without
    one the load is given, and nothing is compared. With a ``trace`` they repeat it. Prompts share
    what a cache in blocks of ``block_tokens`` would find; ``None`` for those of the study's
    baseline, whose hit rate is to be met. ``terms`` hold a study within its minutes. ``lanes`` are
    where ``rehearse`` can run trials at one time, by name; the first is that of all that counts.
    ``explain`` puts a recommendation into further words, and ``checkpoints`` keep how far a study
    is, for a successor."""

    def __init__(
        self,
        *,
        log: TrialLog,
        planner: Planner,
        space: SearchSpace,
        rehearse: Rehearse,
        resolve: Resolve,
        length: TrialLength,
        trace: Trace | None = None,
        fidelity_limit: Grade | None,
        block_tokens: int | None = None,
        terms: Terms | None = None,
        lanes: Sequence[str] = ("",),
        explain: Explain = unexplained,
        checkpoints: Checkpoints = forgotten,
        clock: Clock,
        new_id: Callable[[], str],
    ) -> None:
        self._log = log
        self._planner = planner
        self._space = space
        self._rehearse = rehearse
        self._resolve = resolve
        self._length = length
        self._trace = trace
        self._fidelity_limit = fidelity_limit
        self._block_tokens = block_tokens
        self._terms = terms
        self._lanes = lanes
        self._explain = explain
        self._checkpoints = checkpoints
        self._clock = clock
        self._new_id = new_id

    @property
    def _steady(self) -> bool:
        """Whether a part of the load is like the whole: not where it comes at times of its own."""
        return self._trace is None and self._length.arrival is Arrival.CLOSED

    def graph_for(self, study: Study) -> StudyGraph:
        search = Search(self._space, study.baseline, study.seed, study.objective)

        async def rehearse(trial: Trial, with_quality: bool) -> Trial:
            block_tokens = self._block_tokens or await block_tokens_of(
                study.baseline, self._space, self._resolve
            )
            past = self._log.trials(study.id)
            searching = trial.purpose is TrialPurpose.SEARCH and self._steady
            screening = searching and settles(past, self._length.warm_up_s)

            def plans_of(corpus: Sequence[int] | None) -> Iterator[LoadPlan]:
                for place, times in enumerate(study.levels_of(trial.purpose)):
                    yield self.plan(
                        study,
                        study.seed + trial.number + SEEDS * place,
                        corpus=corpus,
                        block_tokens=block_tokens,
                        screening=screening,
                        times=times,
                    )

            bar = bar_of(past) if searching else None
            return await self._rehearse(trial, plans_of, study.slo, with_quality, bar)

        def bar_of(trials: Sequence[Trial]) -> Bar | None:
            """What the best so far sets; of those that answer as the baseline does, since a lossy
            one may yet be refused and leave the place to the next."""
            explored = [trial for trial in trials if trial.purpose.explores]
            top = search.best(explored, study.objective, lossy_allowed=False)
            if top is None or top.measurement is None:
                return None
            worth = value(top.measurement, study.objective)
            return None if worth is None else Bar.below(worth, study.objective)

        def best(trials: Sequence[Trial], objective: Objective) -> Trial | None:
            return search.best(trials, objective, lossy_allowed=True)

        def look(baseline: Sequence[Measurement], candidate: Sequence[Measurement]) -> Look:
            fresh = [t for t in self._log.trials(study.id) if not t.purpose.explores]
            done = (len(baseline) + len(candidate)) // ROUND
            verdict = judge(
                candidate,
                baseline,
                study.objective,
                slo=study.slo,
                min_requests=self._length.min_requests,
                share=share_of_error(done, self._length.rounds) / CONFIRMATIONS,
                start_s=min(trial.started_s for trial in fresh),
                end_s=self._clock.now(),
            )
            return Look(verdict, may_yet_pass(verdict, study.objective))

        def quality(baseline: QualityScore, candidate: QualityScore) -> Verdict:
            return judge_quality(candidate, baseline)

        return StudyGraph(
            planner=self._planner,
            diagnose=lambda *asked: diagnose(*asked).sentence,
            space=self._space,
            log=self._log,
            rehearse=rehearse,
            resolve=self._resolve,
            ask=search.ask,
            best=best,
            judge=look,
            judge_quality=quality,
            compare=compare,
            fidelity_limit=self._fidelity_limit,
            rounds=self._length.rounds,
            terms=self._terms_of(study),
            lanes=self._lanes,
            explain=self._explain,
            checkpoints=self._checkpoints,
            clock=self._clock,
            new_id=self._new_id,
        )

    def _terms_of(self, study: Study) -> Terms | None:
        """The terms with the loads that the study began with."""
        if self._terms is None:
            return None
        return replace(
            self._terms,
            loads=len(study.levels_of(TrialPurpose.SEARCH)),
            fresh_loads=len(study.levels_of(TrialPurpose.CONFIRM)),
        )

    def plan(
        self,
        study: Study,
        seed: int,
        *,
        corpus: Sequence[int] | None = None,
        block_tokens: int | None = None,
        screening: bool = False,
        times: float = 1.0,
    ) -> LoadPlan:
        """A load of one trial, ``times`` the live one, with a fresh seed."""
        return load_of(
            study,
            seed,
            self._length,
            corpus=corpus,
            trace=self._trace,
            screening=screening,
            times=times,
            block_tokens=block_tokens or self._block_tokens or BLOCK_TOKENS,
        )
