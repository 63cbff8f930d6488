"""What a study wants next, read from its stored trials alone.

Pure, so that a study which was cut off at any point goes on from its rows: the same trials always
give the same next step. The words of a conclusion are ``conclusion``'s business, not this one's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from canary import budget
from canary.allowance import LEAST_REQUESTS
from canary.budget import EVALUATIONS, Terms
from canary.fidelity import MAIN
from canary.rounds import ROUND, candidates_turn
from domain.engine import EngineConfig, SearchSpace
from domain.fidelity import Agreement, Fidelity, Grade
from domain.study import (
    Expectation,
    FailureKind,
    Measurement,
    Objective,
    QualityScore,
    Study,
    StudyState,
    Trial,
    TrialPurpose,
    TrialState,
    lane_time,
)
from domain.verdict import Outcome, Verdict

CONFIRMATIONS = 2
"""Configs that may be confirmed: the best, and the next best where the best was lost."""

ATTEMPTS = 2
"""Runs that a config may have for one purpose or one turn, where the first was cut off."""

MOST_TOLD = 3
"""Figures of an unlike rehearsal that the reason names, causes before their effects."""

Best: TypeAlias = Callable[[Sequence[Trial], Objective], Trial | None]
Judge: TypeAlias = Callable[[Sequence[Measurement], Sequence[Measurement]], "Look"]
JudgeQuality: TypeAlias = Callable[[QualityScore, QualityScore], Verdict]


class Look(NamedTuple):
    """What the judge makes of the runs so far, and whether more of them could still prove a
    gain."""

    verdict: Verdict
    open: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A run that is wanted next; ``quality`` asks for the evaluation set as well.

    ``diagnosis`` and ``expected`` are as in the trial that it becomes.
    """

    purpose: TrialPurpose
    config: EngineConfig
    hypothesis: str
    quality: bool = False
    diagnosis: str = ""
    expected: Expectation | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Winner:
    """The trial whose config is recommended, the verdict of its fresh run, its evaluation, and how
    far the study's rehearsals can be trusted."""

    trial: Trial
    verdict: Verdict
    answers: str
    fidelity: Fidelity | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a study ends; ``winner`` where it recommends, ``reasons`` where it does not."""

    state: StudyState
    reasons: tuple[str, ...] = ()
    winner: Winner | None = None


def settled(trials: Sequence[Trial]) -> tuple[Trial, ...]:
    """The last run of each config and purpose; none where it was cut off and may run again."""
    runs: dict[tuple[TrialPurpose, EngineConfig], list[Trial]] = {}
    for trial in sorted(trials, key=lambda t: t.number):
        runs.setdefault((trial.purpose, trial.config), []).append(trial)
    return tuple(run[-1] for run in runs.values() if not _cut_off(run[-1]) or len(run) >= ATTEMPTS)


def exploration(study: Study, trials: Sequence[Trial], terms: Terms | None = None) -> Wanted | None:
    """The baseline's run, or the second run of a config whose first was cut off, where the study's
    minutes allow it."""
    done = {(trial.purpose, trial.config) for trial in settled(trials)}
    known = any(purpose is TrialPurpose.BASELINE for purpose, _ in done)
    if not known and not budget.baseline_fits(study.lane, terms, trials):
        return None
    for trial in trials:
        if trial.purpose.explores and (trial.purpose, trial.config) not in done:
            if known and not budget.searches_paid(study.lane, terms, trials, 1):
                return None
            return Wanted(purpose=trial.purpose, config=trial.config, hypothesis=trial.hypothesis)
    if known:
        return None
    return Wanted(
        purpose=TrialPurpose.BASELINE,
        config=study.baseline,
        hypothesis="What production runs now, as the measure of all others.",
    )


def fidelity(trials: Sequence[Trial]) -> Fidelity | None:
    """How far the rehearsals of these trials can be trusted; ``None`` where nobody looked."""
    baseline = _of(settled(trials), TrialPurpose.BASELINE)
    return baseline.fidelity if baseline is not None else None


def search_left(
    study: Study, trials: Sequence[Trial], limit: Grade | None, terms: Terms | None = None
) -> int:
    """Search trials that may follow: none once the baseline failed or was no likeness of
    production, a confirmation began, or the minutes that are left are needed for it."""
    past = settled(trials)
    baseline = _of(past, TrialPurpose.BASELINE)
    if baseline is None or _measurement(baseline) is None or _unlike(baseline.fidelity, limit):
        return 0
    if any(not trial.purpose.explores for trial in trials):
        return 0
    left = _unsearched(study, past)
    return budget.searches_paid(study.lane, terms, trials, left)


def _unsearched(study: Study, past: Sequence[Trial]) -> int:
    """Search trials that the study's number of them leaves."""
    started = [t for t in past if t.purpose.explores and not _refused(t)]
    return max(0, study.trial_budget - len(started))


