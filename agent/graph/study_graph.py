"""Runs one study as a LangGraph graph over the stored trials.

    observe → diagnose → propose → validate → rehearse → observe …   the search
    observe → judge → confirm → judge → recommend                    fresh runs of the best

Each node reads the trials anew. A checkpoint keeps what no row has, the planner's answer above all,
and a run that was begun is known by its row, so it is not begun again. Effects are given in; no
launcher, gateway or table is known here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeAlias

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import END, START, StateGraph
from langgraph.runtime import RunControl, Runtime
from langsmith.run_helpers import tracing_context

from agent.graph.checkpoints import Checkpoints, forget_all, forgotten
from agent.graph.conclusion import Conclusion, put_into_words
from agent.graph.cut_off import closed
from agent.graph.kept import (
    Kept,
    conclusion_of,
    keep_conclusion,
    keep_proposals,
    keep_wanted,
    proposals_of,
    readable,
    wanted_of,
)
from agent.graph.rules import (
    ATTEMPTS,
    CONFIRMATIONS,
    Best,
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
from domain.ports import Clock, Planner, Proposal, Proposals
from domain.study import (
    Failure,
    FailureKind,
    Measurement,
    Recommendation,
    Study,
    Trial,
    TrialPurpose,
    TrialState,
)
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


async def unexplained(study: Study, found: Recommendation, diagnosis: str) -> str:
    """Adds nothing to what code says."""
    return ""


class TrialLog(Protocol):
    """The stored trials of studies. One writer; a change is durable when its call returns."""

    def trials(self, study_id: str) -> tuple[Trial, ...]: ...

    def add(self, trial: Trial) -> None: ...

    def save(self, trial: Trial) -> None: ...


Explain: TypeAlias = Callable[[Study, Recommendation, str], Awaitable[str]]
Diagnose: TypeAlias = Callable[[Study, SearchSpace, Sequence[Trial]], str]


class StudyGraph:
    """``rehearse`` takes a trial and whether to run the evaluation set, and returns it ended;
    ``resolve`` tells what an engine would make of a config; ``ask`` never gives one of the configs
    that it is told to leave out; ``judge`` and ``judge_quality`` take the baseline's result first.
    A candidate has up to ``rounds`` rounds of fresh runs beside the baseline's.
    ``compare`` holds the measured baseline against the live shape; below ``fidelity_limit`` the
    study ends there. Without a limit nothing is compared: no production was measured.
    ``diagnose`` says in a sentence what limits the traffic, by what was measured so far;
    ``explain`` adds words to a recommendation that is made, given the last diagnosis.
    ``terms`` are what the study's minutes are reckoned by; without them nothing bounds it.
    Search trials run on all ``lanes`` at once; all that is judged runs on the first, since two
    lanes are never quite alike.
    """

    def __init__(
        self,
        *,
        planner: Planner,
        diagnose: Diagnose,
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
        explain: Explain = unexplained,
        checkpoints: Checkpoints = forgotten,
        clock: Clock,
        new_id: Callable[[], str],
    ) -> None:
        self._planner = planner
        self._diagnose = diagnose
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
        self._explain = explain
        self._checkpoints = checkpoints
        self._control = RunControl()
        self._resolutions: dict[EngineConfig, Resolution | Refusal | None] = {}

    async def run(self, study: Study) -> Conclusion:
        """Begin ``study`` or go on with it, up to its conclusion.

        Cancelling stops at once; what is under way stays RUNNING in the log, and the next run takes
        it for interrupted. An exception of a given effect goes through to the caller once the
        trials beside it have ended, and the trial that it ended is FAILED. GraphDrained after
        ``drain``.
        """
        if study.state.ended:
            raise Conflict(f"Study {study.id} has ended already ({study.state.value}).")
        self._close_interrupted(study)
        async with self._checkpoints() as saver:
            return await self._driven(study, saver)

    def drain(self) -> None:
        """End the run at the next node."""
        self._control.request_drain()

    async def _driven(self, study: Study, saver: BaseCheckpointSaver[Any]) -> Conclusion:
        graph = self._drawn().compile(checkpointer=saver, name="study")
        # Five nodes a search trial, two a confirmation run, every run perhaps twice; refusals are
        # within one node.
        confirming = CONFIRMATIONS * self._rounds * ROUND
        thread: RunnableConfig = {
            "configurable": {"thread_id": study.id},
            "recursion_limit": ATTEMPTS * (5 * study.trial_budget + 2 * confirming) + 10,
        }
        before = await graph.aget_state(thread)
        known = readable(before.values)
        if known and not before.next and (concluded := conclusion_of(before.values)):
            return concluded
        goes_on = known and bool(before.next)
        if not goes_on:
            await forget_all(saver)
        # Variables of LangSmith's in the environment would send every node's state away.
        with tracing_context(enabled=False):
            final = await graph.ainvoke(
                None if goes_on else {"diagnosis": ""},
                thread,
                context=study,
                durability="sync",
                control=self._control,
            )
        conclusion = conclusion_of(final)
        assert conclusion is not None, "a graph that has ended has concluded"
        return conclusion

    def _drawn(self) -> StateGraph[Kept, Study, Kept, Kept]:
        graph = StateGraph(Kept, context_schema=Study)
        graph.add_node("observe", self._observe)
        graph.add_node("diagnose", self._say_what_limits)
        graph.add_node("propose", self._propose)
        graph.add_node("validate", self._choose)
        graph.add_node("rehearse", self._run_wanted)
        graph.add_node("judge", self._conclude)
        graph.add_node("confirm", self._run_wanted)
        graph.add_edge(START, "observe")
        graph.add_conditional_edges(
            "observe", self._after_observing, ["rehearse", "diagnose", "judge"]
        )
        graph.add_edge("diagnose", "propose")
        graph.add_edge("propose", "validate")
        graph.add_conditional_edges("validate", _run_or("rehearse", "judge"), ["rehearse", "judge"])
        graph.add_edge("rehearse", "observe")
        graph.add_node("recommend", self._recommend)
        graph.add_conditional_edges(
            "judge", _run_or("confirm", "recommend"), ["confirm", "recommend"]
        )
        graph.add_edge("confirm", "judge")
        graph.add_edge("recommend", END)
        return graph

    async def _observe(self, state: Kept, runtime: Runtime[Study]) -> Kept:
        study = runtime.context
        trials = self._log.trials(study.id)
        wanted = exploration(study, trials, self._terms)
        return keep_wanted(() if wanted is None else (wanted,), len(trials))

    def _after_observing(self, state: Kept, runtime: Runtime[Study]) -> str:
        study = runtime.context
        if wanted_of(state):
            return "rehearse"
        left = search_left(study, self._log.trials(study.id), self._fidelity_limit, self._terms)
        return "diagnose" if left else "judge"

    async def _say_what_limits(self, state: Kept, runtime: Runtime[Study]) -> Kept:
        study = runtime.context
        trials = settled(self._log.trials(study.id))
        return {"diagnosis": self._diagnose(study, self._space, trials)}

    async def _propose(self, state: Kept, runtime: Runtime[Study]) -> Kept:
        study = runtime.context
        trials = self._log.trials(study.id)
        left = search_left(study, trials, self._fidelity_limit, self._terms)
        return keep_proposals(
            await self._planner.propose(study, self._space, settled(trials), left)
        )

    async def _choose(self, state: Kept, runtime: Runtime[Study]) -> Kept:
        """A config for each lane, as far as there are new ones and trials left for them."""
        study, proposals = runtime.context, proposals_of(state)
        trials = self._log.trials(study.id)
        left = search_left(study, trials, self._fidelity_limit, self._terms)
        at_once = budget.searches_at_once(study.lane, self._terms, trials, left)
        wanted: list[Wanted] = []
        for _ in self._lanes[:at_once]:
            chosen = await self._new(study, proposals, [each.config for each in wanted])
            if chosen is None:
                break
            wanted.append(replace(chosen, diagnosis=state["diagnosis"]))
        return keep_wanted(wanted, len(self._log.trials(study.id)))

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
        proposed: dict[EngineConfig, Proposal] = {}
        for proposal in proposals.ranked:
            config = self._space.normalised(proposal.config)
            if config not in tried and self._space.fault(config) is None:
                proposed.setdefault(config, proposal)
        asked = self._ask(past, tuple(proposed), twins)
        if asked is None:
            return None
        config = self._space.normalised(asked)
        if config in tried or config in twins or self._space.fault(config) is not None:
            return None
        hypothesis, found = SAMPLED, proposed.get(config)
        if found is not None:
            hypothesis = f"{found.author or proposals.author}: {found.hypothesis}"
        if proposals.note:
            hypothesis += f" ({proposals.note})"
        return Wanted(
            purpose=TrialPurpose.SEARCH,
            config=config,
            hypothesis=hypothesis,
            expected=found.expected if found else None,
        )

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

    async def _conclude(self, state: Kept, runtime: Runtime[Study]) -> Kept:
        study = runtime.context
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
            return keep_wanted((found,), len(trials))
        return keep_conclusion(put_into_words(study, found))

    async def _recommend(self, state: Kept, runtime: Runtime[Study]) -> Kept:
        conclusion = conclusion_of(state)
        if conclusion is None or conclusion.recommendation is None:
            return {}
        found, diagnosis = conclusion.recommendation, state["diagnosis"]
        words = await self._explain(runtime.context, found, diagnosis)
        rationale = " ".join(filter(None, (found.rationale, words)))
        told = conclusion._replace(recommendation=replace(found, rationale=rationale))
        return keep_conclusion(told)

    async def _run_wanted(self, state: Kept, runtime: Runtime[Study]) -> Kept:
        """Run what is wanted, each on a lane of its own; nothing where it was begun before."""
        study = runtime.context
        if len(self._log.trials(study.id)) > state["known"]:
            return keep_wanted(())
        runs = [
            self._run(study, wanted, lane)
            for wanted, lane in zip(wanted_of(state), self._lanes, strict=False)
        ]
        outcomes = await asyncio.gather(*runs, return_exceptions=True)
        errors = [outcome for outcome in outcomes if outcome is not None]
        if errors:
            raise next((error for error in errors if isinstance(error, LeaseLost)), errors[0])
        return keep_wanted(())

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
            diagnosis=wanted.diagnosis,
            expected=wanted.expected,
            started_s=self._clock.now(),
        )

    def _close_interrupted(self, study: Study) -> None:
        """No run is under way before the first node: what the log holds as running was cut off."""
        sentence = "The controller stopped during the trial."
        for trial in closed(self._log.trials(study.id), sentence, self._clock.now()):
            self._log.save(trial)


def _failed(trial: Trial, failure: Failure, now: float) -> Trial:
    return replace(trial, state=TrialState.FAILED, failure=failure, ended_s=now)


def _run_or(run: str, otherwise: str) -> Callable[[Kept], str]:
    """The edge to ``run`` where a run is wanted."""

    def after(state: Kept) -> str:
        return run if state["wanted"] else otherwise

    return after
