"""A plan dealt out is the same load, and what comes back is one result."""

from dataclasses import replace

import pytest

from canary.loadgen.options import Budget, Options
from canary.loadgen.saturation import Limits
from canary.loadgen.shards import deal, merge, shards_for
from domain.load import (
    Arrival,
    ClientHealth,
    LoadPlan,
    LoadResult,
    RequestSpec,
    Session,
    StopCause,
    Stopped,
)
from tests.fakes.loadgen import EngineBehaviour, simulate


def plan(
    arrival: Arrival = Arrival.CLOSED, *, sessions: int = 11, concurrency: int = 7
) -> LoadPlan:
    spec = RequestSpec(prompt=(1, 2), osl=2)
    return LoadPlan(
        level="test",
        arrival=arrival,
        concurrency=concurrency,
        sessions=tuple(
            Session(name=f"s{i}", turns=(spec,), start_s=float(sessions - i))
            for i in range(sessions)
        ),
        warm_up_s=0.0,
        duration_s=100.0,
        seed=3,
    )


@pytest.mark.parametrize("arrival", Arrival)
def test_the_shares_add_up_to_the_plan(arrival: Arrival) -> None:
    options = Options(budget=Budget(requests=10, tokens=31), saturation=Limits(under_way=8))
    shares = deal(plan(arrival), options, 3)
    sessions = [session for share in shares for session in share.plan.sessions]
    assert {s.name for s in sessions} == {f"s{i}" for i in range(11)}
    assert sorted(len(share.plan.sessions) for share in shares) == [3, 4, 4]
    assert sum(share.plan.concurrency for share in shares) == 7
    assert sum(share.options.budget.requests for share in shares) == 10
    assert sum(share.options.budget.tokens for share in shares) == 31
    assert sum(share.options.saturation.under_way for share in shares) == 8
    assert all(share.options.budget.seconds is None for share in shares)


def test_an_open_plan_is_dealt_in_the_order_of_its_times() -> None:
    shares = deal(plan(Arrival.OPEN, sessions=4), Options(), 2)
    assert [[s.start_s for s in share.plan.sessions] for share in shares] == [
        [1.0, 3.0],
        [2.0, 4.0],
    ]


@pytest.mark.parametrize(
    ("arrival", "sessions", "concurrency", "shares"),
    [
        (Arrival.CLOSED, 11, 2, 2),
        (Arrival.CLOSED, 1, 9, 1),
        (Arrival.OPEN, 3, 1, 3),
        (Arrival.OPEN, 0, 1, 1),
    ],
)
def test_no_client_is_left_without_work(
    arrival: Arrival, sessions: int, concurrency: int, shares: int
) -> None:
    dealt = deal(plan(arrival, sessions=sessions, concurrency=concurrency), Options(), 4)
    assert len(dealt) == shares


@pytest.mark.parametrize(
    ("streams", "cores", "shards"),
    [(1, 16, 1), (256, 16, 1), (257, 16, 2), (2000, 16, 8), (2000, 4, 3), (2000, 2, 1), (9, 1, 1)],
)
def test_there_are_as_many_clients_as_the_streams_ask_for_and_the_cores_carry(
    streams: int, cores: int, shards: int
) -> None:
    assert shards_for(plan(concurrency=streams), cores) == shards


def results() -> list[LoadResult]:
    return [
        simulate(share.plan, EngineBehaviour(ttft_s=0.1 * (i + 1)))
        for i, share in enumerate(deal(plan(), Options(), 2))
    ]


def test_a_merged_result_has_all_records_in_order_and_the_worst_health() -> None:
    one, other = results()
    fault = "The load client sent 90 ms late."
    one = replace(one, health=ClientHealth(send_lag_ms=1, loop_lag_ms=9, cpu=0.1))
    other = replace(other, health=ClientHealth(send_lag_ms=90, loop_lag_ms=2, cpu=0.2, fault=fault))
    merged = merge([one, other])
    assert merged.health == ClientHealth(send_lag_ms=90, loop_lag_ms=9, cpu=0.2, fault=fault)
    assert set(merged.records) == {*one.records, *other.records}
    ends = [record.end_s for record in merged.records]
    assert ends == sorted(ends)
    assert merged.duration_s == max(one.duration_s, other.duration_s)
    assert merged.stopped is None
    assert merge([one]) is one


def test_the_one_that_gave_up_says_why_all_were_stopped() -> None:
    asked = Stopped(cause=StopCause.ASKED, sentence="The load was asked to stop after 9.0 s.")
    gave_up = Stopped(cause=StopCause.OVER_SATURATED, sentence="Requests under way grew.")
    one, other = results()
    merged = merge([replace(one, stopped=asked), replace(other, stopped=gave_up)])
    assert merged.stopped == Stopped(
        cause=StopCause.OVER_SATURATED,
        sentence="Requests under way grew. That is one of 2 load clients.",
    )
