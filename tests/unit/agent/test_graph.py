"""A study over a made-up response surface, with its trials in a list instead of a database."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

import pytest

from agent.graph import Ask, Compare, Conclusion, Explain, Look, Resolve, StudyGraph, unexplained
from agent.graph.study_graph import SAVES
from canary import budget
from canary.budget import Terms
from domain.engine import Change, EngineConfig, Refusal, Resolution, SearchSpace
from domain.errors import BadInput, Conflict, LeaseLost, Temporary
from domain.fidelity import Agreement, Fidelity, FidelityRow, Grade, Signal
from domain.interval import Interval
from domain.ports import Clock, Proposal, Proposals
from domain.study import (
    Failure,
    FailureKind,
    Measurement,
    Objective,
    QualityScore,
    Recommendation,
    Study,
    StudyState,
    Trial,
    TrialPurpose,
    TrialState,
)
from domain.traffic import TrafficShape
from domain.verdict import Effect, Outcome, Verdict
from tests.fakes import records
from tests.fakes.clock import FakeClock
from tests.fakes.records import knob, measured

BASELINE = EngineConfig()
FAST = EngineConfig.of({"speed": 2})
FASTER = EngineConfig.of({"speed": 3})
ROUND = ["confirm", "confirm_baseline", "confirm_baseline", "confirm"]
MIRRORED = ["confirm_baseline", "confirm", "confirm", "confirm_baseline"]
LOSSY = EngineConfig.of({"cache": "fp8", "speed": 3})
CRASH = EngineConfig.of({"speed": 9})


SPACE = SearchSpace(
    knobs=(
        knob("speed", (1, 2, 3, 4, 5, 9)),
        knob("cache", ("auto", "fp8"), lossy_values=("fp8",)),
    )
)


def study(budget: int = 5, baseline: EngineConfig = BASELINE) -> Study:
    return records.study(
        id="s1", objective=Objective.THROUGHPUT, baseline=baseline, trial_budget=budget
    )


def surface(config: EngineConfig) -> float:
    speed = config.get("speed")
    gain = 1.1 if config.get("cache") == "fp8" else 1.0
    return 1000.0 * gain * (float(speed) if speed is not None else 1.0)


@dataclass
class ListLog:
    """A TrialLog that also keeps every state it was ever in, for replaying prefixes."""

    rows: dict[str, Trial] = field(default_factory=dict)
    versions: list[dict[str, Trial]] = field(default_factory=list)

    def trials(self, study_id: str) -> tuple[Trial, ...]:
        return tuple(t for t in self.rows.values() if t.study_id == study_id)

    def add(self, trial: Trial) -> None:
        assert trial.id not in self.rows
        self._keep(trial)

    def save(self, trial: Trial) -> None:
        assert trial.id in self.rows
        self._keep(trial)

    def _keep(self, trial: Trial) -> None:
        self.rows[trial.id] = trial
        self.versions.append(dict(self.rows))


@dataclass
class ListPlanner:
    """Proposes the given configs in order."""

    configs: Sequence[EngineConfig]
    note: str = ""

    async def propose(
        self, study: Study, space: SearchSpace, trials: Sequence[Trial], limit: int
    ) -> Proposals:
        ranked = [
            Proposal(config=c, hypothesis=f"{c} is fast", metric="output_tok_s")
            for c in self.configs
        ]
        return Proposals("list", tuple(ranked), self.note)


@dataclass
class StillClock:
    def now(self) -> float:
        return 1000.0

    async def sleep(self, seconds: float) -> None:
        raise AssertionError("a study does not sleep")


@dataclass
class Bench:
    """Rehearses on the surface; ``failing`` names (purpose, config) whose engine dies."""

    failing: Iterable[tuple[TrialPurpose, EngineConfig]] = ()
    right: int | None = 95
    calls: list[tuple[Trial, bool]] = field(default_factory=list)

    async def rehearse(self, trial: Trial, quality: bool) -> Trial:
        self.calls.append((trial, quality))
        if (trial.purpose, trial.config) in self.failing or trial.config == CRASH:
            failure = Failure(kind=FailureKind.DIED, sentence="The engine died.")
            return replace(trial, state=TrialState.FAILED, failure=failure)
        score = None
        if quality and self.right is not None:
            lossy = SPACE.lossy_changes(trial.config)
            score = QualityScore(right=self.right if lossy else 95, asked=100)
        return replace(
            trial,
            state=TrialState.MEASURED,
            measurement=measured(surface(trial.config)),
            quality=score,
        )


def first(
    trials: Sequence[Trial], configs: Sequence[EngineConfig], without: Collection[EngineConfig]
) -> EngineConfig | None:
    return next((config for config in configs if config not in without), None)


async def unresolved(config: EngineConfig) -> None:
    """An engine that cannot be asked."""


def best(trials: Sequence[Trial], objective: Objective) -> Trial | None:
    measured_ = [t for t in trials if t.measurement is not None]
    return max(measured_, key=lambda t: t.measurement.output_tok_s, default=None)  # type: ignore[union-attr]


def judge(baseline: Sequence[Measurement], candidate: Sequence[Measurement]) -> Look:
    """Sure at the first look, unless the candidate gains little: then never."""
    assert len(baseline) == len(candidate)
    ratio = candidate[0].output_tok_s / baseline[0].output_tok_s
    interval = Interval(low=ratio - 0.1, high=ratio + 0.1, level=0.95, method="exact", n=20)
    effect = Effect(
        metric="output_tok_s",
        baseline=baseline[0].output_tok_s,
        candidate=candidate[0].output_tok_s,
        estimate=ratio,
        unit="ratio",
        interval=interval,
    )
    outcome = Outcome.PASS if ratio > 1.5 else Outcome.INCONCLUSIVE
    reason = "It is faster." if outcome is Outcome.PASS else "The interval includes no effect."
    verdict = Verdict(outcome=outcome, reason=reason, effects=(effect,))
    return Look(verdict, open=1 < ratio <= 1.5)


def judge_quality(baseline: QualityScore, candidate: QualityScore) -> Verdict:
    if candidate.right >= baseline.right - 2:
        return Verdict(outcome=Outcome.PASS, reason="Answers are as good.")
    return Verdict(outcome=Outcome.FAIL, reason="Answers are worse.")


def graded(grade: Grade) -> Fidelity:
    """A prefix hit rate that is far off where the grade is the worst, and unknown where none is."""
    agreement = {Grade.D: Agreement.FAR, Grade.UNKNOWN: Agreement.UNKNOWN}
    row = FidelityRow(
        signal=Signal.PREFIX_HIT_RATE,
        live=None if grade is Grade.UNKNOWN else 0.71,
        rehearsed=0.02 if grade is Grade.D else 0.7,
        agreement=agreement.get(grade, Agreement.CLOSE),
    )
    return Fidelity(grade=grade, rows=(row,), reasons=("The reason for it.",))


def compare(shape: TrafficShape, measured_: Measurement) -> Fidelity:
    return graded(Grade.A)


def graph(
    log: ListLog,
    configs: Sequence[EngineConfig],
    bench: Bench,
    ask: Ask = first,
    resolve: Resolve = unresolved,
    note: str = "",
    space: SearchSpace = SPACE,
    compare: Compare = compare,
    limit: Grade | None = Grade.C,
    terms: Terms | None = None,
    clock: Clock | None = None,
    lanes: Sequence[str] = ("canary-0",),
    explain: Explain = unexplained,
) -> StudyGraph:
    return StudyGraph(
        planner=ListPlanner(configs, note),
        diagnose=lambda *asked: "Nothing limits it.",
        space=space,
        log=log,
        rehearse=bench.rehearse,
        resolve=resolve,
        ask=ask,
        best=best,
        judge=judge,
        judge_quality=judge_quality,
        compare=compare,
        fidelity_limit=limit,
        rounds=2,
        terms=terms,
        lanes=lanes,
        explain=explain,
        clock=clock or StillClock(),
        new_id=lambda: f"t{len(log.rows) + 1}",
    )


async def run(
    configs: Sequence[EngineConfig],
    bench: Bench | None = None,
    budget: int = 5,
    log: ListLog | None = None,
    grade: Grade = Grade.A,
) -> tuple[Conclusion, ListLog, Bench]:
    log, bench = log or ListLog(), bench or Bench()
    made = graph(log, configs, bench, compare=lambda shape, measured_: graded(grade))
    return await made.run(study(budget)), log, bench


def purposes(log: ListLog) -> list[str]:
    return [t.purpose.value for t in log.rows.values()]


async def test_the_best_config_is_confirmed_beside_the_baseline_and_recommended() -> None:
    conclusion, log, _ = await run([FAST, FASTER])
    assert purposes(log) == ["baseline", "search", "search", *ROUND]
    assert conclusion.study.state is StudyState.RECOMMENDED
    assert conclusion.recommendation is not None
    assert conclusion.recommendation.config == FASTER
    assert [t.number for t in log.rows.values()] == [1, 2, 3, 4, 5, 6, 7]


async def test_the_rationale_gives_the_ratio_its_interval_and_n() -> None:
    conclusion, _, _ = await run([FAST])
    assert conclusion.study.conclusion == (
        "Change speed: default → 2: output_tok_s 2000 against 1000, 2 times the baseline's "
        "(95 % interval 1.9 to 2.1, n=20)."
    )
    assert conclusion.recommendation is not None
    assert conclusion.recommendation.rationale.startswith(conclusion.study.conclusion)
    assert "list: speed=2 is fast" in conclusion.recommendation.rationale
    trust = "The rehearsal reproduces production closely (grade A). The reason for it."
    assert trust in conclusion.recommendation.rationale


@pytest.mark.parametrize("budget", [1, 2, 3, 60])
async def test_the_budget_counts_baseline_and_search_and_bounds_the_graph(budget: int) -> None:
    many = [EngineConfig.of({"speed": s}) for s in (2, 3, 4, 5)]
    many += [c.having({"cache": "fp8"}) for c in many]
    _, log, _ = await run(many, budget=budget)
    explored = [p for p in purposes(log) if p in ("baseline", "search")]
    assert len(explored) == min(budget, 1 + len(many))


async def test_a_long_search_stays_within_the_recursion_limit() -> None:
    levels = tuple(range(1, 102))
    space = SearchSpace(knobs=(knob("speed", levels),))
    log, bench = ListLog(), Bench()
    many = [EngineConfig.of({"speed": s}) for s in levels[1:] if s != 9]
    await graph(log, many, bench, space=space).run(study(budget=90))
    assert purposes(log).count("search") == 89


async def test_a_failed_config_never_wins() -> None:
    conclusion, log, _ = await run([CRASH, FAST])
    assert conclusion.recommendation is not None
    assert conclusion.recommendation.config == FAST
    crashed = next(t for t in log.rows.values() if t.config == CRASH)
    assert crashed.state is TrialState.FAILED


async def test_a_baseline_that_fails_fails_the_study_with_its_reason() -> None:
    bench = Bench(failing=[(TrialPurpose.BASELINE, BASELINE)])
    conclusion, log, _ = await run([FAST], bench)
    assert conclusion.study.state is StudyState.FAILED
    assert conclusion.study.conclusion == "The baseline failed in trial 1: The engine died."
    assert purposes(log) == ["baseline"]


async def test_a_rehearsal_unlike_production_recommends_nothing_and_costs_no_further_trial() -> (
    None
):
    conclusion, log, _ = await run([FAST], grade=Grade.D)
    assert conclusion.study.state is StudyState.FAILED
    assert conclusion.recommendation is None
    assert conclusion.study.conclusion == (
        "The rehearsal does not reproduce production: prefix hit rate 0.02 against 0.71 live."
    )
    assert purposes(log) == ["baseline"]


@pytest.mark.parametrize(
    ("grade", "limit", "recommended"),
    [
        (Grade.C, Grade.C, True),
        (Grade.C, Grade.B, False),
        (Grade.B, Grade.A, False),
        (Grade.D, Grade.D, True),
        (Grade.UNKNOWN, Grade.D, False),
    ],
)
async def test_the_limit_says_how_like_production_a_rehearsal_must_be(
    grade: Grade, limit: Grade, recommended: bool
) -> None:
    log, bench = ListLog(), Bench()
    made = graph(log, [FAST], bench, compare=lambda shape, found: graded(grade), limit=limit)
    conclusion = await made.run(study())
    assert (conclusion.recommendation is not None) is recommended


async def test_a_rehearsal_that_cannot_be_compared_ends_the_study_and_says_what_is_missing() -> (
    None
):
    conclusion, log, _ = await run([FAST], grade=Grade.UNKNOWN)
    assert conclusion.study.state is StudyState.FAILED
    assert conclusion.study.conclusion == (
        "The rehearsal cannot be compared with production: nothing is known, or only from fewer "
        "than 20 requests, of prefix hit rate."
    )
    assert purposes(log) == ["baseline"]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (BadInput("The trace is empty."), "The trial broke off: The trace is empty."),
        (ZeroDivisionError("by zero"), "The trial broke off: ZeroDivisionError('by zero')."),
    ],
)
async def test_a_trial_that_breaks_off_is_not_left_running(error: Exception, said: str) -> None:
    """A study once failed over a trace and left its trial RUNNING for good."""

    class Broken(Bench):
        async def rehearse(self, trial: Trial, quality: bool) -> Trial:
            raise error

    log = ListLog()
    with pytest.raises(type(error)):
        await graph(log, [FAST], Broken()).run(study())
    [trial] = log.rows.values()
    assert trial.state is TrialState.FAILED
    assert trial.ended_s is not None and trial.failure is not None
    assert (trial.failure.kind, trial.failure.sentence) == (FailureKind.INTERRUPTED, said)


async def test_a_lost_lease_writes_nothing_more() -> None:
    class Deposed(Bench):
        async def rehearse(self, trial: Trial, quality: bool) -> Trial:
            raise LeaseLost("Another controller leads.")

    log = ListLog()
    with pytest.raises(LeaseLost):
        await graph(log, [FAST], Deposed()).run(study())
    assert [trial.state for trial in log.rows.values()] == [TrialState.RUNNING]


async def test_a_given_load_is_compared_with_nothing() -> None:
    log = ListLog()
    made = graph(log, [FAST], Bench(), compare=lambda shape, found: graded(Grade.D), limit=None)
    conclusion = await made.run(study())
    assert conclusion.recommendation is not None
    assert all(trial.fidelity is None for trial in log.rows.values())


async def test_fidelity_is_found_once_and_kept_with_the_baselines_trial() -> None:
    asked: list[tuple[TrafficShape, Measurement]] = []

    def compare(shape: TrafficShape, found: Measurement) -> Fidelity:
        asked.append((shape, found))
        return graded(Grade.B)

    log, bench = ListLog(), Bench()
    await graph(log, [FAST, FASTER], bench, compare=compare).run(study())
    assert asked == [(study().shape, measured(1000.0))]
    assert {t.purpose for t in log.rows.values() if t.fidelity is not None} == {
        TrialPurpose.BASELINE
    }
    await graph(ListLog(), [FAST], Bench(), compare=compare).run(replace(study(), replicas=4))
    assert asked[-1][0] == study().shape.part(4), "a rehearsal is of one replica's part"
    # No state of the log has the one without the other.
    assert not any(
        trial.measurement is not None and trial.fidelity is None
        for version in log.versions
        for trial in version.values()
        if trial.purpose is TrialPurpose.BASELINE
    )


async def test_a_baseline_measured_by_an_older_version_is_not_refused_for_it() -> None:
    log, bench = ListLog(), Bench()
    old = records.trial(
        1,
        study_id="s1",
        purpose=TrialPurpose.BASELINE,
        config=BASELINE,
        state=TrialState.MEASURED,
        measurement=measured(1000.0),
    )
    log.add(old)
    conclusion = await graph(log, [FAST], bench).run(study())
    assert conclusion.recommendation is not None
    assert "was not looked at" in conclusion.recommendation.rationale


async def test_a_baseline_that_fails_its_fresh_run_fails_the_study() -> None:
    bench = Bench(failing=[(TrialPurpose.CONFIRM_BASELINE, BASELINE)])
    conclusion, _, _ = await run([FAST], bench)
    assert conclusion.study.state is StudyState.FAILED
    assert conclusion.recommendation is None


async def test_an_inconclusive_verdict_recommends_nothing_and_tries_no_other() -> None:
    log, bench = ListLog(), Bench()
    made = graph(log, [EngineConfig.of({"cache": "fp8"})], bench)
    conclusion = await made.run(study())
    assert conclusion.study.state is StudyState.NOTHING_BETTER
    assert "not proven better: The interval includes no effect." in conclusion.study.conclusion
    confirmed = {t.config for t in log.rows.values() if t.purpose is TrialPurpose.CONFIRM}
    assert len(confirmed) == 1


async def test_what_is_not_yet_clear_gets_further_rounds_mirrored_up_to_the_last() -> None:
    log = ListLog()
    conclusion = await graph(log, [EngineConfig.of({"cache": "fp8"})], Bench()).run(study())
    assert purposes(log)[2:] == [*ROUND, *MIRRORED]
    assert "not proven better" in conclusion.study.conclusion


async def test_each_arms_first_run_alone_has_the_evaluation() -> None:
    _, _, bench = await run([LOSSY])
    asked = [trial.purpose.value for trial, quality in bench.calls if quality]
    assert asked == ["confirm", "confirm_baseline"]


async def test_a_run_that_was_cut_off_has_its_turn_again() -> None:
    """Once: a candidate whose run is cut off twice is lost, and gives way to the next."""
    cut = Failure(kind=FailureKind.INTERRUPTED, sentence="The controller stopped.")

    class Cutting(Bench):
        async def rehearse(self, trial: Trial, quality: bool) -> Trial:
            if trial.number in cut_off:
                self.calls.append((trial, quality))
                return replace(trial, state=TrialState.FAILED, failure=cut)
            return await super().rehearse(trial, quality)

    cut_off = {5}
    conclusion, log, _ = await run([FAST], Cutting())
    assert purposes(log)[2:] == ["confirm", "confirm_baseline", *ROUND[1:]]
    assert conclusion.study.state is StudyState.RECOMMENDED
    cut_off = {4, 5}
    conclusion, log, _ = await run([FAST, FASTER], Cutting())
    assert purposes(log)[3:] == ["confirm", "confirm", *ROUND]
    assert conclusion.recommendation is not None
    assert conclusion.recommendation.config == FAST


async def test_a_baseline_that_measures_best_is_kept_without_confirmation() -> None:
    log = ListLog()
    made = graph(log, [FAST], Bench())
    conclusion = await made.run(study(baseline=FASTER))
    assert conclusion.study.state is StudyState.NOTHING_BETTER
    assert purposes(log) == ["baseline", "search"]


async def test_an_engine_that_dies_in_confirmation_gives_way_to_the_next_best() -> None:
    bench = Bench(failing=[(TrialPurpose.CONFIRM, FASTER)])
    conclusion, log, _ = await run([FAST, FASTER], bench)
    assert conclusion.recommendation is not None
    assert conclusion.recommendation.config == FAST
    assert purposes(log)[3:] == ["confirm", *ROUND]


async def test_an_engine_that_dies_in_a_later_run_loses_its_recommendation_too() -> None:
    class DiesLate(Bench):
        async def rehearse(self, trial: Trial, quality: bool) -> Trial:
            ended = await super().rehearse(trial, quality)
            if (trial.number, trial.config) != (7, FASTER):
                return ended
            failure = Failure(kind=FailureKind.DIED, sentence="The engine died.")
            return replace(ended, state=TrialState.FAILED, failure=failure, measurement=None)

    conclusion, log, _ = await run([FAST, FASTER], DiesLate())
    assert conclusion.recommendation is not None
    assert conclusion.recommendation.config == FAST
    assert purposes(log)[3:] == [*ROUND, *ROUND]


async def test_at_most_two_configs_are_confirmed() -> None:
    four = EngineConfig.of({"speed": 4})
    bench = Bench(failing=[(TrialPurpose.CONFIRM, c) for c in (FAST, FASTER, four)])
    conclusion, log, _ = await run([FAST, FASTER, four], bench)
    assert conclusion.study.state is StudyState.NOTHING_BETTER
    assert purposes(log).count("confirm") == 2


async def test_a_lossy_config_is_recommended_only_after_its_evaluation_passed() -> None:
    conclusion, _, bench = await run([FAST, LOSSY])
    assert conclusion.recommendation is not None
    assert conclusion.recommendation.config == LOSSY
    assert "Answers are as good." in conclusion.recommendation.rationale
    assert [t.purpose.value for t, quality in bench.calls if quality] == [
        "confirm",
        "confirm_baseline",
    ]


@pytest.mark.parametrize("right", [50, None])
async def test_a_lossy_config_without_a_passed_evaluation_gives_way_to_a_lossless_one(
    right: int | None,
) -> None:
    conclusion, log, _ = await run([FAST, LOSSY], Bench(right=right))
    assert conclusion.recommendation is not None
    assert conclusion.recommendation.config == FAST
    assert purposes(log)[3:] == [*ROUND, *ROUND]


async def test_what_production_already_loses_needs_no_new_evaluation() -> None:
    log, bench = ListLog(), Bench()
    made = graph(log, [LOSSY], bench)
    conclusion = await made.run(study(baseline=EngineConfig.of({"cache": "fp8"})))
    assert conclusion.study.state is StudyState.RECOMMENDED
    assert not any(quality for _, quality in bench.calls)


async def test_proposals_outside_the_space_or_tried_before_are_not_rehearsed() -> None:
    foreign = EngineConfig.of({"shell": "rm"})
    beyond = EngineConfig.of({"speed": 1000})
    same = EngineConfig.of({"speed": 1})
    _, log, _ = await run([foreign, beyond, same, FAST, FAST])
    assert [t.config for t in log.rows.values() if t.purpose is TrialPurpose.SEARCH] == [FAST]


@pytest.mark.parametrize("answer", [FAST, EngineConfig.of({"speed": 1000})])
async def test_an_ask_that_has_nothing_new_ends_the_search(answer: EngineConfig) -> None:
    log = ListLog()
    await graph(log, [FAST], Bench(), ask=lambda trials, configs, without: answer).run(study())
    assert purposes(log).count("search") == (1 if answer == FAST else 0)


async def test_the_hypothesis_names_its_author_and_a_fallback() -> None:
    log = ListLog()
    await graph(log, [FAST], Bench(), note="the model was down").run(study())
    search = next(t for t in log.rows.values() if t.purpose is TrialPurpose.SEARCH)
    assert search.hypothesis == "list: speed=2 is fast (the model was down)"


@pytest.mark.parametrize(
    ("bench", "grade"),
    [
        (Bench(), Grade.A),
        (Bench(right=50), Grade.A),
        (Bench(failing=[(TrialPurpose.CONFIRM, LOSSY)]), Grade.A),
        (Bench(failing=[(TrialPurpose.BASELINE, BASELINE)]), Grade.A),
        (Bench(), Grade.D),
    ],
    ids=["all well", "worse answers", "dies in confirmation", "baseline fails", "unlike"],
)
async def test_a_study_killed_after_any_write_comes_to_the_same_end(
    bench: Bench, grade: Grade
) -> None:
    configs = [FAST, CRASH, LOSSY, FASTER]
    whole, log, _ = await run(configs, replace(bench, calls=[]), grade=grade)
    for version in [{}, *log.versions]:
        resumed, kept, again = await run(
            configs, replace(bench, calls=[]), log=ListLog(rows=dict(version)), grade=grade
        )
        assert resumed.study.state is whole.study.state
        assert _config(resumed) == _config(whole)
        done = [t for t in version.values() if t.state is not TrialState.RUNNING]
        assert len(done) + len(again.calls) == len(log.rows)
        measured_ = [(t.purpose, t.config) for t in kept.rows.values() if t.measurement is not None]
        assert Counter(measured_) == Counter(
            (t.purpose, t.config) for t in log.rows.values() if t.measurement is not None
        )
        assert not any(t.state is TrialState.RUNNING for t in kept.rows.values())


def _config(conclusion: Conclusion) -> EngineConfig | None:
    return conclusion.recommendation and conclusion.recommendation.config


async def test_a_config_that_is_interrupted_twice_is_given_up() -> None:
    log, bench = ListLog(), Bench()
    for number, config in enumerate((BASELINE, FASTER, FASTER), start=1):
        log.add(
            Trial(
                id=f"t{number}",
                study_id="s1",
                number=number,
                purpose=TrialPurpose.SEARCH if number > 1 else TrialPurpose.BASELINE,
                config=config,
                hypothesis="",
                state=TrialState.RUNNING if number > 1 else TrialState.MEASURED,
                measurement=None if number > 1 else measured(1000.0),
            )
        )
    conclusion = await graph(log, [FASTER, FAST], bench).run(study())
    assert all(t.config != FASTER for t, _ in bench.calls)
    assert conclusion.recommendation is not None
    assert conclusion.recommendation.config == FAST


async def test_cancelling_stops_the_rehearsal_and_leaves_its_intent_in_the_log() -> None:
    log, started, stopped = ListLog(), asyncio.Event(), asyncio.Event()

    class Hanging(Bench):
        async def rehearse(self, trial: Trial, quality: bool) -> Trial:
            started.set()
            try:
                await asyncio.Event().wait()
            finally:
                stopped.set()
            raise AssertionError

    task = asyncio.create_task(graph(log, [FAST], Hanging()).run(study()))
    await asyncio.wait_for(started.wait(), 5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert stopped.is_set()
    assert [t.state for t in log.rows.values()] == [TrialState.RUNNING]


async def test_an_error_of_the_bench_goes_through_and_is_not_retried() -> None:
    calls = []

    class Broken(Bench):
        async def rehearse(self, trial: Trial, quality: bool) -> Trial:
            calls.append(trial)
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        await graph(ListLog(), [FAST], Broken()).run(study())
    assert len(calls) == 1


async def test_a_study_that_has_ended_is_not_run_again() -> None:
    ended = replace(study(), state=StudyState.FAILED)
    with pytest.raises(Conflict, match="has ended already"):
        await graph(ListLog(), [FAST], Bench()).run(ended)


async def test_what_vllm_refuses_is_noted_and_costs_neither_an_engine_nor_the_budget() -> None:
    async def resolve(config: EngineConfig) -> Resolution | Refusal | None:
        if config.get("cache") == "fp8":
            return Refusal("fp8 needs another GPU.")
        return Resolution(config)

    log, bench = ListLog(), Bench()
    refused = [EngineConfig.of({"cache": "fp8", "speed": s}) for s in (2, 3, 4)]
    made = graph(log, [*refused, FAST, FASTER], bench, resolve=resolve)
    conclusion = await made.run(study(budget=3))
    failures = [t.failure for t in log.rows.values() if t.failure is not None]
    assert [(f.kind, f.sentence) for f in failures] == 3 * [
        (FailureKind.REFUSED, "fp8 needs another GPU.")
    ]
    assert not any(trial.config in refused for trial, _ in bench.calls)
    assert conclusion.recommendation is not None
    assert conclusion.recommendation.config == FASTER


async def test_a_check_that_refuses_what_production_runs_is_not_believed() -> None:
    async def resolve(config: EngineConfig) -> Refusal:
        return Refusal("Nothing is right today.")

    log, bench = ListLog(), Bench()
    conclusion = await graph(log, [FAST], bench, resolve=resolve).run(study())
    assert bench.calls[0][0].purpose is TrialPurpose.BASELINE
    assert FAST in [trial.config for trial, _ in bench.calls]
    assert all(trial.failure is None for trial in log.rows.values() if trial.config != CRASH)
    assert conclusion.study.state is not StudyState.FAILED


async def test_two_requests_that_come_out_the_same_are_one_config() -> None:
    async def resolve(config: EngineConfig) -> Resolution:
        """This engine cannot go faster than 3, and says so only when asked."""
        speed = config.get("speed")
        if isinstance(speed, int) and speed > 3:
            capped = config.having({"speed": 3})
            return Resolution(capped, (Change("speed", speed, 3),))
        return Resolution(config)

    log, bench = ListLog(), Bench()
    four, five = EngineConfig.of({"speed": 4}), EngineConfig.of({"speed": 5})
    await graph(log, [four, FASTER, five, FAST], bench, resolve=resolve).run(study())
    searched = [t for t in log.rows.values() if t.purpose is TrialPurpose.SEARCH]
    assert [t.config for t in searched] == [four, FAST]
    assert searched[0].overridden == (Change("speed", 4, 3),)
    assert searched[1].overridden == ()


async def test_an_endless_list_of_twins_ends_the_search() -> None:
    async def resolve(config: EngineConfig) -> Resolution:
        return Resolution(BASELINE)

    log, bench = ListLog(), Bench()
    levels = [EngineConfig.of({"speed": s}) for s in (2, 3, 4, 5)]
    conclusion = await graph(log, levels, bench, resolve=resolve).run(study())
    assert purposes(log) == ["baseline"]
    assert conclusion.study.state is StudyState.NOTHING_BETTER


async def test_a_baseline_that_an_unfit_client_could_not_measure_gets_a_second_run() -> None:
    @dataclass
    class UnfitOnce(Bench):
        async def rehearse(self, trial: Trial, quality: bool) -> Trial:
            measured_ = await super().rehearse(trial, quality)
            earlier = [t for t, _ in self.calls if t.purpose is trial.purpose]
            if trial.purpose is TrialPurpose.CONFIRM_BASELINE and len(earlier) == 1:
                failure = Failure(kind=FailureKind.CLIENT_UNFIT, sentence="It sent late.")
                return replace(trial, state=TrialState.FAILED, failure=failure)
            return measured_

    conclusion, log, _ = await run([FAST], UnfitOnce())
    assert conclusion.study.state is StudyState.RECOMMENDED
    assert purposes(log)[2:] == ["confirm", "confirm_baseline", *ROUND[1:]]


@pytest.mark.parametrize(("right", "kept"), [(95, True), (50, False)])
async def test_a_way_back_to_a_default_that_may_change_answers_needs_an_evaluation(
    right: int, kept: bool
) -> None:
    """vLLM's default precision is half on some CPUs, and wrong on a few of them."""
    precision = SearchSpace(knobs=(knob("precision", ("auto", "full"), lossy_values=("auto",)),))
    full = EngineConfig.of({"precision": "full"})

    @dataclass
    class FasterInHalf(Bench):
        async def rehearse(self, trial: Trial, quality: bool) -> Trial:
            self.calls.append((trial, quality))
            half = trial.config == BASELINE
            score = QualityScore(right=right if half else 95, asked=100) if quality else None
            speed = measured(2000.0 if half else 1000.0)
            return replace(trial, state=TrialState.MEASURED, measurement=speed, quality=score)

    log, bench = ListLog(), FasterInHalf()
    made = graph(log, [BASELINE], bench, space=precision)
    conclusion = await made.run(study(baseline=full))
    assert any(quality for _, quality in bench.calls)
    assert (conclusion.recommendation is not None) is kept


