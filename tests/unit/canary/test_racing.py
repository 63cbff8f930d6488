"""When a trial under way is given up: never one that may win, soon one that cannot."""

from collections.abc import Iterator
from dataclasses import replace
from random import Random

import pytest

from canary.racing import LEAST_REQUESTS, Bar, Race
from domain.load import Arrival, LoadPlan, RequestError, RequestRecord
from domain.slo import SLO
from domain.study import Objective

SLO_500 = SLO(ttft_ms=500.0)
PLAN = LoadPlan(
    level="10 streams",
    arrival=Arrival.CLOSED,
    concurrency=10,
    sessions=(),
    warm_up_s=5.0,
    duration_s=105.0,
    seed=3,
)
TOKENS = 100


def ended(
    rate_rps: float,
    *,
    until_s: float = 105.0,
    good: float = 1.0,
    error: RequestError | None = None,
    seed: int = 1,
) -> Iterator[RequestRecord]:
    """Requests that end at random times, ``rate_rps`` of them a second, from the run's start."""
    random, at_s = Random(seed), 0.0
    while (at_s := at_s + random.expovariate(rate_rps)) < until_s:
        sent_s = at_s - 2.0
        ttft_s = 0.1 if random.random() < good else 0.9
        yield RequestRecord(
            session="s",
            turn=0,
            scheduled_s=sent_s,
            sent_s=sent_s,
            end_s=at_s,
            isl=10,
            osl=TOKENS,
            first_s=sent_s + ttft_s,
            last_s=at_s,
            error=error,
        )


def lost_at(
    records: Iterator[RequestRecord], bar: Bar | None, plan: LoadPlan = PLAN
) -> tuple[float | None, str]:
    """When the race was lost, in seconds of the run, and why."""
    race = Race(plan, SLO_500, bar)
    for record in records:
        race.heard(record)
        if race.is_lost():
            return record.end_s, race.lost
    return None, race.lost


def throughput(tok_s: float) -> Bar:
    return Bar(objective=Objective.THROUGHPUT, value=tok_s)


def latency(stream_rps: float) -> Bar:
    return Bar(objective=Objective.LATENCY, value=stream_rps)


def goodput(tok_s: float) -> Bar:
    return Bar(objective=Objective.GOODPUT, value=tok_s)


@pytest.mark.parametrize("seed", range(20))
def test_half_as_fast_is_lost_well_before_the_end(seed: int) -> None:
    at_s, why = lost_at(ended(5.0, seed=seed), throughput(1000.0))
    assert at_s is not None and at_s < 45.0
    assert why.startswith("Ended after ") and "it cannot win" in why
    assert "99% interval" in why and "1000 are needed" in why


@pytest.mark.parametrize(("tok_s", "most"), [(1000 / 0.9, 3), (1000.0, 25)])
def test_one_that_may_win_runs_to_its_end(tok_s: float, most: int) -> None:
    """Of 100 that are as good as the best, whose bar is a tenth lower, hardly one is given up; of
    those that are worth just the bar, and would not win, most are measured whole."""
    bar = Bar.below(1000 / 0.9, Objective.THROUGHPUT)
    given_up = [lost_at(ended(tok_s / TOKENS, seed=seed), bar)[0] for seed in range(100)]
    assert sum(at_s is not None for at_s in given_up) <= most


def test_misses_of_the_slo_lose_a_race_for_goodput_alone() -> None:
    records = list(ended(10.0, good=0.5))
    assert lost_at(iter(records), goodput(900.0))[0] is not None
    assert lost_at(iter(records), throughput(900.0))[0] is None


def slower(records: Iterator[RequestRecord], by_s: float) -> list[RequestRecord]:
    """The same, sent and due earlier."""
    return [
        replace(each, sent_s=each.sent_s - by_s, scheduled_s=each.scheduled_s - by_s)
        for each in records
    ]


def test_a_race_for_latency_is_lost_by_waiting_alone() -> None:
    """They take two seconds each."""
    records = list(ended(10.0))
    assert lost_at(iter(records), latency(0.9 * 0.5))[0] is None
    at_s, why = lost_at(iter(slower(iter(records), 2.0)), latency(0.9 * 0.5))
    assert at_s is not None and at_s < 45.0
    assert "at most 0.25 requests/s a stream" in why and "0.45 are needed" in why
    assert lost_at(iter(slower(iter(records), 2.0)), throughput(900.0))[0] is None