def conclude(
    study: Study,
    space: SearchSpace,
    trials: Sequence[Trial],
    best: Best,
    judge: Judge,
    judge_quality: JudgeQuality,
    limit: Grade | None,
    rounds: int,
    terms: Terms | None = None,
) -> Wanted | Ending:
    """The confirmation run that is wanted next, or how the study ends.

    Below the fidelity ``limit`` nothing is recommended, whatever was measured; ``None`` is for a
    load that was given, where no production is there to be like.

    The verdict rests on fresh runs alone, since the best of many measurements flatters itself:
    those of up to ``rounds`` rounds, fewer where it is clear before. A config that dies in them,
    whose lossy changes fail the evaluation, or that is not proven better and was not measured on
    the baseline's lane, gives way to the next. No run begins of a round
    that the study's minutes cannot pay to its end.
    """
    past = settled(trials)
    baseline = _of(past, TrialPurpose.BASELINE)
    if baseline is None or _measurement(baseline) is None:
        told = [_lost("The baseline", baseline)]
        if baseline is None and study.lane is not None:
            told.append(_too_few(study, "another run of it and the proof of a gain"))
        return Ending(state=StudyState.FAILED, reasons=tuple(told))
    if reason := _unlike(baseline.fidelity, limit):
        return Ending(state=StudyState.FAILED, reasons=(reason,))
    explored = [t for t in past if t.purpose.explores and _measurement(t) is not None]
    reasons: list[str] = []
    unproven = False
    for _ in range(CONFIRMATIONS):
        leader = best(explored, study.objective)
        if leader is None or leader.config == study.baseline:
            reasons.append(f"None of {len(explored) - 1} other measured configs beat the baseline.")
            if _cut_short(study, trials, terms):
                reasons.append(_too_few(study, "another search trial and its proof"))
            break
        lossy = lossy_changes(study, space, leader.config)
        runs = _confirmation(study, trials, leader, judge, rounds, quality=bool(lossy))
        name = f"The config of trial {leader.number}"
        if isinstance(runs, Wanted):
            done = len(_in_turn(trials, leader.config))
            if _paid(study, trials, terms, done, quality=bool(lossy)):
                return runs
            reasons.append(f"{name} is not proven better after {done} fresh runs.")
            reasons.append(_too_few(study, "a whole round of them"))
            unproven = unproven or done < ROUND
            if done or not lossy:
                break
            # Without the evaluation set a round may yet be paid.
            explored = [t for t in explored if not lossy_changes(study, space, t.config)]
            continue
        if isinstance(runs, Ending):
            return runs
        if isinstance(runs, _Lost):
            reasons.append(_lost(name, runs.candidate))
            explored = [t for t in explored if t.config != leader.config]
            continue
        verdict = runs.verdict
        if verdict.outcome is not Outcome.PASS:
            reasons.append(f"{name} is not proven better: {verdict.reason}")
            if leader.lane == baseline.lane:
                break
            # The lane may have measured best and not the config.
            explored = [t for t in explored if t.config != leader.config]
            continue
        answers = _answers(lossy, runs, judge_quality)
        if answers.kept:
            winner = Winner(
                trial=leader,
                verdict=verdict,
                answers=answers.sentence,
                fidelity=baseline.fidelity,
            )
            return Ending(state=StudyState.RECOMMENDED, winner=winner)
        reasons.append(f"{name} is refused: {answers.sentence}")
        explored = [t for t in explored if not lossy_changes(study, space, t.config)]
    state = StudyState.FAILED if unproven else StudyState.NOTHING_BETTER
    return Ending(state=state, reasons=tuple(reasons))


def _paid(
    study: Study, trials: Sequence[Trial], terms: Terms | None, done: int, *, quality: bool
) -> bool:
    """Whether the rest of the round can be paid, of which the run after ``done`` is the next."""
    evaluations = max(0, EVALUATIONS - done) if quality else 0
    return budget.round_paid(study.lane, terms, trials, ROUND - done % ROUND, evaluations)


def _cut_short(study: Study, trials: Sequence[Trial], terms: Terms | None) -> bool:
    """Whether the search ended for want of minutes."""
    explored = [t for t in trials if t.purpose.explores]
    left = _unsearched(study, settled(explored))
    return left > 0 and not budget.searches_paid(study.lane, terms, explored, left)


def _too_few(study: Study, what: str) -> str:
    """That the budget is spent, and how to have more."""
    most = lane_time(study.lane.most.seconds) if study.lane is not None else "time"
    return (
        f"The study's {most} of the canary lane is spent, with too little left for {what}; raise "
        "canary_minutes_a_study, or canary_minutes_a_day where that left it less."
    )


def _unlike(found: Fidelity | None, limit: Grade | None) -> str:
    """Why the rehearsal cannot stand for production, in one sentence; empty where it can."""
    if found is None or limit is None or found.grade.meets(limit):
        return ""
    if found.grade is Grade.UNKNOWN:
        return f"The rehearsal {found.grade.words}: {_not_told(found)}."
    worst = found.of(Agreement.FAR) or found.of(Agreement.OFF) or found.of(Agreement.UNKNOWN)
    gravest = sorted(worst, key=lambda row: row.signal not in MAIN)
    told = "; ".join(row.sentence for row in gravest[:MOST_TOLD])
    return f"The rehearsal {found.grade.words}: {told}."


