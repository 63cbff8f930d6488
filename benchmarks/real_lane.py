"""One lane of real vLLM engines on this machine's CPU, for benchmarks: measurements and studies.

It is made of the product's own parts and ends whatever engine it starts. Engine seconds are from
launching an engine to its end.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from agent.clock import SystemClock
from agent.loads import TrialLength
from agent.planner.rulebook import Rulebook
from agent.rehearsals import Rehearsals
from benchmarks.given import ANY_SLO, TrialList, given_study
from benchmarks.small_engine import ARGUMENTS, LONGEST, rendered
from canary.loadgen.options import Options
from canary.loadgen.process import ProcessLoadGenerator
from canary.measure import measure
from canary.prefix_cache import reset_prefix_cache
from canary.trial import Rehearsal
from domain.engine import EngineConfig, SearchSpace
from domain.fleet import ReplicaState, Role, Slot
from domain.load import BLOCK_TOKENS, LoadPlan
from domain.study import Failure, Measurement, Study, Trial
from domain.traffic import TrafficShape
from domain.verdict import Verdict
from serving import hardware, model_card
from serving.dry_run import DryRun
from serving.flags import catalogue
from serving.launchers.process import ProcessLauncher
from serving.space import search_space
from serving.vllm_process import python_of
from tests.fakes.loopback import free_port
from tools.counters import read_counters

MODEL = "smollm2"
STREAMS = 16
SEED = 7
START_S = 600.0
POLL_S = 0.5
ROUNDS = 1
# Of the measured time of a finalist: at some requests a second no less is a measurement.
SCREENED = 0.6


class Run(NamedTuple):
    """One measurement on an engine, or why there is none, and the seconds that engine was up."""

    outcome: Measurement | Failure
    engine_s: float

    @property
    def tok_s(self) -> float:
        """Output tokens a second; 0 where nothing was measured."""
        return self.outcome.output_tok_s if isinstance(self.outcome, Measurement) else 0.0

    @property
    def told(self) -> str:
        """The figure, or why there is none."""
        if isinstance(self.outcome, Failure):
            return f"{self.outcome.kind.value} ({self.outcome.sentence})"
        return f"{self.tok_s:.1f} tokens/s"


class Length(NamedTuple):
    """Seconds of load before measuring, and of measuring."""

    warm_up_s: float
    measured_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Searched:
    """One study: the config it recommends, the baseline's if none, the verdict on that, its
    trials, its seconds."""

    best: EngineConfig
    verdict: Verdict | None
    conclusion: str
    trials: tuple[Trial, ...]
    engine_s: float


class RealLane:
    """One canary lane; one caller at a time."""

    def __init__(self, vllm: Path, model: Path, directory: Path, load_format: str) -> None:
        self.slot = Slot(name="canary-0", role=Role.CANARY, port=free_port())
        self.clock = SystemClock()
        self.load = ProcessLoadGenerator(Options(request_timeout_s=600.0))
        engine_args = (*ARGUMENTS, "--load-format", load_format)
        self.launcher = ProcessLauncher(
            directory=directory,
            executable=(str(vllm.absolute()),),
            model=str(model.absolute()),
            served_model_name=MODEL,
            render=rendered,
            extra_args=engine_args,
            start_timeout_s=START_S,
            clock=self.clock,
        )
        self.resolver = DryRun(
            python=python_of(vllm), model=str(model.absolute()), engine_args=engine_args
        )
        facts = replace(model_card.read(model), max_model_len=LONGEST)
        lane = hardware.cpu()
        self.space: SearchSpace = search_space(catalogue(hardware=lane.kind), facts, lane)
        self.all_cores = lane.all_cores
        self._seeds = itertools.count(SEED)

    async def close(self) -> None:
        await self.launcher.stop(self.slot, 0.0)
        await self.launcher.aclose()
        await self.resolver.aclose()

    async def runs(
        self, config: EngineConfig, of: Mapping[str, TrafficShape], length: Length
    ) -> dict[str, Run]:
        """Each shape measured on one engine of ``config``, its seconds as if it had been alone."""
        plans = {name: self._plan(each, length) for name, each in of.items()}
        begun_s = time.monotonic()
        found: dict[str, Measurement | Failure] = {}
        took_s: dict[str, float] = {}
        async with self.engine(config) as failure:
            for name, plan in plans.items():
                at_s = time.monotonic()
                found[name] = failure or await self._measured(plan)
                took_s[name] = time.monotonic() - at_s
        around_s = time.monotonic() - begun_s - sum(took_s.values())
        return {name: Run(found[name], around_s + took_s[name]) for name in of}

    async def round_s(self, of: TrafficShape) -> float:
        """Seconds in which vLLM's defaults answer one request of each stream, none seen before."""
        plan = self._plan(of, Length(0.0, 600.0))
        first, second = plan.sessions[:STREAMS], plan.sessions[STREAMS : 2 * STREAMS]
        async with self.engine(EngineConfig()) as failure:
            if failure is not None:
                raise SystemExit(f"vLLM does not start with its defaults: {failure.sentence}")
            for sessions in (first, second):
                once = tuple(replace(session, turns=session.turns[:1]) for session in sessions)
                at_s = time.monotonic()
                await self._measured(replace(plan, sessions=once))
            return time.monotonic() - at_s

    async def study(self, of: TrafficShape, length: Length, budget: int) -> Searched:
        """The product's own study, from vLLM's defaults."""
        trials = TrialList()
        study = studied(of, budget)
        conclusion = await self._rehearsals(trials, length).graph_for(study).run(study)
        rows = trials.trials(study.id)
        recommended = conclusion.recommendation
        return Searched(
            best=recommended.config if recommended else study.baseline,
            verdict=recommended.verdict if recommended else None,
            conclusion=conclusion.study.conclusion,
            trials=rows,
            engine_s=sum((t.ended_s or t.started_s) - t.started_s for t in rows),
        )

    @asynccontextmanager
    async def engine(self, config: EngineConfig) -> AsyncIterator[Failure | None]:
        """An engine of ``config`` that serves, or why it does not; ended on the way out."""
        await self.launcher.start(self.slot, config)
        try:
            yield await self._warm()
        finally:
            await self.launcher.stop(self.slot, 0.0)

    async def _warm(self) -> Failure | None:
        while True:
            [replica] = await self.launcher.observe()
            if replica.state in (ReplicaState.WARM, ReplicaState.DEAD):
                return replica.failure
            await asyncio.sleep(POLL_S)

    async def _measured(self, plan: LoadPlan) -> Measurement | Failure:
        """Send the plan to the engine that is up, with its prefix cache reset where that can be;
        whether it was empty is told by its counters."""
        await reset_prefix_cache(self.slot.url)
        before = await read_counters(self.slot.url)
        result = await self.load.run(plan, self.slot.url, MODEL, stop=lambda: False)
        return measure(result, ANY_SLO, before, await read_counters(self.slot.url), plan=plan)

    def _plan(self, of: TrafficShape, length: Length) -> LoadPlan:
        """The product's own plan for the shape, with a seed that was never used before."""
        return self._rehearsals(TrialList(), length).plan(studied(of), next(self._seeds))

    def _rehearsals(self, log: TrialList, length: Length) -> Rehearsals:
        """The product's own studies on this lane."""
        rehearsal = Rehearsal(
            launcher=self.launcher,
            load=self.load,
            slot=self.slot,
            model=MODEL,
            clock=self.clock,
            read_counters=read_counters,
            ask_quality=None,
            may_act=lambda: True,
            start_timeout_s=START_S,
            poll_s=POLL_S,
        )
        return Rehearsals(
            log=log,
            planner=Rulebook(),
            space=self.space,
            rehearse=rehearsal.run,
            resolve=self.resolver.resolve,
            length=TrialLength(
                warm_up_s=length.warm_up_s,
                measured_s=length.measured_s,
                screened_s=SCREENED * length.measured_s,
                min_requests=8,
                rounds=ROUNDS,
                max_model_len=LONGEST,
            ),
            fidelity_limit=None,
            block_tokens=BLOCK_TOKENS,
            clock=self.clock,
            new_id=iter(map(str, range(1000))).__next__,
        )


def studied(of: TrafficShape, budget: int = 1) -> Study:
    return given_study("real", of, reason="The benchmark asked for it.", trials=budget, seed=SEED)
