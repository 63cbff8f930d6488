"""What every LoadGenerator keeps to: the two real ones on a real server, and the fake."""

from collections import defaultdict
from collections.abc import AsyncIterator
from operator import attrgetter

import pytest

from canary.loadgen import HttpLoadGenerator, ProcessLoadGenerator
from domain.load import (
    Arrival,
    LoadPlan,
    LoadResult,
    RequestError,
    RequestRecord,
    RequestSpec,
    Session,
)
from domain.ports import LoadGenerator
from tests.fakes.loadgen import EngineBehaviour, FakeLoadGenerator
from tests.fakes.streaming_engine import StreamingEngine, steady

DEAD = "http://127.0.0.1:9"
SLACK_S = 0.001


@pytest.fixture
async def engine() -> AsyncIterator[StreamingEngine]:
    async with StreamingEngine(steady(ttft_s=0.02, itl_s=0.01)) as running:
        yield running


@pytest.fixture(params=["http", "process", "shards", "fake"])
def generator(request: pytest.FixtureRequest) -> LoadGenerator:
    if request.param == "fake":
        dead = EngineBehaviour(fail_every=1, error=RequestError.CONNECT)
        alive = EngineBehaviour(ttft_s=0.02, tpot_s=0.01)
        return FakeLoadGenerator({DEAD: dead}, default=alive)
    if request.param == "http":
        return HttpLoadGenerator()
    return ProcessLoadGenerator(shards=3 if request.param == "shards" else 1)


def plan(
    *,
    sessions: int,
    turns: int = 1,
    osl: int = 4,
    arrival: Arrival = Arrival.CLOSED,
    duration_s: float = 20.0,
) -> LoadPlan:
    spec = RequestSpec(prompt=tuple(range(300, 316)), osl=osl, think_s=0.02)
    return LoadPlan(
        level="3 streams",
        arrival=arrival,
        concurrency=3,
        sessions=tuple(
            Session(name=f"s{i}", turns=(spec,) * turns, start_s=0.05 * i) for i in range(sessions)
        ),
        warm_up_s=0.1,
        duration_s=duration_s,
        seed=11,
    )


def never() -> bool:
    return False


async def test_a_plan_that_runs_out_ends_early_with_every_request_recorded(
    generator: LoadGenerator, engine: StreamingEngine
) -> None:
    result = await generator.run(plan(sessions=5, turns=3), engine.url, "m", never)
    assert (result.plan_level, result.seed, result.warm_up_s) == ("3 streams", 11, 0.1)
    assert result.duration_s < 20
    assert sorted((r.session, r.turn) for r in result.records) == [
        (f"s{i}", turn) for i in range(5) for turn in range(3)
    ]
    assert {r.error for r in result.records} == {None}
    assert {(r.isl, r.osl) for r in result.records} == {(16, 4)}
    assert all(r.latency.ttft_ms >= 20 - SLACK_S for r in result.records)


async def test_turns_follow_each_other_with_their_pause_and_streams_stay_in_bounds(
    generator: LoadGenerator, engine: StreamingEngine
) -> None:
    result = await generator.run(plan(sessions=7, turns=2), engine.url, "m", never)
    assert 1 < most_at_once(result) <= 3
    ends = defaultdict(list)
    for record in sorted(result.records, key=lambda r: r.turn):
        if record.turn:
            assert record.sent_s >= ends[record.session][-1] + 0.02 - SLACK_S
        ends[record.session].append(record.end_s)


async def test_open_sessions_start_at_their_own_times(
    generator: LoadGenerator, engine: StreamingEngine
) -> None:
    result = await generator.run(
        plan(sessions=8, osl=50, arrival=Arrival.OPEN), engine.url, "m", never
    )
    due = {record.session: record.scheduled_s for record in result.records}
    assert due == pytest.approx({f"s{i}": 0.05 * i + 0.02 for i in range(8)})
    assert all(record.sent_s >= record.scheduled_s for record in result.records)
    assert most_at_once(result) > 3
    assert result.arrival is Arrival.OPEN


async def test_the_end_cuts_off_what_is_under_way(
    generator: LoadGenerator, engine: StreamingEngine
) -> None:
    result = await generator.run(
        plan(sessions=3, osl=10_000, duration_s=2.0), engine.url, "m", never
    )
    assert [record.error for record in result.records] == [RequestError.CANCELLED] * 3
    assert not any(record.failed for record in result.records)
    assert result.duration_s == 2.0


async def test_stop_ends_a_run_early(generator: LoadGenerator, engine: StreamingEngine) -> None:
    asked = 0

    def third_time() -> bool:
        nonlocal asked
        asked += 1
        return asked >= 3

    result = await generator.run(plan(sessions=3, osl=10_000), engine.url, "m", third_time)
    assert result.duration_s < 20
    assert {record.error for record in result.records} <= {RequestError.CANCELLED}


async def test_each_request_is_heard_of_when_it_ended_and_once(
    generator: LoadGenerator, engine: StreamingEngine
) -> None:
    """Of a run that is stopped by what was heard, also what was cut off then."""
    heard: list[RequestRecord] = []

    def enough() -> bool:
        return len(heard) >= 10

    result = await generator.run(plan(sessions=400), engine.url, "m", enough, heard.append)
    assert 10 <= len(heard) < 400
    assert sorted(heard, key=attrgetter("session")) == sorted(
        result.records, key=attrgetter("session")
    )


async def test_a_dead_engine_shows_in_the_records(generator: LoadGenerator) -> None:
    result = await generator.run(plan(sessions=4), DEAD, "m", never)
    assert [record.error for record in result.records] == [RequestError.CONNECT] * 4


def most_at_once(result: LoadResult) -> int:
    changes = [(r.sent_s, 1) for r in result.records] + [(r.end_s, -1) for r in result.records]
    most = now = 0
    for _, change in sorted(changes):
        now += change
        most = max(most, now)
    return most