TERMS = Terms(
    start_s=20.0,
    warm_up_s=5.0,
    measured_s=15.0,
    evaluation_s=50.0,
    searches=5,
    confirmations=2,
    rounds=2,
    attempts=2,
)
RUN_S = TERMS.run_s
FOUR, FIVE = (EngineConfig.of({"speed": speed}) for speed in (4, 5))


class Timed(Bench):
    """Holds the lane ``took_s`` a run, or as long as a number's own says."""

    def __init__(self, took_s: float, own: dict[int, float] | None = None, **bench: object) -> None:
        super().__init__(**bench)
        self.clock = FakeClock(1000.0)
        self._took_s = took_s
        self._own = own or {}

    async def rehearse(self, trial: Trial, quality: bool) -> Trial:
        ended = await super().rehearse(trial, quality)
        self.clock.advance(self._own.get(trial.number, self._took_s))
        return ended


async def within(
    seconds: float,
    configs: Sequence[EngineConfig],
    bench: Timed,
    log: ListLog | None = None,
) -> tuple[Conclusion, ListLog]:
    """A study that may hold the lane so long."""
    log = log or ListLog()
    lane = budget.granted(TERMS, [seconds])
    made = graph(log, configs, bench, terms=TERMS, clock=bench.clock)
    return await made.run(replace(study(), lane=lane)), log