def test_to_fail_at_once_wins_no_race_for_latency() -> None:
    records = [
        replace(each, error=RequestError.HTTP_429, sent_s=each.end_s, scheduled_s=each.end_s)
        if n % 2
        else each
        for n, each in enumerate(ended(10.0))
    ]
    assert lost_at(iter(records), latency(0.9 * 0.5))[0] is not None


def test_a_race_for_latency_in_which_nobody_waited_is_not_lost() -> None:
    at_once = [replace(each, sent_s=each.end_s, scheduled_s=each.end_s) for each in ended(10.0)]
    at_once = [replace(each, first_s=each.end_s, last_s=each.end_s) for each in at_once]
    assert lost_at(iter(at_once), latency(1e9))[0] is None


def test_failed_requests_are_no_tokens() -> None:
    at_s, _ = lost_at(ended(10.0, error=RequestError.HTTP_5XX), throughput(100.0))
    assert at_s is not None


def test_lateness_against_the_schedule_counts_in_an_open_plan() -> None:
    late = [
        RequestRecord(
            session="s",
            turn=0,
            scheduled_s=record.sent_s - 3.0,
            sent_s=record.sent_s,
            end_s=record.end_s,
            isl=10,
            osl=TOKENS,
            first_s=record.first_s,
            last_s=record.last_s,
        )
        for record in ended(10.0)
    ]
    opened = LoadPlan(
        level="10 requests/s",
        arrival=Arrival.OPEN,
        concurrency=1,
        sessions=(),
        warm_up_s=5.0,
        duration_s=105.0,
        seed=3,
    )
    assert lost_at(iter(late), latency(0.45), opened)[0] is not None
    assert lost_at(iter(late), latency(0.45))[0] is None
    assert lost_at(iter(late), goodput(500.0), opened)[0] is not None
    assert lost_at(iter(late), goodput(500.0))[0] is None


def test_too_few_requests_decide_nothing_and_the_warm_up_counts_for_nothing() -> None:
    few = list(ended(1.0, until_s=5.0 + 0.9 * LEAST_REQUESTS))
    assert lost_at(iter(few), throughput(1e9))[0] is None
    warming = ended(50.0, until_s=5.0)
    assert lost_at(warming, throughput(1e9))[0] is None


def test_the_queue_of_a_runs_start_loses_no_race() -> None:
    """64 answers of 50 s each, all sent at once: the first wave misses the SLO, and no other."""

    def waves() -> Iterator[RequestRecord]:
        for wave in range(4):
            for stream in range(64):
                sent_s = 50.0 * wave + stream / 64
                ttft_s = 4.0 * stream / 64 if wave == 0 else 0.1
                yield RequestRecord(
                    session=str(stream),
                    turn=wave,
                    scheduled_s=sent_s,
                    sent_s=sent_s,
                    end_s=sent_s + 50.0,
                    isl=10,
                    osl=1500,
                    first_s=sent_s + ttft_s,
                    last_s=sent_s + 50.0,
                )

    at_s, _ = lost_at(waves(), goodput(0.9 * 64 * 1500 / 50))
    assert at_s is None


def test_a_race_for_cost_is_never_lost_at_the_live_load() -> None:
    """What is slow now may be the best engine for a heavier one."""
    assert lost_at(ended(1.0), Bar(objective=Objective.COST, value=1e9))[0] is None


@pytest.mark.parametrize("objective", [each for each in Objective if each is not Objective.COST])
def test_where_all_fails_every_race_is_lost(objective: Objective) -> None:
    bar = Bar(objective=objective, value=0.01)
    assert lost_at(ended(10.0, error=RequestError.HTTP_5XX), bar)[0] is not None


def test_without_a_bar_nothing_is_lost() -> None:
    assert lost_at(ended(0.5, until_s=1000.0), None) == (None, "")


def test_the_bar_leaves_room_for_what_two_starts_differ() -> None:
    assert Bar.below(200.0, Objective.GOODPUT) == Bar(objective=Objective.GOODPUT, value=180.0)


def test_once_lost_it_stays_lost() -> None:
    race = Race(PLAN, SLO_500, throughput(1e6))
    for record in ended(5.0):
        race.heard(record)
    assert race.is_lost()
    why = race.lost
    for record in ended(5000.0, until_s=20.0):
        race.heard(record)
    assert race.is_lost() and race.lost == why
