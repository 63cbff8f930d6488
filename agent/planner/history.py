"""What the trials of a study have taught so far, read by the planners and by the briefing.

Pure. A failed trial is a constraint here and never a score. Nothing in this module decides what
is recommended: that needs a confirmation run and a verdict.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from canary.objective import value
from domain.engine import EngineConfig, SearchSpace, Value
from domain.study import (
    Failure,
    Measurement,
    Objective,
    Study,
    Trial,
    TrialState,
)

Changes: TypeAlias = frozenset[tuple[str, Value | None]]


def score(measurement: Measurement, objective: Objective) -> tuple[float, float]:
    """Sorts measurements by the objective; output tokens a second break ties, as at no goodput. One
    of which the objective is unknown comes last."""
    main = value(measurement, objective)
    return (-1.0 if main is None else main), measurement.output_tok_s


def gain(before: Measurement, after: Measurement, objective: Objective) -> float | None:
    """How many times better ``after`` is, by output tokens a second where neither has goodput;
    ``None`` where the objective of one is unknown."""
    if value(before, objective) is None or value(after, objective) is None:
        return None
    for old, new in zip(score(before, objective), score(after, objective), strict=True):
        if old > 0:
            return new / old
        if new > 0:
            return math.inf
    return 1.0


class Measured(NamedTuple):
    config: EngineConfig
    measurement: Measurement


class Failed(NamedTuple):
    config: EngineConfig
    failure: Failure


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """Configs that were measured or failed, normalised, in order of their trials.

    ``tried`` also holds those that no measurement and no fault of theirs came of.
    """

    baseline: EngineConfig
    objective: Objective
    measured: tuple[Measured, ...]
    failed: tuple[Failed, ...]
    tried: frozenset[EngineConfig]

    @property
    def incumbent(self) -> EngineConfig:
        """The best measured config, the baseline where there is none."""
        if not self.measured:
            return self.baseline
        return max(self.measured, key=lambda m: score(m.measurement, self.objective)).config

    def measurement_of(self, config: EngineConfig) -> Measurement | None:
        found = [m.measurement for m in self.measured if m.config == config]
        return found[-1] if found else None

    def gain_over_baseline(self, config: EngineConfig) -> float | None:
        """Times the baseline's score; ``None`` unless both are known."""
        before, after = self.measurement_of(self.baseline), self.measurement_of(config)
        if before is None or after is None:
            return None
        return gain(before, after, self.objective)

    def changes(self, config: EngineConfig) -> Changes:
        """What ``config`` changes on the baseline, as pairs of knob and new value."""
        return frozenset((c.knob, c.after) for c in self.baseline.diff(config))

    def effect(self, switch: Changes, *, whole: bool = False) -> float | None:
        """What exactly this switch did, by the newest two measured configs that differ in it: in
        ``whole``, against one that has the baseline's values of all its knobs."""
        off = frozenset((knob, self.baseline.get(knob)) for knob, _ in switch)
        newest = None
        for index, after in enumerate(self.measured):
            for other in self.measured[:index]:
                for old, new in ((other, after), (after, other)):
                    differing = frozenset((c.knob, c.after) for c in old.config.diff(new.config))
                    if whole and not _holds(old.config, off):
                        continue
                    if differing and differing <= switch and _holds(new.config, switch):
                        found = gain(old.measurement, new.measurement, self.objective)
                        newest = newest if found is None else found
        return newest

    def suspect(self, config: EngineConfig) -> Failure | None:
        """The failure that ``config`` would probably repeat.

        To blame is what a failed config changed and no measured config contains; where each change
        went well elsewhere, the combination is.
        """
        cleared: Changes = frozenset().union(*(self.changes(m.config) for m in self.measured))
        mine = self.changes(config)
        for failed, failure in self.failed:
            theirs = self.changes(failed)
            blamed = (theirs - cleared) or theirs
            if blamed and blamed <= mine:
                return failure
        return None


def _holds(config: EngineConfig, switch: Changes) -> bool:
    return all(config.get(knob) == value for knob, value in switch)


def read(study: Study, space: SearchSpace, trials: Sequence[Trial]) -> History:
    """The history of ``study`` without its confirmations."""
    exploring = [trial for trial in trials if trial.purpose.explores]
    return History(
        baseline=space.normalised(study.baseline),
        objective=study.objective,
        measured=tuple(
            Measured(space.normalised(trial.config), trial.measurement)
            for trial in exploring
            if trial.state is TrialState.MEASURED and trial.measurement is not None
        ),
        failed=tuple(
            Failed(space.normalised(trial.config), trial.failure)
            for trial in exploring
            if trial.state is TrialState.FAILED
            and trial.failure is not None
            and trial.failure.kind.blames_config
        ),
        tried=frozenset(space.normalised(trial.config) for trial in exploring),
    )