def cost_s(log: ListLog) -> float:
    return budget.spent(tuple(log.rows.values()), TERMS.longest_s).seconds


# A run of 26 s counts as one of 40, since its load was measured for 1 s instead of 15.
ALL_ROUNDS_S = RUN_S + 7 * 40.0 + 2 * 50.0


async def test_the_search_ends_where_the_rest_is_needed_for_the_confirmation() -> None:
    exact = 3 * 26.0 + RUN_S + ALL_ROUNDS_S
    conclusion, log = await within(exact, [FAST, FASTER, FOUR, FIVE], Timed(26.0))
    assert purposes(log) == ["baseline", "search", "search", "search", *ROUND]
    assert conclusion.recommendation is not None
    assert conclusion.recommendation.config == FOUR
    conclusion, log = await within(exact - 1, [FAST, FASTER, FOUR, FIVE], Timed(26.0))
    assert purposes(log) == ["baseline", "search", "search", *ROUND]
    assert conclusion.recommendation is not None
    assert conclusion.recommendation.config == FASTER


async def test_the_least_minutes_try_one_candidate_and_prove_it() -> None:
    """Every run at its worst, so that nothing is left at the end."""
    bench = Timed(RUN_S)
    conclusion, log = await within(budget.least_s(TERMS), [FAST, FASTER], bench)
    assert purposes(log) == ["baseline", "search", *ROUND]
    assert conclusion.recommendation is not None
    assert cost_s(log) == budget.least_s(TERMS)


