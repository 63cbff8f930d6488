"""What a study may cost and did, at the bounds, over a day's end and by clocks that jump."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from canary import budget
from canary.budget import Run, Terms
from domain.study import (
    Cost,
    Failure,
    FailureKind,
    LaneBudget,
    Trial,
    TrialPurpose,
    TrialState,
    lane_time,
)
from tests.fakes import records

TERMS = Terms(
    start_s=20.0,
    warm_up_s=5.0,
    measured_s=15.0,
    evaluation_s=50.0,
    searches=3,
    confirmations=2,
    rounds=2,
    attempts=2,
)
RUN_S = 100.0
DAY_S = 86_400.0


def bounded(seconds: float) -> LaneBudget:
    return budget.granted(TERMS, [seconds])


def run(number: int, took_s: float, purpose: TrialPurpose = TrialPurpose.SEARCH) -> Trial:
    """A measured one; the load measured for a second of it."""
    return records.trial(
        number,
        purpose=purpose,
        state=TrialState.MEASURED,
        measurement=records.measured(1000.0),
        started_s=1000.0,
        ended_s=1000.0 + took_s,
    )


def baseline(took_s: float) -> Trial:
    return run(1, took_s, TrialPurpose.BASELINE)


def failed(kind: FailureKind, started_s: float, ended_s: float | None) -> Trial:
    failure = Failure(kind=kind, sentence="It is over.")
    return replace(
        run(9, 0.0),
        state=TrialState.FAILED,
        measurement=None,
        failure=failure,
        started_s=started_s,
        ended_s=ended_s,
    )


def test_the_most_a_study_costs_is_every_run_at_its_worst_and_made_twice() -> None:
    runs, evaluations = 2 * (3 + 2 * 2 * 4), 2 * 2 * 2
    assert TERMS.run_s == RUN_S
    assert budget.most(TERMS) == Cost(starts=runs, seconds=runs * RUN_S + evaluations * 50.0)


@pytest.mark.parametrize(
    ("bounds", "seconds", "is_bounded"),
    [
        ([], 4200.0, False),
        ([None, None], 4200.0, False),
        ([1800.0, None], 1800.0, True),
        ([1800.0, 700.0], 700.0, True),
        ([1e9, None], 4200.0, True),
    ],
)
def test_a_study_gets_its_most_within_each_bound(
    bounds: list[float | None], seconds: float, is_bounded: bool
) -> None:
    found = budget.granted(TERMS, bounds)
    assert (found.most.seconds, found.bounded) == (seconds, is_bounded)
    assert found.run_s == RUN_S + 50.0


@pytest.mark.parametrize(
    ("trial", "seconds"),
    [
        (run(1, 70.0), 70.0),
        # A run that took longer than it should took it all the same.
        (run(1, 500.0), 500.0),
        # The clock went back during it.
        (run(1, -3.0), 150.0),
        (failed(FailureKind.DIED, 0.0, 30.0), 30.0),
        (failed(FailureKind.REFUSED, 0.0, 30.0), 0.0),
        # Cut off, and found so within the run's time, or after a night.
        (failed(FailureKind.INTERRUPTED, 0.0, 30.0), 30.0),
        (failed(FailureKind.INTERRUPTED, 0.0, 30_000.0), 150.0),
    ],
)
def test_what_a_run_cost(trial: Trial, seconds: float) -> None:
    starts = 0 if seconds == 0.0 else 1
    assert budget.spent([trial], 150.0) == Cost(starts=starts, seconds=seconds)


def test_a_run_under_way_costs_up_to_now_and_no_more_than_its_longest() -> None:
    under_way = replace(run(1, 0.0), ended_s=None)
    assert budget.spent([under_way], 150.0, now=1040.0).seconds == 40.0
    assert budget.spent([under_way], 150.0, now=9000.0).seconds == 150.0
    assert budget.spent([under_way], 150.0, now=900.0).seconds == 150.0
    assert budget.spent([under_way], 150.0).seconds == 150.0


def test_what_nobody_reckoned_costs_what_its_rows_say() -> None:
    away = failed(FailureKind.INTERRUPTED, 0.0, 30_000.0)
    assert budget.spent([away, run(1, -3.0)], None) == Cost(starts=2, seconds=30_000.0)


@pytest.mark.parametrize(
    ("found", "seconds"),
    [
        (Run(100.0, 160.0), 60.0),
        (Run(-40.0, 20.0), 20.0),
        (Run(-60.0, 0.0), 0.0),
        (Run(-90.0, -30.0), 0.0),
        (Run(-40.0, None), 110.0),
        (Run(-40.0, -50.0), 110.0),
        (Run(5.0, 60.0, refused=True), 0.0),
        (Run(-40.0, 9000.0, cut_off=True), 110.0),
        # Its clock was ahead: it has not begun by today's.
        (Run(9 * DAY_S, 9 * DAY_S + 60.0), 60.0),
    ],
)
def test_a_days_minutes_end_with_the_day(found: Run, seconds: float) -> None:
    assert budget.spent_since([found], 0.0, 150.0) == seconds


@given(
    st.lists(
        st.builds(
            Run,
            st.floats(-1e6, 1e6),
            st.none() | st.floats(-1e6, 1e6),
            st.booleans(),
            st.booleans(),
        )
    ),
    st.floats(-1e6, 1e6),
    st.floats(0.0, 1e6),
)
def test_a_later_beginning_of_the_day_never_finds_more(
    runs: list[Run], since_s: float, later_s: float
) -> None:
    earlier = budget.spent_since(runs, since_s, 150.0)
    assert 0.0 <= budget.spent_since(runs, since_s + later_s, 150.0) <= earlier + 1e-6


def test_the_baseline_begins_where_a_candidate_can_still_be_tried_and_proven() -> None:
    assert budget.least_s(TERMS) == 6 * RUN_S
    assert budget.baseline_fits(bounded(600.0), TERMS, [])
    assert not budget.baseline_fits(bounded(599.0), TERMS, [])
    cut = failed(FailureKind.INTERRUPTED, 0.0, 30.0)
    assert budget.baseline_fits(bounded(630.0), TERMS, [cut])
    assert not budget.baseline_fits(bounded(629.0), TERMS, [cut])


@pytest.mark.parametrize(
    ("seconds", "paid"),
    [
        # The baseline took 26 s, 40 as if measured for 15 s: a round is then 100 and three of 40.
        (26.0 + 100.0 + 220.0, 1),
        (26.0 + 100.0 + 219.0, 0),
        # All rounds with evaluations: 100, seven of 40 and two of 50.
        (26.0 + 100.0 + 480.0, 1),
        (26.0 + 100.0 + 480.0 + 39.0, 1),
        (26.0 + 100.0 + 480.0 + 40.0, 2),
        (9000.0, 5),
    ],
)
def test_search_trials_leave_enough_for_the_confirmation(seconds: float, paid: int) -> None:
    assert budget.searches_paid(bounded(seconds), TERMS, [baseline(26.0)], 5) == paid


def test_once_a_candidate_was_measured_a_further_one_must_leave_all_rounds() -> None:
    trials = [baseline(26.0), run(2, 26.0)]
    assert budget.searches_paid(bounded(52.0 + 580.0), TERMS, trials, 5) == 1
    assert budget.searches_paid(bounded(52.0 + 579.0), TERMS, trials, 5) == 0


def test_the_dearest_measured_run_is_the_estimate_and_never_more_than_the_worst() -> None:
    slow = [baseline(26.0), run(2, 56.0)]
    assert budget.confirmation_s(bounded(9e9), TERMS, slow, 4, 0) == 100.0 + 3 * 70.0
    for odd in (run(3, 900.0), run(3, -5.0)):
        assert budget.confirmation_s(bounded(9e9), TERMS, [*slow, odd], 4, 0) == 400.0
    assert budget.confirmation_s(bounded(9e9), TERMS, [], 4, 2) == 500.0


def test_the_time_at_heavier_loads_is_measured_time() -> None:
    """30 s with three loads of 5 s of warm-up and a second: a whole one takes 12 s and 20 s."""
    trial = run(2, 30.0)
    assert trial.measurement is not None
    one = trial.measurement
    loaded = replace(trial, measurement=replace(one, heavier=(one, one)))
    assert budget.confirmation_s(bounded(9e9), TERMS, [loaded], 4, 0) == 100.0 + 3 * 32.0
    many = replace(TERMS, loads=3)
    assert (many.run_s, many.fresh_s) == (260.0, 100.0)
    assert budget.confirmation_s(bounded(9e9), many, [loaded], 4, 0) == 100.0 + 3 * 32.0
    cost = replace(many, fresh_loads=3)
    assert budget.confirmation_s(bounded(9e9), cost, [loaded], 4, 0) == 260.0 + 3 * 72.0


@pytest.mark.parametrize(
    ("spare_s", "at_once"), [(99.0, 1), (100.0, 1), (199.0, 1), (200.0, 2), (300.0, 3), (9e9, 3)]
)
def test_trials_begin_together_only_where_each_may_take_its_longest(
    spare_s: float, at_once: int
) -> None:
    trials = [baseline(26.0), run(2, 26.0)]
    proof_s = budget.confirmation_s(bounded(9e9), TERMS, trials, 8, 2)
    found = budget.searches_at_once(bounded(52.0 + proof_s + spare_s), TERMS, trials, 3)
    assert found == at_once


def test_nothing_begins_that_is_not_paid_and_all_where_there_is_no_bound() -> None:
    assert budget.searches_at_once(bounded(9e9), TERMS, [], 0) == 0
    assert budget.searches_at_once(None, None, [], 3) == 3
    assert budget.searches_at_once(bounded(9e9), None, [], 3) == 3


def test_the_rest_of_a_round_is_paid_whole_or_not_begun() -> None:
    trials = [baseline(26.0)]
    assert budget.round_paid(bounded(26.0 + 220.0), TERMS, trials, 4, 0)
    assert not budget.round_paid(bounded(26.0 + 219.0), TERMS, trials, 4, 0)
    assert not budget.round_paid(bounded(26.0 + 220.0), TERMS, trials, 4, 2)
    assert budget.round_paid(bounded(26.0 + 100.0), TERMS, trials, 1, 0)
    assert not budget.round_paid(bounded(26.0 + 99.0), TERMS, trials, 1, 0)


def test_without_a_bound_everything_is_paid() -> None:
    free = budget.granted(TERMS, [])
    dear = [baseline(1e9)]
    for lane, terms in ((free, TERMS), (None, TERMS), (bounded(0.0), None)):
        assert budget.baseline_fits(lane, terms, dear)
        assert budget.searches_paid(lane, terms, dear, 7) == 7
        assert budget.round_paid(lane, terms, dear, 4, 2)


@given(
    st.lists(st.floats(1.0, 100.0), min_size=30, max_size=30),
    st.floats(600.0, 5000.0),
    st.lists(st.booleans(), min_size=30, max_size=30),
)
def test_no_search_goes_beyond_the_bound_and_the_first_round_is_always_left(
    took_s: list[float], seconds: float, dies: list[bool]
) -> None:
    """Runs that take no longer than they may; any of the candidates may die."""
    lane = bounded(seconds)
    trials: list[Trial] = [baseline(took_s[0])]
    for number, (took, dead) in enumerate(zip(took_s[1:], dies[1:], strict=True), start=2):
        if not budget.searches_paid(lane, TERMS, trials, 1):
            break
        ended = run(number, took)
        trials.append(
            replace(failed(FailureKind.DIED, 1000.0, 1000.0 + took), number=number)
            if dead
            else ended
        )
    left_s = seconds - budget.spent(trials, lane.run_s).seconds
    assert left_s >= 0
    if any(t.purpose is TrialPurpose.SEARCH and t.measurement for t in trials):
        assert budget.round_paid(lane, TERMS, trials, 1, 0)


@pytest.mark.parametrize(
    ("cost", "words"),
    [
        (Cost(starts=14, seconds=2280.0), "14 engine starts, 38 min"),
        (Cost(starts=1, seconds=59.4), "1 engine start, 59 s"),
        (Cost(starts=0, seconds=0.0), "0 engine starts, 0 s"),
    ],
)
def test_a_cost_in_words(cost: Cost, words: str) -> None:
    assert str(cost) == words


def test_a_minute_begins_where_seconds_would_round_to_it() -> None:
    assert [lane_time(s) for s in (59.49, 59.5, 89.0, 91.0)] == ["59 s", "1 min", "1 min", "2 min"]
