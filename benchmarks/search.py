"""Which search finds a near-best config for the fewest engine seconds.

``python -m benchmarks.search`` races the product's own study against Optuna's TPE and Gaussian
process, random search, a grid, one factor at a time, and the strategy of PyPI's vllm-optimizer, on
nine surfaces whose best is known: engine seconds up to the first config that is truly within 5 % of
it. Seven surfaces are SIMULATED, two are a stored grid of real engines on a CPU. Every search sees
the same space, noise and costs: the product, too, pays whole trials here, and neither screens nor
gives up what loses. No engine is started. The exit code is 1 where a target was missed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.search_rivals import STRATEGIES, lacking
from benchmarks.search_surfaces import NAMES, WITHIN, best_of, load
from benchmarks.search_trials import Raced, product, rival
from benchmarks.targets import ended
from domain.study import TrialPurpose

OURS = "this product"
GP = "Optuna GP"
NOISE = 0.05
"""Standard deviation between two starts of one engine, as seen on real ones."""

BUDGET = 30
"""Trials of vLLM's defaults that a search may cost; one that is not near by then counts as all."""

AS_IN_0_1_0A21 = (
    "Its strategy in our words, since the package wants an older Optuna; told the same outcomes,"
    " its own search session proposed the same 360 configs of 360."
)
MOST_OF_BEST = 0.5
DRAWS = 4000
LEVEL = 0.95
SEED = 11
TORCH = Path(".vllm-cpu", "lib", f"python3.{sys.version_info.minor}", "site-packages")

Seconds = NDArray[np.float64]


class Cell(NamedTuple):
    """One strategy's races on one surface, a seed each; of the product also its fresh runs."""

    surface: str
    strategy: str
    raced: tuple[Raced, ...]
    confirming_s: tuple[float, ...] = ()
    recommended: int = 0

    @property
    def seconds(self) -> Seconds:
        return np.array([race.seconds for race in self.raced])


class Wanted(NamedTuple):
    surface: str
    strategy: str
    seeds: int
    noise: float
    budget: int


def raced(wanted: Wanted) -> Cell:
    surface, seeds = load(wanted.surface), range(wanted.seeds)
    if wanted.strategy == OURS:
        studied = [product(surface, seed, wanted.noise, wanted.budget) for seed in seeds]
        return Cell(
            wanted.surface,
            OURS,
            tuple(each.raced for each in studied),
            tuple(each.confirming_s for each in studied),
            sum(each.recommended for each in studied),
        )
    if wanted.strategy == GP:
        lacking(TORCH)
    strategy = STRATEGIES[wanted.strategy]
    races = (rival(surface, strategy, seed, wanted.noise, wanted.budget) for seed in seeds)
    return Cell(wanted.surface, wanted.strategy, tuple(races))


def medians(seconds: Seconds) -> Seconds:
    """The median of each of ``DRAWS`` resamples of the seeds."""
    drawn = np.random.default_rng(SEED).integers(len(seconds), size=(DRAWS, len(seconds)))
    return np.asarray(np.median(seconds[drawn], axis=1), dtype=np.float64)


def ratio(ours: Sequence[Seconds], theirs: Sequence[Seconds]) -> dict[str, Any]:
    """Our median over theirs with its bootstrap interval; over several surfaces the geometric
    mean of their ratios."""
    found = np.mean(
        [np.log(np.median(a) / np.median(b)) for a, b in zip(ours, theirs, strict=True)]
    )
    drawn = np.mean(
        [
            np.log(medians(a) / np.random.default_rng(SEED + 1).permutation(medians(b)))
            for a, b in zip(ours, theirs, strict=True)
        ],
        axis=0,
    )
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return {
        "ratio": round(float(np.exp(found)), 3),
        "interval_95": [round(float(np.exp(low)), 3), round(float(np.exp(high)), 3)],
    }


def told(cell: Cell) -> dict[str, Any]:
    """Median and quartiles; races that did not get near count as the whole budget."""
    low, middle, high = np.quantile(cell.seconds, [0.25, 0.5, 0.75])
    return {
        "median_s": round(float(middle)),
        "quartiles_s": [round(float(low)), round(float(high))],
        "median_trials": float(np.median([race.trials for race in cell.raced])),
        "near_within_budget": round(sum(race.near for race in cell.raced) / len(cell.raced), 3),
    }


