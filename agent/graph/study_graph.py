"""Runs one study as a LangGraph graph over the stored trials.

    observe → propose → ask → rehearse → observe …      the search
    observe → judge → confirm → judge → recommend       fresh runs of the best, and the verdict

Each node reads the trials anew, so the graph needs no checkpointer: its state is what one node
hands to the next, and a study that was cut off goes on from its rows. Effects are given in; no
launcher, gateway or table is known here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import replace
from typing import Protocol, TypeAlias, TypedDict

from langgraph.graph import END, START, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langsmith.run_helpers import tracing_context

from agent.graph.conclusion import Conclusion, put_into_words
from agent.graph.cut_off import closed
from agent.graph.rules import (
    ATTEMPTS,
    CONFIRMATIONS,
    Best,
    Ending,
    Judge,
    JudgeQuality,
    Wanted,
    conclude,
    exploration,
    search_left,
    settled,
)
from canary import budget
from canary.budget import Terms
from canary.rounds import ROUND
from domain.engine import EngineConfig, Refusal, Resolution, SearchSpace
from domain.errors import Conflict, LeaseLost, SerinusError, Temporary
from domain.fidelity import Fidelity, Grade
from domain.ports import Clock, Planner, Proposals
from domain.study import Failure, FailureKind, Measurement, Study, Trial, TrialPurpose, TrialState
from domain.traffic import TrafficShape

Rehearse: TypeAlias = Callable[[Trial, bool], Awaitable[Trial]]
Ask: TypeAlias = Callable[
    [Sequence[Trial], Sequence[EngineConfig], Collection[EngineConfig]], EngineConfig | None
]
Compare: TypeAlias = Callable[[TrafficShape, Measurement], Fidelity]
Resolve: TypeAlias = Callable[[EngineConfig], Awaitable[Resolution | Refusal | None]]

CHOICES = 50
"""Configs that may be refused, or come out as tried ones, before the search is at its end."""

SAVES = 12
"""How often a run's outcome is offered again to a log that could not take it."""

SAMPLED = "search: drawn from what the trials so far show."
"""The hypothesis of a config that no planner proposed."""


class TrialLog(Protocol):
    """The stored trials of studies. One writer; a change is durable when its call returns."""

    def trials(self, study_id: str) -> tuple[Trial, ...]: ...

    def add(self, trial: Trial) -> None: ...

    def save(self, trial: Trial) -> None: ...


class _State(TypedDict, total=False):
    study: Study
    proposals: Proposals
    wanted: tuple[Wanted, ...]
    ending: Ending
    conclusion: Conclusion


