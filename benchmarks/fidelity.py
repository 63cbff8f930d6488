"""Does fidelity tell a matching plan from one with the prefixes removed? In virtual time.

``python -m benchmarks.fidelity`` draws a live load of coding agents for each seed, plays it on a
simulated engine, takes its shape as Prometheus would give it (vLLM's own buckets, mean requests in
the engine, counters), and rehearses it on a fresh engine: once with the plan that the controller
makes, once with the same plan whose prompts share nothing, and with plans that are wrong in other
ways. A grade that does not meet ``LIMIT`` refuses. The exit code is 1 where a matching plan was not
an A, or one with the prefixes removed met the limit. The engines are SIMULATED; nothing here
measures a GPU.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from agent.settings import Settings
from benchmarks.given import ANY_SLO
from benchmarks.targets import ended, held
from canary.fidelity import compare
from canary.intervals import proportion_difference_interval, proportion_interval
from canary.measure import measure
from canary.prompts import agents, synthesise
from canary.traces.shape import BOUNDS
from domain.engine import EngineConfig
from domain.fidelity import Agreement, Fidelity, Grade
from domain.fleet import Role, Slot
from domain.load import LoadPlan, LoadResult
from domain.study import EngineCounters, Measurement
from domain.traffic import Distribution, Latencies, TrafficShape
from serving.simulator import profile
from serving.simulator.virtual import VirtualClock, VirtualLane

PROFILE = "demo-hybrid"
LANE = Slot(name="canary-0", role=Role.CANARY, port=8201)
# What a rehearsal must reach for its study to recommend anything, and what a true one should.
LIMIT = Grade(Settings.model_fields["fidelity_limit"].default)
MATCHING = Grade.A
SEEDS = 40
LEVEL = 0.95
SETTLE_S = 30.0
WINDOW_S = 60.0
WARM_UP_S = 10.0
MEASURED_S = 40.0
MOST_REQUESTS = 6000
# vLLM's bounds of 0.32, in milliseconds.
TTFT_MS = (
    1.0, 5.0, 10.0, 20.0, 40.0, 60.0, 80.0, 100.0, 250.0, 500.0, 750.0, 1000.0, 2500.0, 5000.0,
    7500.0, 10_000.0, 20_000.0, 40_000.0, 80_000.0,
)  # fmt: skip
TPOT_MS = (
    10.0, 25.0, 50.0, 75.0, 100.0, 150.0, 200.0, 300.0, 400.0, 500.0, 750.0, 1000.0, 2500.0,
    5000.0,
)  # fmt: skip


class Run(NamedTuple):
    result: LoadResult
    before: EngineCounters
    after: EngineCounters


class Graded(NamedTuple):
    """One seed's live shape, the fidelity of both plans, and that of plans wrong otherwise."""

    shape: TrafficShape
    matching: Fidelity
    removed: Fidelity
    others: dict[str, Fidelity]


def live_plan(seed: int) -> LoadPlan:
    """Coding agents of a size, pace and system prompt of their own, from idle to overloaded."""
    draw = random.Random(seed)
    streams, turns = draw.choice((6, 12, 24, 48, 96)), draw.choice((1, 2, 4, 6))
    return agents(
        seed=seed,
        sessions=streams + MOST_REQUESTS // turns,
        turns=turns,
        concurrency=streams,
        system_tokens=draw.choice((64, 256, 512, 768)),
        message_tokens=draw.choice((40.0, 70.0, 110.0)),
        osl=draw.choice((16.0, 32.0, 64.0)),
        think_s=draw.choice((0.2, 0.5, 1.0, 2.0)),
        duration_s=SETTLE_S + WINDOW_S,
    )


async def played(plan: LoadPlan, config: EngineConfig, seed: int) -> Run:
    """``plan`` on a fresh engine of ``config``."""
    clock, chosen = VirtualClock(), profile.load(PROFILE)
    lane = VirtualLane(chosen, clock, seed=seed)
    await lane.start(LANE, config)
    clock.advance(chosen.start_s)
    before = lane.counters(LANE)
    result = await lane.run(plan, LANE.url, PROFILE, lambda: False)
    return Run(result, before, lane.counters(LANE))