async def test_a_search_that_minutes_cut_short_and_that_found_nothing_says_so() -> None:
    conclusion, log = await within(budget.least_s(TERMS), [CRASH, FAST], Timed(RUN_S))
    assert purposes(log) == ["baseline", "search"]
    assert conclusion.study.state is StudyState.NOTHING_BETTER
    assert conclusion.study.conclusion == (
        "None of 0 other measured configs beat the baseline. The study's 10 min of the canary lane "
        "is spent, with too little left for another search trial and its proof; raise "
        "canary_minutes_a_study, or canary_minutes_a_day where that left it less."
    )


async def test_a_confirmation_that_cannot_be_paid_does_not_begin() -> None:
    """A candidate held the lane longer than a run may."""
    bench = Timed(26.0, {2: 500.0})
    conclusion, log = await within(900.0, [FAST], bench)
    assert purposes(log) == ["baseline", "search"]
    assert conclusion.study.state is StudyState.FAILED
    assert conclusion.recommendation is None
    assert conclusion.study.conclusion.startswith(
        "The config of trial 2 is not proven better after 0 fresh runs. The study's 15 min of the "
        "canary lane is spent, with too little left for a whole round of them; "
    )


async def test_a_round_that_cannot_be_paid_to_its_end_stops_and_proves_nothing() -> None:
    bench = Timed(26.0, {4: 500.0})
    conclusion, log = await within(760.0, [FAST], bench)
    assert purposes(log) == ["baseline", "search", "confirm", "confirm_baseline"]
    assert conclusion.study.state is StudyState.FAILED
    assert "after 2 fresh runs. The study's 13 min" in conclusion.study.conclusion


