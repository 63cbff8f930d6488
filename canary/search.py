"""Which config to try next, and which tried one was best: ask and tell over stored trials.

Nothing is remembered here. Every question rebuilds an Optuna study from the rows, so a controller
that was killed asks the same question again and gets the same answer. A failed trial is a
constraint that was violated, never a score: a crash must not win at "minimise latency".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, combinations, islice, product
from typing import NamedTuple

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.trial import create_trial

from canary.objective import value
from domain.engine import EngineConfig, Knob, SearchSpace, Value, is_number
from domain.study import FailureKind, Objective, Trial, TrialState

# Below this many measured trials the sampler draws at random.
START_UP_TRIALS = 5
SAMPLES = 100
# Configs that are looked at, nearest to the baseline first, once samples bring nothing new.
WALK = 50_000
# Two failures of one change and no success with it: the change is avoided.
FAILURES = 2
# Trials within this share of the best are equal to it, given the noise of a single run.
TIE = 0.01


class _Setting(NamedTuple):
    """A knob in force at a value."""

    knob: str
    value: Value | None


class Search:
    """One search in ``space`` around ``baseline``; the same rows and ``seed`` give one answer."""

    def __init__(
        self, space: SearchSpace, baseline: EngineConfig, seed: int, objective: Objective
    ) -> None:
        self._space = space
        self._seed = seed
        self._objective = objective
        self._baseline = self._settled(baseline.as_dict())
        self._distributions = {knob.name: _distribution(knob) for knob in space.searched}

    def ask(
        self,
        trials: Sequence[Trial],
        proposals: Sequence[EngineConfig],
        without: Collection[EngineConfig] = (),
    ) -> EngineConfig | None:
        """The next config, normalised: a proposal if one is left, else a sample, else the nearest
        to the baseline; ``None`` where nothing is left.

        Never one that was tried, that is the baseline or one of ``without``, that is outside the
        space, or that holds an avoided change. A change is avoided once it failed twice, alone or
        beside others, and never ran.
        """
        tried = self._tried(trials)
        avoided = self._avoided(trials)

        def new(config: EngineConfig) -> bool:
            return (
                config.digest not in tried
                and config not in without
                and self._space.fault(config) is None
                and not avoided & self._changes(config)
            )

        proposed = map(self._space.normalised, proposals)
        configs = chain(proposed, self._samples(trials), islice(self._walk(), WALK))
        return next(filter(new, configs), None)

    def best(
        self, trials: Sequence[Trial], objective: Objective, lossy_allowed: bool = True
    ) -> Trial | None:
        """The best measured trial; of those within 1 % of it the one with the fewest changes. One
        whose value nobody knows is none.

        Before a lossy one is recommended, ``canary.quality.judge_quality`` must pass it.
        """
        value_of = {
            trial.id: worth for trial in trials if (worth := _worth(trial, objective)) is not None
        }
        eligible = [
            trial
            for trial in trials
            if trial.id in value_of and (lossy_allowed or not self._lossy(trial.config))
        ]
        top = max((value_of[trial.id] for trial in eligible), default=0.0)
        equals = (trial for trial in eligible if value_of[trial.id] >= (1 - TIE) * top)
        return min(
            equals,
            key=lambda t: (len(self._changes(t.config)), -value_of[t.id], t.number),
            default=None,
        )

    def _avoided(self, trials: Sequence[Trial]) -> frozenset[_Setting]:
        """Changes that failed twice and never ran.

        A trial that failed for want of accuracy blames its lossy changes only; one whose failure no
        config is to blame for blames none.
        """
        failures: Counter[_Setting] = Counter()
        ran: set[_Setting] = set()
        for trial in trials:
            changes = self._changes(trial.config)
            if trial.state is TrialState.MEASURED:
                ran |= changes
            elif trial.failure is not None and trial.failure.kind is FailureKind.QUALITY:
                failures.update(self._lossy(trial.config))
            elif _blames_config(trial):
                failures.update(changes)
        return frozenset(c for c, times in failures.items() if times >= FAILURES and c not in ran)

    def _lossy(self, config: EngineConfig) -> frozenset[_Setting]:
        """The changes by which ``config`` may answer otherwise than the baseline does."""
        lossy = self._space.lossy_changes(config)
        return frozenset(change for change in self._changes(config) if change.knob in lossy)

    def _tried(self, trials: Sequence[Trial]) -> frozenset[str]:
        """Digests not to try again: the baseline's, and all but those interrupted only once."""
        tried = {self._baseline.digest}
        interrupted: set[str] = set()
        for trial in trials:
            digest = self._space.normalised(trial.config).digest
            cut_off = trial.failure is not None and not trial.failure.kind.blames_config
            if cut_off and digest not in interrupted:
                interrupted.add(digest)
            else:
                tried.add(digest)
        return frozenset(tried)

    def _changes(self, config: EngineConfig) -> frozenset[_Setting]:
        """The knobs of the space in force at another value than the baseline's."""
        return frozenset(
            _Setting(knob.name, value)
            for knob in self._space.knobs
            if (value := self._space.effective(config, knob.name))
            != self._space.effective(self._baseline, knob.name)
        )

    def _settled(self, values: Mapping[str, Value]) -> EngineConfig:
        """The config inside the space nearest to ``values``: what the space does not know, or a
        condition rules out, stays at its default."""
        config = self._space.normalised(
            EngineConfig.of(
                {
                    name: value
                    for name, value in values.items()
                    if (knob := self._space.knob(name)) is not None and value in knob.domain
                }
            )
        )
        while unmet := [knob.name for knob in self._space.knobs if self._ruled_out(config, knob)]:
            config = config.having(dict.fromkeys(unmet))
        return config

    def _ruled_out(self, config: EngineConfig, knob: Knob) -> bool:
        return config.get(knob.name) is not None and any(
            self._space.effective(config, condition.knob) not in condition.values
            for condition in knob.only_if
        )

    def _samples(self, trials: Sequence[Trial]) -> Iterator[EngineConfig]:
        """Configs drawn by Optuna's tree-structured Parzen estimator from the trials so far."""
        study = self._study(trials)
        for _ in range(SAMPLES):
            places = study.ask(self._distributions).params
            drawn = {knob.name: knob.domain[places[knob.name]] for knob in self._space.searched}
            yield self._settled({**self._baseline.as_dict(), **drawn})

    def _study(self, trials: Sequence[Trial]) -> optuna.Study:
        """An in-memory study of what was measured, and of what broke as infeasible points."""
        sampler = optuna.samplers.TPESampler(
            seed=self._seed + len(trials), multivariate=True, n_startup_trials=START_UP_TRIALS
        )
        with _quiet():
            study = optuna.create_study(sampler=sampler, direction="maximize")
        for trial in trials:
            point = self._point(trial.config)
            if point is None:
                continue
            if (worth := _worth(trial, self._objective)) is not None:
                study.add_trial(
                    create_trial(
                        value=worth,
                        params=point,
                        distributions=self._distributions,
                    )
                )
            elif _blames_config(trial):
                study.add_trial(
                    create_trial(
                        state=optuna.trial.TrialState.PRUNED,
                        constraints={"failed": 1.0},
                        params=point,
                        distributions=self._distributions,
                    )
                )
        return study

    def _point(self, config: EngineConfig) -> dict[str, int] | None:
        """Each knob's place in its domain; ``None`` where a value is in no domain."""
        effective = {k: self._space.effective(config, k.name) for k in self._space.searched}
        # What an engine takes by itself in an unusual config is nowhere in the domain.
        placed = {k: k.default if value is None else value for k, value in effective.items()}
        if any(value not in knob.domain for knob, value in placed.items()):
            return None
        return {knob.name: knob.domain.index(value) for knob, value in placed.items()}

    def _walk(self) -> Iterator[EngineConfig]:
        """All configs of the space in a fixed order, those with the fewest changes first."""
        others = {
            knob: [v for v in knob.domain if v != self._space.effective(self._baseline, knob.name)]
            for knob in self._space.searched
        }
        for changes in range(1, len(others) + 1):
            for knobs in combinations(others, changes):
                for values in product(*(others[knob] for knob in knobs)):
                    named = {knob.name: value for knob, value in zip(knobs, values, strict=True)}
                    yield self._settled({**self._baseline.as_dict(), **named})


def _distribution(knob: Knob) -> BaseDistribution:
    """Places in the knob's domain: in order for numbers, without one for all else."""
    places = len(knob.domain)
    numbers = all(map(is_number, knob.domain))
    if numbers and list(knob.domain) == sorted(knob.domain):
        return IntDistribution(0, places - 1)
    return CategoricalDistribution(range(places))


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep Optuna from logging that it made a study; its level is one for the whole process."""
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(level)


def _worth(trial: Trial, objective: Objective) -> float | None:
    """What it measured; ``None`` where nothing was, or that is unknown."""
    if trial.state is not TrialState.MEASURED or trial.measurement is None:
        return None
    return value(trial.measurement, objective)


def _blames_config(trial: Trial) -> bool:
    """Whether the trial failed and another try would probably fail alike."""
    return trial.failure is not None and trial.failure.kind.blames_config