def shape_of(run: Run) -> TrafficShape:
    """What an engine's metrics say of the window after ``SETTLE_S``; its counters, of all."""
    start_s, end_s = SETTLE_S, SETTLE_S + WINDOW_S
    ended = [r for r in run.result.records if r.error is None and start_s <= r.end_s <= end_s]
    begun = [
        (r.first_s, r.sent_s)
        for r in run.result.records
        if r.first_s is not None and start_s <= r.first_s <= end_s
    ]
    inside_s = sum(
        max(0.0, min(r.end_s, end_s) - max(r.sent_s, start_s)) for r in run.result.records
    )
    ttft = Distribution.of_values((1000 * (first - sent) for first, sent in begun), TTFT_MS)
    tpots = [r.latency.tpot_ms for r in ended if r.latency and r.latency.tpot_ms is not None]
    tpot = Distribution.of_values(tpots, TPOT_MS)
    hits, queries = run.after.prefix_hits or 0.0, run.after.prefix_queries or 0.0
    return TrafficShape(
        model=PROFILE,
        end_s=end_s,
        window_s=WINDOW_S,
        requests=float(len(ended)),
        rate_rps=len(ended) / WINDOW_S,
        running=inside_s / WINDOW_S,
        waiting=0.0,
        isl=Distribution.of_values([float(r.isl) for r in ended], BOUNDS),
        osl=Distribution.of_values([float(r.osl) for r in ended], BOUNDS),
        latencies=Latencies(
            ttft_p50_ms=ttft.quantile(0.5),
            ttft_p95_ms=ttft.quantile(0.95),
            tpot_p50_ms=tpot.quantile(0.5),
            tpot_p95_ms=tpot.quantile(0.95),
            ttft_ms=ttft,
            tpot_ms=tpot,
        ),
        output_tok_s=sum(r.osl for r in ended) / WINDOW_S,
        prefix_hit_rate=hits / queries if queries else None,
    )


async def rehearsed(shape: TrafficShape, plan_of: TrafficShape, seed: int) -> Fidelity:
    """The plan of ``plan_of`` held against ``shape``."""
    streams = max(1, round(plan_of.concurrency))
    plan = synthesise(
        plan_of,
        level=f"{streams} streams",
        concurrency=streams,
        warm_up_s=WARM_UP_S,
        duration_s=WARM_UP_S + MEASURED_S,
        seed=1000 + seed,
    )
    run = await played(plan, EngineConfig(), 1000 + seed)
    measured = measure(run.result, ANY_SLO, run.before, run.after, plan=plan)
    assert isinstance(measured, Measurement), measured
    return compare(shape, measured)


async def graded(seed: int) -> Graded:
    shape = shape_of(await played(live_plan(seed), EngineConfig(), seed))
    return Graded(
        shape=shape,
        matching=await rehearsed(shape, shape, seed),
        removed=await rehearsed(shape, replace(shape, prefix_hit_rate=0.0), seed),
        others={name: await rehearsed(shape, wrong, seed) for name, wrong in wrongs(shape).items()},
    )


def wrongs(shape: TrafficShape) -> dict[str, TrafficShape]:
    """What else a load may have got wrong, by its name."""
    hits = shape.prefix_hit_rate or 0.0
    return {
        "prefixes_halved": replace(shape, prefix_hit_rate=hits / 2),
        "isl_doubled": replace(shape, isl=shape.isl.times(2.0)),
        "osl_doubled": replace(shape, osl=shape.osl.times(2.0)),
        "streams_doubled": replace(shape, running=2 * shape.running),
    }


def told(found: Sequence[Graded]) -> dict[str, object]:
    n = len(found)
    refused_matching = sum(not one.matching.grade.meets(LIMIT) for one in found)
    refused_removed = sum(not one.removed.grade.meets(LIMIT) for one in found)
    missed = n - refused_removed
    apart = proportion_difference_interval(
        candidate_hits=refused_removed,
        candidate_n=n,
        baseline_hits=refused_matching,
        baseline_n=n,
        level=LEVEL,
    )

    def rate(hits: int) -> dict[str, object]:
        interval = proportion_interval(hits, n, level=LEVEL)
        return {"share": hits / n, "interval_95": [round(interval.low, 3), round(interval.high, 3)]}

    hits = [one.shape.prefix_hit_rate or 0.0 for one in found]
    off = Counter(
        row.signal.value
        for one in found
        for row in one.matching.rows
        if row.agreement in (Agreement.OFF, Agreement.FAR)
    )
    figures = {
        "simulated": PROFILE,
        "n": n,
        "limit": LIMIT.value,
        "live_hit_rate": [round(min(hits), 2), round(max(hits), 2)],
        "live_concurrency": [
            round(min(one.shape.concurrency for one in found), 1),
            round(max(one.shape.concurrency for one in found), 1),
        ],
        "matching_grades": _grades([one.matching for one in found]),
        "removed_grades": _grades([one.removed for one in found]),
        "matching_refused": rate(refused_matching),
        "removed_not_refused": rate(missed),
        "refusals_apart": [round(apart.low, 3), round(apart.high, 3)],
        "other_grades": {
            name: _grades([one.others[name] for one in found]) for name in found[0].others
        },
        "off_though_matching": dict(off.most_common()),
    }
    return held(
        figures,
        {
            "matching": all(one.matching.grade is MATCHING for one in found),
            "removed": missed == 0,
        },
    )


def _grades(found: Sequence[Fidelity]) -> dict[str, int]:
    counted = Counter(one.grade.value for one in found)
    return {grade.value: counted[grade.value] for grade in Grade}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=SEEDS, help="live loads to draw")
    given = parser.parse_args()
    found = [asyncio.run(graded(seed)) for seed in range(given.seeds)]
    sys.exit(ended(told(found)))


if __name__ == "__main__":
    main()
