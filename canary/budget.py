"""What a study costs: engine starts, and seconds that it holds the canary lane.

At most, before it begins; so far, from its trials' rows; and whether what is left pays for more.
What begins next is reckoned at its worst, so that no run goes beyond the bound, and what comes
after by what measured runs of the study took. A clock that went back never makes a run cheap.

Pure: nothing is remembered, so a study that was cut off is reckoned from its rows alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from canary.rounds import ROUND
from domain.study import Cost, FailureKind, LaneBudget, Measurement, Trial, TrialPurpose

BESIDES_S = 60.0
"""Seconds that a run may hold the lane for each load besides that and the start: two stops of an
engine, the load made and what came back gone through."""

EVALUATIONS = 2
"""Runs of a confirmation that have the evaluation set: the first of each arm."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What bounds the runs of a study, in seconds and in numbers.

    ``start_s`` is the longest start of an engine, ``warm_up_s`` and ``measured_s`` are those of one
    load, ``evaluation_s`` is the longest that the evaluation set may take. A run that explores has
    ``loads``, a fresh one ``fresh_loads``. Every run may be made ``attempts`` times, where it is
    cut off.
    """

    start_s: float
    warm_up_s: float
    measured_s: float
    evaluation_s: float
    searches: int
    confirmations: int
    rounds: int
    attempts: int
    loads: int = 1
    fresh_loads: int = 1

    @property
    def run_s(self) -> float:
        """The longest run that explores; it has no evaluation set."""
        return self.whole_s(self.loads)

    @property
    def fresh_s(self) -> float:
        """The longest fresh run without the evaluation set."""
        return self.whole_s(self.fresh_loads)

    @property
    def longest_s(self) -> float:
        """The longest run of all."""
        return max(self.run_s, self.fresh_s + self.evaluation_s)

    def whole_s(self, loads: int) -> float:
        """The longest run of so many loads, without the evaluation set."""
        return self.start_s + loads * (self.warm_up_s + self.measured_s + BESIDES_S)


class Run(NamedTuple):
    """When a trial held the lane, in Unix seconds; ``ended_s`` is ``None`` while it does, and
    where nobody wrote it down. One that was ``cut_off`` ended when that was found."""

    started_s: float
    ended_s: float | None
    cut_off: bool = False
    refused: bool = False

    @classmethod
    def of(cls, trial: Trial) -> Run:
        kind = trial.failure.kind if trial.failure is not None else None
        return cls(
            started_s=trial.started_s,
            ended_s=trial.ended_s,
            cut_off=kind is FailureKind.INTERRUPTED,
            refused=kind is FailureKind.REFUSED,
        )


def most(terms: Terms) -> Cost:
    """What a study costs where every run takes its longest and is made as often as it may be."""
    fresh = terms.confirmations * terms.rounds * ROUND
    evaluated = terms.confirmations * EVALUATIONS
    seconds = terms.searches * terms.run_s + fresh * terms.fresh_s + evaluated * terms.evaluation_s
    return Cost(starts=terms.attempts * (terms.searches + fresh), seconds=terms.attempts * seconds)


def least_s(terms: Terms) -> float:
    """What must be left for a study to be worth beginning: the baseline, one search trial and one
    round of fresh runs, at their worst."""
    return 2 * terms.run_s + ROUND * terms.fresh_s


def granted(terms: Terms, bounds_s: Iterable[float | None]) -> LaneBudget:
    """The budget of a study that begins: its most, within each bound (``None`` for none)."""
    whole, bounds = most(terms), [bound for bound in bounds_s if bound is not None]
    return LaneBudget(
        most=Cost(starts=whole.starts, seconds=min([whole.seconds, *bounds])),
        run_s=terms.longest_s,
        bounded=bool(bounds),
    )


def held_s(run: Run, longest_s: float | None, now: float | None = None) -> float:
    """Seconds that a run held the lane, up to ``now`` where it still does; none where vLLM refused
    it before a start.

    One that was cut off counts up to ``longest_s``, since nothing ran while the controller was
    away. One that ended before it began, by a clock that went back, counts that much, and nothing
    where the longest is not known.
    """
    if run.refused:
        return 0.0
    end_s = now if run.ended_s is None else run.ended_s
    if end_s is None or end_s < run.started_s:
        return longest_s or 0.0
    took_s = end_s - run.started_s
    sure = run.ended_s is not None and not run.cut_off
    return took_s if sure or longest_s is None else min(took_s, longest_s)


def spent(trials: Sequence[Trial], longest_s: float | None, now: float | None = None) -> Cost:
    """What the trials cost so far; see ``held_s``."""
    runs = [run for run in map(Run.of, trials) if not run.refused]
    return Cost(starts=len(runs), seconds=sum(held_s(run, longest_s, now) for run in runs))


def spent_since(runs: Iterable[Run], since_s: float, longest_s: float) -> float:
    """Seconds of the lane that the runs took after ``since_s``: of one that began before, the part
    behind it. A run of a clock that has since gone back counts whole."""
    used_s = 0.0
    for run in runs:
        took_s = held_s(run, longest_s)
        used_s += max(0.0, min(took_s, run.started_s + took_s - since_s))
    return used_s


def baseline_fits(budget: LaneBudget | None, terms: Terms | None, trials: Sequence[Trial]) -> bool:
    """Whether the baseline's run leaves enough for a candidate to be tried and proven."""
    return terms is None or _left_s(budget, trials) >= least_s(terms)