def on_surface(name: str, cells: Mapping[str, Cell], budget: int) -> dict[str, Any]:
    surface, best = load(name), best_of(name)
    ours = cells[OURS]
    rivals = {strategy: cell for strategy, cell in cells.items() if strategy != OURS}
    against = {strategy: ratio([ours.seconds], [cell.seconds]) for strategy, cell in rivals.items()}
    nearest = min(rivals, key=lambda strategy: float(np.median(rivals[strategy].seconds)))
    # Who does not ask what runs today is spared that trial.
    unasked = ratio([ours.seconds], [rivals[nearest].seconds - surface.trial_s])
    return {
        "engines": "real, measured once" if surface.measured else "simulated",
        "default_tok_s": round(surface.rate(type(best.config)()), 1),
        "best_tok_s": round(best.tok_s, 1),
        "best_config": best.config.as_dict(),
        "share_of_configs_near": round(best.near, 4),
        "share_of_configs_failing": round(best.failing, 4),
        "trial_s": round(surface.trial_s, 1),
        "budget_s": round(budget * surface.trial_s),
        "strategies": {strategy: told(cell) for strategy, cell in cells.items()},
        "against": against,
        "best_rival": nearest,
        "against_best_rival": against[nearest],
        "against_best_rival_without_its_baseline": unasked,
        "confirming_median_s": round(float(np.median(ours.confirming_s))),
        "recommended": round(ours.recommended / len(ours.raced), 3),
    }


def compared(cells: Sequence[Cell], wanted: Wanted, without: Mapping[str, str]) -> dict[str, Any]:
    """All surfaces, what holds over all of them, and the targets."""
    by_surface: dict[str, dict[str, Cell]] = {}
    for cell in cells:
        by_surface.setdefault(cell.surface, {})[cell.strategy] = cell
    found = {name: on_surface(name, each, wanted.budget) for name, each in by_surface.items()}
    ours = [each[OURS].seconds for each in by_surface.values()]
    rivals = [strategy for strategy in STRATEGIES if strategy not in without]
    over_all = {
        strategy: ratio(ours, [each[strategy].seconds for each in by_surface.values()])
        for strategy in rivals
    }
    # The hardest comparison: on each surface against whoever is best there.
    best = ratio(
        ours, [each[found[name]["best_rival"]].seconds for name, each in by_surface.items()]
    )
    at_random = [found[name]["against"]["random"]["ratio"] for name in found]
    halved = [name for name in found if found[name]["against_best_rival"]["ratio"] <= MOST_OF_BEST]
    targets = {
        "half of each surface's best rival, geometric mean": best["ratio"] <= MOST_OF_BEST,
        "never slower than random": max(at_random) <= 1.0,
    }
    return {
        "near": f"within {1 - WITHIN:.0%} of the best",
        "seeds": wanted.seeds,
        "noise": wanted.noise,
        "budget_trials": wanted.budget,
        "vllm_optimizer": AS_IN_0_1_0A21,
        "skipped": dict(without),
        "surfaces": found,
        "over_surfaces": {"against": over_all, "against_each_best_rival": best},
        "surfaces_at_half_of_best_rival": halved,
        "targets": targets,
        "targets_met": all(targets.values()),
    }


def show(name: str, seed: int, noise: float, budget: int) -> None:
    """The product's trials on one surface, each with its true share of the best."""
    surface, best = load(name), best_of(name)
    print(f"{name}: best {best.tok_s:.0f} tokens/s with {best.config}")
    for trial in product(surface, seed, noise, budget).trials:
        if trial.purpose not in (TrialPurpose.CONFIRM, TrialPurpose.CONFIRM_BASELINE):
            share = surface.rate(surface.space.normalised(trial.config)) / best.tok_s
            failed = f" ({trial.failure.kind.value})" if trial.failure else ""
            print(f"{trial.number:3} {share:6.1%}{failed} {trial.config}\n      {trial.hypothesis}")


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    reason = lacking(TORCH)
    without = {GP: reason} if reason else {}
    names: Iterable[str] = arguments.surfaces or NAMES
    strategies = [OURS, *(each for each in STRATEGIES if each not in without)]
    wanted = [
        Wanted(name, each, arguments.seeds, arguments.noise, arguments.budget)
        for name in names
        for each in strategies
    ]
    cells = []
    with ProcessPoolExecutor(arguments.processes) as pool:
        for cell in pool.map(raced, wanted):
            figures = told(cell)
            print(f"{cell.surface}, {cell.strategy}: {figures}", file=sys.stderr, flush=True)
            cells.append(cell)
    return compared(cells, wanted[0], without)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--noise", type=float, default=NOISE)
    parser.add_argument("--budget", type=int, default=BUDGET, help="trials that a search may cost")
    parser.add_argument("--surfaces", nargs="+", choices=NAMES, help="instead of all")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--show", choices=NAMES, help="print the product's trials on a surface")
    arguments = parser.parse_args()
    if arguments.show:
        show(arguments.show, 0, arguments.noise, arguments.budget)
        return
    sys.exit(ended(run(arguments)))


if __name__ == "__main__":
    main()
