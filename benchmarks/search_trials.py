"""One search on one surface: what it measures, what that costs, and when it is near the best.

A trial gives the config's true figure with the noise of one start, and costs the seconds its engine
is up. The product searches by its own study (planner, search, graph); a rival is a generator.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from agent.loads import TrialLength
from agent.planner.rulebook import Rulebook
from agent.rehearsals import Rehearsals, unresolved
from agent.settings import Settings
from benchmarks.given import TrialList, given_study
from benchmarks.ladder import quality
from benchmarks.search_rivals import Strategy, Told
from benchmarks.search_surfaces import WITHIN, Broken, Known, Surface, best_of, settled
from canary.racing import Bar
from canary.trial import PlansOf
from domain.engine import EngineConfig
from domain.slo import SLO
from domain.study import (
    Block,
    Failure,
    Measurement,
    QualityScore,
    StudyState,
    Trial,
    TrialPurpose,
    TrialState,
)
from serving.simulator.virtual import VirtualClock

BLOCKS = 20
REQUESTS = 200
FREE = 100_000
"""Free answers in a row after which a strategy has nothing left to try."""


class Run(NamedTuple):
    """One start of a config: its figure, or why there is none, and its engine seconds."""

    config: EngineConfig
    tok_s: float | None
    failure: Failure | None
    engine_s: float


class Raced(NamedTuple):
    """Engine seconds and trials up to the first config that is truly near the surface's best; the
    whole budget where there was none."""

    seconds: float
    trials: int
    near: bool


class Studied(NamedTuple):
    """The product's race, its trials, and what its fresh runs took after the search."""

    raced: Raced
    trials: tuple[Trial, ...]
    confirming_s: float
    recommended: bool


class Starts:
    """Starts configs of a surface. The noise of a config's n-th start is the seed's, the same for
    every strategy; ``noise`` is the standard deviation of its logarithm."""

    def __init__(self, surface: Surface, seed: int, noise: float) -> None:
        self._surface = surface
        self._seed = seed
        self._noise = noise
        self._starts: dict[EngineConfig, int] = {}

    def run(self, config: EngineConfig) -> Run:
        truth = self._surface.truth(config)
        if isinstance(truth, Broken):
            return Run(config, None, truth.failure, truth.engine_s)
        number = self._starts[config] = self._starts.get(config, 0) + 1
        rng = random.Random(f"{self._surface.name} {self._seed} {config.digest} {number}")
        tok_s = truth.steady.tok_s * rng.lognormvariate(0.0, self._noise)
        return Run(config, tok_s, None, truth.engine_s)


def near(surface: Surface, runs: Iterable[Run], budget_s: float) -> Raced:
    """How far the runs got, in their order."""
    wanted, spent_s = WITHIN * best_of(surface.name).tok_s, 0.0
    for number, run in enumerate(runs, 1):
        spent_s += run.engine_s
        if spent_s > budget_s:
            break
        if surface.rate(run.config) >= wanted:
            return Raced(spent_s, number, True)
    return Raced(budget_s, round(budget_s / surface.trial_s), False)


def rival(surface: Surface, strategy: Strategy, seed: int, noise: float, budget: int) -> Raced:
    """The strategy's race; ``budget`` is trials of vLLM's defaults."""
    budget_s = budget * surface.trial_s
    return near(surface, _runs(surface, strategy, Starts(surface, seed, noise), seed), budget_s)


def _runs(surface: Surface, strategy: Strategy, starts: Starts, seed: int) -> Iterable[Run]:
    """What it starts. Whatever the space forbids or was tried before is answered for nothing."""
    space, known, free = surface.space, dict[EngineConfig, Run](), 0
    search = strategy(space, random.Random(f"{surface.name} {seed}").randrange(2**31))
    values = next(search)
    while free < FREE:
        config = settled(space, values)
        new = config not in known and space.fault(config) is None
        if new:
            known[config] = starts.run(config)
            yield known[config]
        free = 0 if new else free + 1
        run = known.get(config)
        try:
            values = search.send(Told(run.tok_s if run else None, free=not new))
        except StopIteration:
            return