def searches_paid(
    budget: LaneBudget | None, terms: Terms | None, trials: Sequence[Trial], wanted: int
) -> int:
    """How many of the ``wanted`` search trials leave enough for a confirmation.

    That is all its rounds and evaluations once a candidate was measured, one round before: a study
    with few minutes tries one candidate at least, and each further one is weighed against proof.
    """
    if terms is None or budget is None or not budget.bounded:
        return wanted
    left_s = _left_s(budget, trials)
    single_s = _estimate_s(terms, trials, budget.run_s, terms.loads)
    proof_s = confirmation_s(budget, terms, trials, ROUND * terms.rounds, EVALUATIONS)
    if (spare_s := left_s - proof_s - terms.run_s) >= 0:
        return min(wanted, 1 + math.floor(spare_s / single_s))
    if any(t.purpose is TrialPurpose.SEARCH and t.measurement is not None for t in trials):
        return 0
    round_s = confirmation_s(budget, terms, trials, ROUND, 0)
    return min(wanted, 1) if left_s >= terms.run_s + round_s else 0


def searches_at_once(
    budget: LaneBudget | None, terms: Terms | None, trials: Sequence[Trial], paid: int
) -> int:
    """How many of the ``paid`` search trials may begin together, each of which may take its
    longest."""
    if terms is None or budget is None or not budget.bounded:
        return paid
    proof_s = confirmation_s(budget, terms, trials, ROUND * terms.rounds, EVALUATIONS)
    at_worst = math.floor((_left_s(budget, trials) - proof_s) / terms.run_s)
    return min(paid, max(1, at_worst))


def round_paid(
    budget: LaneBudget | None,
    terms: Terms | None,
    trials: Sequence[Trial],
    runs: int,
    evaluations: int,
) -> bool:
    """Whether the ``runs`` that are left of a round can be paid: half a round is not judged."""
    if terms is None or budget is None:
        return True
    return _left_s(budget, trials) >= confirmation_s(budget, terms, trials, runs, evaluations)


def confirmation_s(
    budget: LaneBudget, terms: Terms, trials: Sequence[Trial], runs: int, evaluations: int
) -> float:
    """Seconds to keep for so many fresh runs, ``evaluations`` of them with the evaluation set."""
    single_s = _estimate_s(terms, trials, budget.run_s, terms.fresh_loads)
    return terms.fresh_s + (runs - 1) * single_s + evaluations * terms.evaluation_s


def _left_s(budget: LaneBudget | None, trials: Sequence[Trial]) -> float:
    if budget is None or not budget.bounded:
        return math.inf
    return budget.most.seconds - spent(trials, budget.run_s).seconds


def _estimate_s(terms: Terms, trials: Sequence[Trial], longest_s: float, loads: int) -> float:
    """A run of so many whole loads, by the dearest measured one; at its worst before there is
    any."""
    load_s = terms.warm_up_s + terms.measured_s
    besides = [
        held_s(Run.of(trial), longest_s) - _loaded_s(terms, trial.measurement)
        for trial in trials
        if trial.measurement is not None
    ]
    worst_s = terms.whole_s(loads)
    return min(worst_s, max((s + loads * load_s for s in besides), default=worst_s))


def _loaded_s(terms: Terms, measurement: Measurement) -> float:
    """How long the loads of a run lasted."""
    return sum(terms.warm_up_s + level.seconds for level in measurement.levels)
