"""A study over real HTTP: it trusts a load like the live one and refuses one without its prefixes.

Simulated engines, everything else real: production serves coding agents while the scraper reads it;
the shape that comes of it is rehearsed on a lane of its own.
"""

import asyncio
import itertools
import random
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from agent.clock import SystemClock
from agent.loads import TrialLength
from agent.planner.rulebook import Rulebook
from agent.rehearsals import Rehearsals, Rehearse, unresolved
from benchmarks.given import ANY_SLO, TrialList
from canary.loadgen.client import HttpLoadGenerator
from canary.loadgen.process import ProcessLoadGenerator
from canary.prompts import agents
from canary.racing import Bar
from canary.trial import PlansOf, Rehearsal
from domain.engine import EngineConfig, SearchSpace
from domain.fidelity import Agreement, Fidelity, Grade, Signal
from domain.fleet import ReplicaState, Role, Slot
from domain.load import LoadPlan
from domain.slo import SLO
from domain.study import Objective, Study, StudyState, Trial, Trigger
from domain.traffic import TrafficShape
from serving import flags
from serving.launchers.process import ProcessLauncher
from tests.fakes.loopback import free_port
from tests.fakes.records import knob
from tools.counters import read_counters
from tools.profiler import read_shape
from tools.scrape import Scraper, Target

MODEL = "demo-hybrid"
STREAMS = 10
SETTLE_S, WINDOW_S, INTERVAL_S = 4.0, 12.0, 0.5
LENGTH = TrialLength(warm_up_s=3.0, measured_s=8.0, screened_s=8.0, min_requests=8, rounds=1)
DEADLINE_S = 60.0


class Lanes(NamedTuple):
    launcher: ProcessLauncher
    production: Slot
    canary: Slot


@pytest.fixture
async def lanes(tmp_path: Path) -> AsyncIterator[Lanes]:
    launcher = ProcessLauncher(
        directory=tmp_path / "engines",
        executable=(sys.executable, "-m", "serving.simulator"),
        model=MODEL,
        served_model_name=MODEL,
        render=flags.command_line,
        extra_args=(),
        start_timeout_s=DEADLINE_S,
        clock=SystemClock(),
    )
    production = Slot(name="production-0", role=Role.PRODUCTION, port=free_port())
    canary = Slot(name="canary-0", role=Role.CANARY, port=free_port())
    try:
        yield Lanes(launcher, production, canary)
    finally:
        for slot in (production, canary):
            await launcher.stop(slot, 0.0)
        await launcher.aclose()


async def live_shape(lanes: Lanes) -> TrafficShape:
    """What the scraper sees of production while agents with shared prefixes use it."""
    slot, clock = lanes.production, SystemClock()
    await lanes.launcher.start(slot, EngineConfig())
    async with asyncio.timeout(DEADLINE_S):
        while [r.state for r in await lanes.launcher.observe()] != [ReplicaState.WARM]:
            await asyncio.sleep(0.05)
    seen = Target(url=slot.url, arm=slot.role.arm, config="c", replica=slot.name)
    scraper = Scraper(lambda: [seen], interval_s=INTERVAL_S, retention_s=60.0, clock=clock)
    scraping = asyncio.create_task(scraper.run())
    plan = agents(
        seed=3,
        sessions=400,
        turns=4,
        concurrency=STREAMS,
        system_tokens=384,
        message_tokens=70.0,
        osl=24.0,
        think_s=0.3,
        duration_s=SETTLE_S + WINDOW_S,
    )
    try:
        await HttpLoadGenerator().run(plan, slot.url, MODEL, lambda: False)
        shape = await read_shape(
            scraper,
            model=MODEL,
            arm=slot.role.arm,
            end_s=clock.now() - INTERVAL_S,
            window_s=WINDOW_S,
        )
    finally:
        scraping.cancel()
        await asyncio.gather(scraping, return_exceptions=True)
    await lanes.launcher.stop(slot, 0.0)
    assert isinstance(shape, TrafficShape), shape
    return shape


def without_prefixes(plan: LoadPlan) -> LoadPlan:
    """The same sessions and lengths, and no token that two prompts have in common but by chance."""
    draw = random.Random(plan.seed)
    return replace(
        plan,
        sessions=tuple(
            replace(
                session,
                turns=tuple(
                    replace(turn, prompt=tuple(draw.choices(range(256, 32_000), k=turn.isl)))
                    for turn in session.turns
                ),
            )
            for session in plan.sessions[:200]
        ),
    )


class Studied(NamedTuple):
    study: Study
    trial: Trial
    fidelity: Fidelity


async def studied(lanes: Lanes, shape: TrafficShape, *, prefixes: bool) -> Studied:
    """A study of one trial: production's own config under the load made after ``shape``."""
    clock, log = SystemClock(), TrialList()
    rehearsal = Rehearsal(
        launcher=lanes.launcher,
        load=ProcessLoadGenerator(),
        slot=lanes.canary,
        model=MODEL,
        clock=clock,
        read_counters=read_counters,
        ask_quality=None,
        may_act=lambda: True,
        start_timeout_s=DEADLINE_S,
        poll_s=0.2,
    )

    async def removed(
        trial: Trial, plans_of: PlansOf, slo: SLO, quality: bool, bar: Bar | None
    ) -> Trial:
        return await rehearsal.run(
            trial, lambda text: map(without_prefixes, plans_of(text)), slo, quality, bar
        )

    rehearse: Rehearse = rehearsal.run if prefixes else removed
    rehearsals = Rehearsals(
        log=log,
        planner=Rulebook(),
        space=SearchSpace(knobs=(knob("max_num_seqs", (256, 512)),)),
        rehearse=rehearse,
        resolve=unresolved,
        length=LENGTH,
        fidelity_limit=Grade.C,
        clock=clock,
        new_id=map(str, itertools.count()).__next__,
    )
    study = Study(
        id="s1",
        created_s=clock.now(),
        trigger=Trigger.MANUAL,
        reason="Asked for.",
        shape=shape,
        slo=ANY_SLO,
        objective=Objective.THROUGHPUT,
        baseline=EngineConfig(),
        trial_budget=1,
        seed=5 if prefixes else 50,
    )
    conclusion = await rehearsals.graph_for(study).run(study)
    [trial] = log.trials(study.id)
    assert trial.fidelity is not None, trial.failure
    return Studied(conclusion.study, trial, trial.fidelity)


async def test_a_load_like_the_live_one_is_trusted_and_one_without_its_prefixes_is_refused(
    lanes: Lanes,
) -> None:
    shape = await live_shape(lanes)
    assert shape.prefix_hit_rate is not None and shape.prefix_hit_rate > 0.5

    alike = await studied(lanes, shape, prefixes=True)
    assert alike.fidelity.grade.meets(Grade.C), alike.fidelity.reasons
    assert alike.study.state is StudyState.NOTHING_BETTER
    [hits] = [row for row in alike.fidelity.rows if row.signal is Signal.PREFIX_HIT_RATE]
    assert hits.agreement is Agreement.CLOSE

    unlike = await studied(lanes, shape, prefixes=False)
    assert unlike.fidelity.grade is Grade.D
    assert unlike.study.state is StudyState.FAILED
    assert unlike.study.conclusion.startswith(
        "The rehearsal does not reproduce production: prefix hit rate 0.0"
    )