async def test_what_a_whole_round_left_open_stays_open_where_no_other_can_be_paid() -> None:
    lossy = EngineConfig.of({"cache": "fp8"})
    bench = Timed(26.0, {6: 300.0})
    conclusion, log = await within(800.0, [lossy], bench)
    assert purposes(log) == ["baseline", "search", *ROUND]
    assert conclusion.study.state is StudyState.NOTHING_BETTER
    assert "is not proven better after 4 fresh runs." in conclusion.study.conclusion


async def test_a_lossy_best_whose_evaluation_cannot_be_paid_gives_way_to_a_lossless_one() -> None:
    """The evaluations of a round cost 100 s more than the rest of it."""
    bench = Timed(26.0, {3: 380.0})
    conclusion, log = await within(26.0 + 26.0 + 380.0 + 400.0 + 99.0, [FAST, LOSSY], bench)
    assert conclusion.recommendation is not None
    assert conclusion.recommendation.config == FAST
    assert not any(quality for _, quality in bench.calls)
    assert purposes(log)[3:] == ROUND


async def test_a_baseline_that_was_cut_off_runs_again_only_where_a_proof_can_still_be_paid() -> (
    None
):
    for more, again in ((150.0, True), (149.0, False)):
        log, bench = ListLog(), Timed(26.0)
        cut = records.trial(
            1, study_id="s1", purpose=TrialPurpose.BASELINE, config=BASELINE, started_s=-9e4
        )
        log.add(cut)
        conclusion, log = await within(budget.least_s(TERMS) + more, [FAST], bench, log)
        assert (len(log.rows) > 1) is again
        assert (conclusion.recommendation is not None) is again
        if not again:
            assert conclusion.study.state is StudyState.FAILED
            assert conclusion.study.conclusion.startswith(
                "The baseline has not been measured. The study's 12 min of the canary lane is spent"
            )