class StudyGraph:
    """``rehearse`` takes a trial and whether to run the evaluation set, and returns it ended;
    ``resolve`` tells what an engine would make of a config; ``ask`` never gives one of the configs
    that it is told to leave out; ``judge`` and ``judge_quality`` take the baseline's result first.
    A candidate has up to ``rounds`` rounds of fresh runs beside the baseline's.
    ``compare`` holds the measured baseline against the live shape; below ``fidelity_limit`` the
    study ends there. Without a limit nothing is compared: no production was measured.
    ``terms`` are what the study's minutes are reckoned by; without them nothing bounds it.
    Search trials run on all ``lanes`` at once; all that is judged runs on the first, since two
    lanes are never quite alike.
    """

    def __init__(
        self,
        *,
        planner: Planner,
        space: SearchSpace,
        log: TrialLog,
        rehearse: Rehearse,
        resolve: Resolve,
        ask: Ask,
        best: Best,
        judge: Judge,
        judge_quality: JudgeQuality,
        compare: Compare,
        fidelity_limit: Grade | None,
        rounds: int,
        terms: Terms | None = None,
        lanes: Sequence[str] = ("",),
        clock: Clock,
        new_id: Callable[[], str],
    ) -> None:
        self._planner = planner
        self._space = space
        self._log = log
        self._rehearse = rehearse
        self._resolve = resolve
        self._ask = ask
        self._best = best
        self._judge = judge
        self._judge_quality = judge_quality
        self._compare = compare
        self._fidelity_limit = fidelity_limit
        self._rounds = rounds
        self._terms = terms
        self._lanes = lanes
        self._clock = clock
        self._new_id = new_id
        self._graph = self._compiled()
        self._resolutions: dict[EngineConfig, Resolution | Refusal | None] = {}

    async def run(self, study: Study) -> Conclusion:
        """Begin ``study`` or go on with it, up to its conclusion.

        Cancelling stops at once; what is under way stays RUNNING in the log, and the next run takes
        it for interrupted. An exception of a given effect goes through to the caller once the
        trials beside it have ended, and the trial that it ended is FAILED.
        """
        if study.state.ended:
            raise Conflict(f"Study {study.id} has ended already ({study.state.value}).")
        self._close_interrupted(study)
        # Four nodes a search trial, two a confirmation run, every run perhaps twice; refusals are
        # within one node.
        confirming = CONFIRMATIONS * self._rounds * ROUND
        steps = ATTEMPTS * (4 * study.trial_budget + 2 * confirming) + 10
        # Variables of LangSmith's in the environment would send every node's state away.
        with tracing_context(enabled=False):
            final = await self._graph.ainvoke({"study": study}, {"recursion_limit": steps})
        conclusion: Conclusion = final["conclusion"]
        return conclusion

    def _compiled(self) -> CompiledStateGraph[_State, None, _State, _State]:
        graph = StateGraph(_State)
        graph.add_node("observe", self._observe)
        graph.add_node("propose", self._propose)
        graph.add_node("ask", self._choose)
        graph.add_node("rehearse", self._run_wanted)
        graph.add_node("judge", self._conclude)
        graph.add_node("confirm", self._run_wanted)
        graph.add_node("recommend", self._recommend)
        graph.add_edge(START, "observe")
        graph.add_conditional_edges("observe", self._after_observing)
        graph.add_edge("propose", "ask")
        graph.add_conditional_edges("ask", _run_or("rehearse", "judge"), ["rehearse", "judge"])
        graph.add_edge("rehearse", "observe")
        graph.add_conditional_edges("judge", _run_or("confirm", "recommend"))
        graph.add_edge("confirm", "judge")
        graph.add_edge("recommend", END)
        return graph.compile(name="study")

    async def _observe(self, state: _State) -> _State:
        study = state["study"]
        wanted = exploration(study, self._log.trials(study.id), self._terms)
        return {"wanted": () if wanted is None else (wanted,)}

    def _after_observing(self, state: _State) -> str:
        study = state["study"]
        if state["wanted"]:
            return "rehearse"
        left = search_left(study, self._log.trials(study.id), self._fidelity_limit, self._terms)
        return "propose" if left else "judge"

    async def _propose(self, state: _State) -> _State:
        study = state["study"]
        trials = self._log.trials(study.id)
        left = search_left(study, trials, self._fidelity_limit, self._terms)
        proposals = await self._planner.propose(study, self._space, settled(trials), left)
        return {"proposals": proposals}

    async def _choose(self, state: _State) -> _State:
        """A config for each lane, as far as there are new ones and trials left for them."""
        study, proposals = state["study"], state["proposals"]
        trials = self._log.trials(study.id)
        left = search_left(study, trials, self._fidelity_limit, self._terms)
        at_once = budget.searches_at_once(study.lane, self._terms, trials, left)
        wanted: list[Wanted] = []
        for _ in self._lanes[:at_once]:
            chosen = await self._new(study, proposals, [each.config for each in wanted])
            if chosen is None:
                break
            wanted.append(chosen)
        return {"wanted": tuple(wanted)}

    async def _new(
        self, study: Study, proposals: Proposals, beside: Sequence[EngineConfig]
    ) -> Wanted | None:
        """The next config that an engine would take and that is none of those tried, or to be tried
        ``beside`` it, in disguise; ``None`` where nothing new is left.

        What vLLM refuses costs no engine: it is noted as a failed trial, and the next is asked for.
        """
        twins = set(beside)
        for _ in range(CHOICES):
            past = settled(self._log.trials(study.id))
            chosen = self._chosen(past, proposals, twins)
            if chosen is None:
                break
            resolution = await self._told(study, chosen.config)
            if isinstance(resolution, Refusal):
                self._note_refusal(study, chosen, resolution)
            elif await self._is_twin(resolution, [*(trial.config for trial in past), *beside]):
                twins.add(chosen.config)
            else:
                return chosen
        return None

    def _chosen(
        self, past: Sequence[Trial], proposals: Proposals, twins: Collection[EngineConfig]
    ) -> Wanted | None:
        """The search's answer to what the planner proposes, validated."""
        tried = {self._space.normalised(trial.config) for trial in past}
        reasons: dict[EngineConfig, str] = {}
        for proposal in proposals.ranked:
            config = self._space.normalised(proposal.config)
            if config not in tried and self._space.fault(config) is None:
                reasons.setdefault(
                    config, f"{proposal.author or proposals.author}: {proposal.hypothesis}"
                )
        asked = self._ask(past, tuple(reasons), twins)
        if asked is None:
            return None
        config = self._space.normalised(asked)
        if config in tried or config in twins or self._space.fault(config) is not None:
            return None
        hypothesis = reasons.get(config, SAMPLED)
        if proposals.note:
            hypothesis += f" ({proposals.note})"
        return Wanted(purpose=TrialPurpose.SEARCH, config=config, hypothesis=hypothesis)

    async def _resolved(self, config: EngineConfig) -> Resolution | Refusal | None:
        """What an engine would make of ``config``; asked once in a study."""
        if config not in self._resolutions:
            self._resolutions[config] = await self._resolve(config)
        return self._resolutions[config]

    async def _told(self, study: Study, config: EngineConfig) -> Resolution | Refusal | None:
        """As ``_resolved``; nothing where the answers cannot be trusted, since they would refuse
        what production runs."""
        if isinstance(await self._resolved(study.baseline), Refusal):
            return None
        return await self._resolved(config)

    async def _is_twin(self, resolution: Resolution | None, others: Sequence[EngineConfig]) -> bool:
        """Whether another config comes out the same, so that one more run would tell nothing."""
        if resolution is None:
            return False
        outcomes = [await self._resolved(config) for config in others]
        return any(
            isinstance(tried, Resolution) and tried.config == resolution.config
            for tried in outcomes
        )

    def _note_refusal(self, study: Study, chosen: Wanted, refusal: Refusal) -> None:
        failure = Failure(kind=FailureKind.REFUSED, sentence=refusal.sentence)
        self._log.add(_failed(self._trial(study, chosen), failure, self._clock.now()))

    async def _conclude(self, state: _State) -> _State:
        study = state["study"]
        trials = self._log.trials(study.id)
        found = conclude(
            study,
            self._space,
            trials,
            self._best,
            self._judge,
            self._judge_quality,
            self._fidelity_limit,
            self._rounds,
            self._terms,
        )
        if isinstance(found, Wanted):
            return {"wanted": (found,)}
        return {"wanted": (), "ending": found}

    async def _recommend(self, state: _State) -> _State:
        return {"conclusion": put_into_words(state["study"], state["ending"])}

    async def _run_wanted(self, state: _State) -> _State:
        """Run what is wanted, each on a lane of its own."""
        study = state["study"]
        runs = [
            self._run(study, wanted, lane)
            for wanted, lane in zip(state["wanted"], self._lanes, strict=False)
        ]
        outcomes = await asyncio.gather(*runs, return_exceptions=True)
        errors = [outcome for outcome in outcomes if outcome is not None]
        if errors:
            raise next((error for error in errors if isinstance(error, LeaseLost)), errors[0])
        return {"wanted": ()}

    async def _begun(self, study: Study, wanted: Wanted, lane: str) -> Trial:
        """The trial whose row says that it is to run now."""
        resolution = await self._resolved(wanted.config)
        overridden = resolution.overridden if isinstance(resolution, Resolution) else ()
        trial = replace(self._trial(study, wanted), overridden=overridden, lane=lane)
        self._log.add(trial)
        return trial

    async def _run(self, study: Study, wanted: Wanted, lane: str) -> None:
        """Record the intent, act, record the outcome."""
        trial = await self._begun(study, wanted, lane)
        ended = await self._rehearsed(trial, wanted.quality)
        looked_at = ended.purpose is TrialPurpose.BASELINE and self._fidelity_limit is not None
        if looked_at and ended.measurement is not None:
            ended = replace(ended, fidelity=self._compare(study.part, ended.measurement))
        await self._save(replace(ended, ended_s=self._clock.now()))

    async def _save(self, trial: Trial) -> None:
        """Keep what a run has cost, also where the log cannot take it at once."""
        for _ in range(SAVES):
            try:
                return self._log.save(trial)
            except LeaseLost:
                raise
            except Temporary as error:
                await self._clock.sleep(error.retry_after_s)
        return self._log.save(trial)

    async def _rehearsed(self, trial: Trial, quality: bool) -> Trial:
        """The trial ended; where that breaks off, its row says so before the study breaks off."""
        try:
            return await self._rehearse(trial, quality)
        except LeaseLost:
            # The row is the successor's, who takes it for interrupted.
            raise
        except Exception as error:
            said = str(error) if isinstance(error, SerinusError) else repr(error)
            failure = Failure(
                kind=FailureKind.INTERRUPTED, sentence=f"The trial broke off: {said.rstrip('.')}."
            )
            self._log.save(_failed(trial, failure, self._clock.now()))
            raise

    def _trial(self, study: Study, wanted: Wanted) -> Trial:
        numbers = [trial.number for trial in self._log.trials(study.id)]
        return Trial(
            id=self._new_id(),
            study_id=study.id,
            number=max(numbers, default=0) + 1,
            purpose=wanted.purpose,
            config=wanted.config,
            hypothesis=wanted.hypothesis,
            started_s=self._clock.now(),
        )

    def _close_interrupted(self, study: Study) -> None:
        """No run is under way before the first node: what the log holds as running was cut off."""
        sentence = "The controller stopped during the trial."
        for trial in closed(self._log.trials(study.id), sentence, self._clock.now()):
            self._log.save(trial)


def _failed(trial: Trial, failure: Failure, now: float) -> Trial:
    return replace(trial, state=TrialState.FAILED, failure=failure, ended_s=now)


def _run_or(run: str, otherwise: str) -> Callable[[_State], str]:
    """The edge to ``run`` where a run is wanted."""

    def after(state: _State) -> str:
        return run if state["wanted"] else otherwise

    return after