def product(surface: Surface, seed: int, noise: float, budget: int) -> Studied:
    """The product's own study, of as many search trials as the budget has."""
    return asyncio.run(_product(surface, seed, noise, budget))


async def _product(surface: Surface, seed: int, noise: float, budget: int) -> Studied:
    clock, log, starts = VirtualClock(), TrialList(), Starts(surface, seed, noise)
    runs: list[tuple[TrialPurpose, Run]] = []

    async def rehearse(
        trial: Trial, plans_of: PlansOf, slo: SLO, with_quality: bool, bar: Bar | None
    ) -> Trial:
        run = starts.run(surface.space.normalised(trial.config))
        runs.append((trial.purpose, run))
        started_s = clock.now()
        clock.advance(run.engine_s)
        ended = replace(trial, started_s=started_s, ended_s=clock.now())
        if run.tok_s is None:
            return replace(ended, state=TrialState.FAILED, failure=run.failure)
        return replace(
            ended,
            state=TrialState.MEASURED,
            measurement=measurement(surface, run, trial.number),
            quality=_answers(surface, run.config) if with_quality else None,
        )

    rehearsals = Rehearsals(
        log=log,
        planner=Rulebook(),
        space=surface.space,
        rehearse=rehearse,
        resolve=unresolved,
        length=TrialLength(
            warm_up_s=surface.length.warm_up_s,
            measured_s=surface.length.measured_s,
            screened_s=surface.length.measured_s,
            min_requests=8,
            rounds=Settings.model_fields["confirm_rounds"].default,
        ),
        fidelity_limit=None,
        clock=clock,
        new_id=iter(map(str, range(1000))).__next__,
    )
    study = given_study("search", surface.shape, reason=surface.name, trials=budget, seed=seed)
    conclusion = await rehearsals.graph_for(study).run(study)
    explored = [run for purpose, run in runs if purpose.explores]
    return Studied(
        raced=near(surface, explored, budget * surface.trial_s),
        trials=log.trials(study.id),
        confirming_s=sum(run.engine_s for purpose, run in runs if not purpose.explores),
        recommended=conclusion.study.state is StudyState.RECOMMENDED,
    )


def _answers(surface: Surface, config: EngineConfig) -> QualityScore | None:
    """The evaluation set; where nothing is simulated nobody was asked."""
    return quality(surface.profile, config) if surface.profile else None


def measurement(surface: Surface, run: Run, seed: int) -> Measurement:
    """What a trial of this figure would have recorded: blocks scatter, their mean is the run's."""
    truth = surface.truth(run.config)
    assert isinstance(truth, Known) and run.tok_s is not None
    rng, steady = np.random.default_rng([seed, int(run.tok_s)]), truth.steady
    slow = steady.tok_s / run.tok_s
    seconds, osl = surface.length.measured_s, surface.shape.osl.mean or 1.0
    scatter = rng.gamma(100, 1 / 100, size=BLOCKS)
    made = run.tok_s * seconds * scatter / scatter.sum()
    each = max(1, round(run.tok_s * seconds / osl / BLOCKS))
    return Measurement(
        level=f"{surface.shape.concurrency:.0f} streams",
        seed=seed,
        requests=each * BLOCKS,
        failed=0,
        blocks=tuple(
            Block(
                seconds=seconds / BLOCKS,
                requests=each,
                good=each,
                failed=0,
                output_tokens=float(tokens),
            )
            for tokens in made
        ),
        ttft_ms=tuple(steady.ttft_ms * slow * rng.gamma(8, 1 / 8, size=REQUESTS)),
        tpot_ms=tuple(steady.tpot_ms * slow * rng.gamma(50, 1 / 50, size=REQUESTS)),
        prefix_hit_rate=steady.hit_rate,
        draft_acceptance=steady.acceptance,
        preemptions=steady.preemptions * each * BLOCKS,
        streams=round(surface.shape.concurrency),
    )