async def test_every_interrupted_prefix_keeps_within_the_minutes() -> None:
    """Killed at any line and gone on with, what the lane was held stays within the bound."""
    seconds = 3 * 26.0 + RUN_S + ALL_ROUNDS_S
    _, whole = await within(seconds, [FAST, FASTER, FOUR], Timed(26.0))
    for rows in whole.versions:
        log, bench = ListLog(dict(rows)), Timed(RUN_S)
        bench.clock.advance(40.0 * len(rows))
        conclusion, log = await within(seconds, [FAST, FASTER, FOUR], bench, log)
        assert cost_s(log) <= seconds
        assert conclusion.study.state.ended
        assert conclusion.recommendation is not None or "is spent" in conclusion.study.conclusion


async def test_without_a_bound_nothing_is_cut_short() -> None:
    log, bench = ListLog(), Timed(9e9)
    lane = budget.granted(TERMS, [None, None])
    made = graph(log, [FAST, FASTER], bench, terms=TERMS, clock=bench.clock)
    await made.run(replace(study(), lane=lane))
    assert purposes(log) == ["baseline", "search", "search", *ROUND]


class Locked(ListLog):
    """A log whose database is locked at first when an outcome is to be saved."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.left = times

    def save(self, trial: Trial) -> None:
        if self.left > 0:
            self.left -= 1
            raise Temporary("The database is locked.")
        super().save(trial)


async def test_what_a_run_cost_is_not_lost_to_a_log_that_is_locked_for_a_while() -> None:
    bench, log = Bench(), Locked(times=SAVES)
    await graph(log, [], bench, clock=FakeClock(1000.0)).run(study(budget=1))
    baselines = [t for t, _ in bench.calls if t.purpose is TrialPurpose.BASELINE]
    assert len(baselines) == 1


async def test_a_log_that_stays_locked_breaks_the_study_off() -> None:
    with pytest.raises(Temporary):
        await graph(Locked(times=1000), [], Bench(), clock=FakeClock(1000.0)).run(study())


async def test_only_a_recommendation_is_explained_and_after_what_code_says() -> None:
    asked: list[tuple[EngineConfig, str]] = []

    async def explain(study: Study, found: Recommendation, diagnosis: str) -> str:
        asked.append((found.config, diagnosis))
        return "model m explains: It overlaps."

    found, log, _ = await run([FAST])
    plain = found.recommendation
    told = (await graph(ListLog(), [FAST], Bench(), explain=explain).run(study())).recommendation
    assert plain is not None and told is not None
    assert told.rationale == f"{plain.rationale} model m explains: It overlaps."
    assert replace(told, rationale=plain.rationale) == plain
    assert asked == [(FAST, "Nothing limits it.")]
    assert {trial.diagnosis for trial in log.rows.values()} == {"", "Nothing limits it."}

    await graph(ListLog(), [], Bench(), explain=explain).run(study())
    assert len(asked) == 1