def _not_told(found: Fidelity) -> str:
    """The figures that matter and are missing."""
    lacking = [row.signal.words for row in found.of(Agreement.UNKNOWN) if row.signal in MAIN]
    told, more = lacking[:MOST_TOLD], len(lacking) - MOST_TOLD
    names = ", ".join(told) + (f" and {more} more figures" if more > 0 else "")
    return f"nothing is known, or only from fewer than {LEAST_REQUESTS} requests, of {names}"


def lossy_changes(study: Study, space: SearchSpace, config: EngineConfig) -> tuple[str, ...]:
    """The knobs by which ``config`` may answer otherwise than production does."""
    return tuple(
        knob for knob in space.lossy_changes(config) if config.get(knob) != study.baseline.get(knob)
    )


class _Confirmed(NamedTuple):
    """The fresh runs of both arms, in order, and the verdict on them."""

    baseline: Sequence[Trial]
    candidate: Sequence[Trial]
    verdict: Verdict


class _Lost(NamedTuple):
    """The candidate's fresh run, which failed."""

    candidate: Trial


def _confirmation(
    study: Study,
    trials: Sequence[Trial],
    leader: Trial,
    judge: Judge,
    rounds: int,
    *,
    quality: bool,
) -> _Confirmed | _Lost | Wanted | Ending:
    """The fresh runs of ``leader``'s config and the baseline with the verdict on them, or the run
    that is wanted next. The first run of each arm has the evaluation, where one is needed."""
    runs = _in_turn(trials, leader.config)
    for run in runs:
        if _measurement(run) is None and run.purpose is TrialPurpose.CONFIRM:
            return _Lost(run)
        if _measurement(run) is None:
            return Ending(state=StudyState.FAILED, reasons=(_lost("The baseline", run),))
    if runs and len(runs) % ROUND == 0:
        ours = [run for run in runs if run.purpose is TrialPurpose.CONFIRM]
        theirs = [run for run in runs if run.purpose is TrialPurpose.CONFIRM_BASELINE]
        look = judge(_measurements(theirs), _measurements(ours))
        if not look.open or len(runs) >= rounds * ROUND:
            return _Confirmed(theirs, ours, look.verdict)
    wanted_quality = quality and len(runs) < 2
    if candidates_turn(len(runs)):
        return Wanted(
            purpose=TrialPurpose.CONFIRM,
            config=leader.config,
            hypothesis=f"Trial {leader.number} measured best; fresh runs must show it again.",
            quality=wanted_quality,
        )
    return Wanted(
        purpose=TrialPurpose.CONFIRM_BASELINE,
        config=study.baseline,
        hypothesis="A fresh run of the baseline beside the candidate's.",
        quality=wanted_quality,
    )


def _in_turn(trials: Sequence[Trial], config: EngineConfig) -> list[Trial]:
    """The last fresh run of each turn in the confirmation of ``config``, and the baseline's
    between them; one that was cut off, and may run again, has not had its turn."""
    runs: list[Trial] = []
    attempts, under_way = 0, False
    for trial in sorted(trials, key=lambda t: t.number):
        if trial.purpose is TrialPurpose.CONFIRM:
            under_way = trial.config == config
        if not under_way or trial.purpose.explores:
            continue
        attempts += 1
        if not _cut_off(trial) or attempts >= ATTEMPTS:
            runs.append(trial)
            attempts = 0
    return runs


class _Answers(NamedTuple):
    kept: bool
    sentence: str


def _answers(lossy: Sequence[str], runs: _Confirmed, judge_quality: JudgeQuality) -> _Answers:
    if not lossy:
        return _Answers(True, "")
    baseline, candidate = runs.baseline[0].quality, runs.candidate[0].quality
    if baseline is None or candidate is None:
        return _Answers(False, f"{', '.join(lossy)} may change answers and no evaluation was run.")
    verdict = judge_quality(baseline, candidate)
    return _Answers(verdict.outcome is Outcome.PASS, verdict.reason)


def _of(
    trials: Sequence[Trial], purpose: TrialPurpose, config: EngineConfig | None = None
) -> Trial | None:
    return next(
        (t for t in trials if t.purpose is purpose and config in (None, t.config)),
        None,
    )


def _cut_off(trial: Trial) -> bool:
    return trial.state is TrialState.RUNNING or (
        trial.failure is not None and not trial.failure.kind.blames_config
    )


def _refused(trial: Trial) -> bool:
    """Whether no engine was started for it, so that it cost none of the budget."""
    return trial.failure is not None and trial.failure.kind is FailureKind.REFUSED


def _measurement(trial: Trial) -> Measurement | None:
    return trial.measurement if trial.state is TrialState.MEASURED else None


def _measurements(runs: Sequence[Trial]) -> tuple[Measurement, ...]:
    return tuple(m for m in map(_measurement, runs) if m is not None)


def _lost(name: str, trial: Trial | None) -> str:
    if trial is None:
        return f"{name} has not been measured."
    why = trial.failure.sentence if trial.failure is not None else "it has no measurement."
    return f"{name} failed in trial {trial.number}: {why}"
