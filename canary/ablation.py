"""What one switch did, from trials that differ in nothing else (pure; draws come from ``seed``).

Each trial is one run of one engine, so an interval here holds what varies within a run and nothing
of what varies between two starts: it shows where to look, and decides nothing. What decides are
the fresh runs of ``canary.judge``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from canary.intervals import rate_interval, rate_ratio, rate_ratio_interval
from canary.objective import METRICS, blocks, least_rate
from domain.engine import Change, EngineConfig
from domain.interval import Interval
from domain.study import Measurement, Objective, Trial, TrialState
from domain.verdict import Effect

LEVEL = 0.95
MIN_BLOCKS = 10
"""Blocks of time in a run; with fewer there is no interval, and without one nothing is said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchEffect:
    """The effects of one change, of the run of trial ``after`` against that of ``before``."""

    change: Change
    before: int
    after: int
    effects: tuple[Effect, ...]


def switch_effects(
    trials: Sequence[Trial], baseline: EngineConfig, objective: Objective, *, seed: int
) -> tuple[SwitchEffect, ...]:
    """One for each two measured configs that differ in one switch alone, by switch; the effect on
    the ``objective`` comes first. A change leads away from the baseline's value where one of both
    has it, else from the earlier trial to the later.

    Fresh runs of a confirmation are left out: they are many of the same two configs. So are trials
    of unlike loads or lanes, and those of which the engine overrode unlike things.
    """
    runs = [t for t in trials if t.purpose.explores and _blocks_enough(t)]
    found = [
        SwitchEffect(
            change=before.config.diff(after.config)[0],
            before=before.number,
            after=after.number,
            effects=tuple(_effects(before, after, objective, seed)),
        )
        for before, after in _pairs(runs, baseline)
    ]
    return tuple(sorted(found, key=lambda one: (one.change.knob, one.before, one.after)))


def within_run(measured: Measurement, objective: Objective, *, seed: int) -> Interval | None:
    """The interval of one run's ``canary.objective.value``; ``None`` where it was too short, or
    nothing is known of it."""
    if len(measured.blocks) < MIN_BLOCKS or measured.seconds <= 0:
        return None
    found = blocks(measured, objective)
    return None if found is None else rate_interval(found, level=LEVEL, seed=seed)


def _blocks_enough(trial: Trial) -> bool:
    measured = trial.measurement
    return (
        trial.state is TrialState.MEASURED
        and measured is not None
        and len(measured.blocks) >= MIN_BLOCKS
        and measured.seconds > 0
        and sum(block.output_tokens for block in measured.blocks) > 0
    )


def _pairs(runs: Sequence[Trial], baseline: EngineConfig) -> Iterator[tuple[Trial, Trial]]:
    for one, other in combinations(sorted(runs, key=lambda trial: trial.number), 2):
        changes = one.config.diff(other.config)
        if len(changes) != 1 or one.overridden != other.overridden:
            continue
        if (_level(one), one.lane) != (_level(other), other.lane):
            continue
        returns = changes[0].after == baseline.get(changes[0].knob)
        yield (other, one) if returns else (one, other)


def _level(trial: Trial) -> str:
    return trial.measurement.level if trial.measurement is not None else ""


def _effects(before: Trial, after: Trial, objective: Objective, seed: int) -> Iterator[Effect]:
    theirs, ours = before.measurement, after.measurement
    assert theirs is not None and ours is not None
    for metric in sorted(Objective, key=lambda each: each is not objective):
        candidate, base = blocks(ours, metric), blocks(theirs, metric)
        if candidate is None or base is None:
            continue
        least = least_rate((theirs, ours), metric)
        if max(candidate.rate, base.rate) <= least:
            # Next to none on both sides: a ratio of one would look like certainty.
            continue
        yield Effect(
            metric=METRICS[metric],
            baseline=base.rate,
            candidate=candidate.rate,
            estimate=rate_ratio(candidate, base, least=least),
            unit="ratio",
            interval=rate_ratio_interval(candidate, base, least=least, level=LEVEL, seed=seed),
        )
