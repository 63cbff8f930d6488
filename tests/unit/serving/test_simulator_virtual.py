"""The virtual lane: life cycle of an engine, load plans, faults; all in virtual time."""

import pytest

from domain.engine import EngineConfig, Value
from domain.errors import Conflict, NotFound
from domain.fleet import Replica, ReplicaState, Role, Slot
from domain.load import Arrival, LoadPlan, LoadResult, RequestError, RequestSpec, Session
from domain.study import FailureKind
from serving.simulator import faults, profile
from serving.simulator.virtual import VirtualClock, VirtualLane

SLOT = Slot(name="canary", role=Role.CANARY, port=8000)
OTHER = Slot(name="other", role=Role.CANARY, port=8001)
DEMO = profile.load("demo-hybrid")


class Bench:
    """One lane and its clock."""

    def __init__(self, fault: str = "", seed: int = 1) -> None:
        self.clock = VirtualClock(1_000_000.0)
        injection = faults.parse(fault) if fault else None
        self.lane = VirtualLane(DEMO, self.clock, seed, injection)

    async def start(self, **values: Value) -> Replica:
        await self.lane.start(SLOT, EngineConfig.of(values))
        await self.clock.sleep(DEMO.start_s)
        [replica] = await self.lane.observe()
        return replica

    async def run(self, plan: LoadPlan, stop_after: int = 10**9) -> LoadResult:
        asked = iter(range(stop_after + 1))
        return await self.lane.run(plan, SLOT.url, "model", lambda: next(asked) == stop_after)


def plan(
    *sessions: Session, arrival: Arrival = Arrival.CLOSED, streams: int = 8, duration_s: float = 60
) -> LoadPlan:
    return LoadPlan(
        level=f"{streams} streams",
        arrival=arrival,
        concurrency=streams,
        sessions=sessions,
        warm_up_s=0.0,
        duration_s=duration_s,
        seed=5,
    )


def single(count: int, *, isl: int = 64, osl: int = 16, every_s: float = 0.0) -> list[Session]:
    """Sessions of one turn each with prompts that share nothing."""
    return [
        Session(
            name=f"s{i}",
            turns=(RequestSpec(prompt=tuple(range(i * isl, (i + 1) * isl)), osl=osl),),
            start_s=i * every_s,
        )
        for i in range(count)
    ]


async def test_an_engine_is_starting_then_warm_then_gone() -> None:
    bench = Bench()
    await bench.lane.start(SLOT, EngineConfig())
    [replica] = await bench.lane.observe()
    assert replica.state is ReplicaState.STARTING
    await bench.clock.sleep(DEMO.start_s)
    [replica] = await bench.lane.observe()
    assert (replica.state, replica.started_s) == (ReplicaState.WARM, 1_000_000.0)
    await bench.clock.sleep(10)
    assert bench.lane.engine_seconds == DEMO.start_s + 10
    await bench.lane.stop(OTHER, drain_s=0)
    assert len(await bench.lane.observe()) == 1
    await bench.lane.stop(SLOT, drain_s=0)
    await bench.clock.sleep(10)
    assert await bench.lane.observe() == ()
    assert bench.lane.engine_seconds == DEMO.start_s + 10


async def test_starting_the_same_again_is_nothing_and_another_is_a_conflict() -> None:
    bench = Bench()
    await bench.start()
    await bench.lane.start(SLOT, EngineConfig())
    with pytest.raises(Conflict):
        await bench.lane.start(SLOT, EngineConfig.of({"max_num_seqs": 16}))
    with pytest.raises(Conflict):
        await bench.lane.start(OTHER, EngineConfig())


async def test_a_config_that_cannot_start_ends_dead_with_its_log() -> None:
    bench = Bench()
    dead = await bench.start(speculative_method="ngram", async_scheduling=True)
    assert dead.state is ReplicaState.DEAD
    assert dead.failure is not None
    assert dead.failure.kind is FailureKind.UNSUPPORTED
    assert "ValueError: async scheduling" in dead.detail
    assert "ValueError: async scheduling" in bench.lane.log_tail(SLOT)
    with pytest.raises(NotFound):
        bench.lane.counters(SLOT)


@pytest.mark.parametrize("fault", ["start_failure", "oom_at_start"])
async def test_a_start_fault_ends_dead(fault: str) -> None:
    assert (await Bench(fault).start()).state is ReplicaState.DEAD


async def test_a_closed_plan_keeps_its_streams_under_way_and_ends_early() -> None:
    bench = Bench()
    await bench.start()
    result = await bench.run(plan(*single(40)))
    assert len(result.records) == 40
    assert all(r.error is None and r.osl == 16 and r.isl == 64 for r in result.records)
    edges = [(r.sent_s, 1) for r in result.records] + [(r.end_s, -1) for r in result.records]
    level, levels = 0, []
    for _, step in sorted(edges):
        level += step
        levels.append(level)
    assert max(levels) == 8
    assert bench.clock.now() < 1_000_000.0 + DEMO.start_s + 60
    counters = bench.lane.counters(SLOT)
    assert (counters.requests, counters.prompt_tokens, counters.generation_tokens) == (
        40,
        40 * 64,
        40 * 16,
    )


async def test_an_open_plan_sends_each_session_at_its_time() -> None:
    bench = Bench()
    await bench.start()
    result = await bench.run(plan(*single(20, every_s=0.5), arrival=Arrival.OPEN))
    late = [r.sent_s - r.scheduled_s for r in result.records]
    assert sorted(r.scheduled_s for r in result.records) == [i * 0.5 for i in range(20)]
    assert all(0 <= lag < 0.1 for lag in late)


async def test_turns_follow_one_another_after_their_think_time_and_reuse_the_prefix() -> None:
    bench = Bench()
    await bench.start()
    history = tuple(range(320))
    turns = tuple(
        RequestSpec(prompt=history[: 160 + 80 * i], osl=8, think_s=2.0 * i) for i in range(3)
    )
    result = await bench.run(plan(Session(name="talk", turns=turns), streams=1))
    first, second, third = sorted(result.records, key=lambda r: r.turn)
    assert second.sent_s == pytest.approx(first.end_s + 2)
    assert third.sent_s == pytest.approx(second.end_s + 4)
    assert bench.lane.counters(SLOT).prefix_hits == 160 + 240
    assert bench.lane.reset_prefix_cache(SLOT)
    await bench.run(plan(Session(name="talk", turns=turns[:1]), streams=1))
    assert bench.lane.counters(SLOT).prefix_hits == 160 + 240


async def test_what_the_end_of_the_plan_cuts_off_is_cancelled() -> None:
    bench = Bench()
    await bench.start()
    result = await bench.run(plan(*single(100, osl=64), duration_s=5.0))
    cut = [r for r in result.records if r.error is RequestError.CANCELLED]
    assert len(cut) == 8
    assert all(r.end_s == 5.0 and not r.failed for r in cut)
    assert bench.clock.now() == 1_000_000.0 + DEMO.start_s + 5
    after = await bench.run(plan(*single(1)))
    assert [r.error for r in after.records] == [None]


async def test_stop_ends_a_run_early() -> None:
    bench = Bench()
    await bench.start()
    result = await bench.run(plan(*single(100, osl=64)), stop_after=20)
    assert {r.error for r in result.records} == {RequestError.CANCELLED}
    assert bench.clock.now() < 1_000_000.0 + 10


async def test_the_same_seed_gives_the_same_run_and_another_seed_another() -> None:
    async def records(seed: int) -> LoadResult:
        bench = Bench(seed=seed)
        await bench.start(speculative_method="mtp", num_speculative_tokens=3)
        return await bench.run(plan(*single(30)))

    assert await records(1) == await records(1)
    assert await records(1) != await records(2)


@pytest.mark.parametrize("fault", ["oom_under_load:5", "die_under_load:5"])
async def test_an_engine_that_breaks_shows_in_the_records_and_in_its_state(fault: str) -> None:
    bench = Bench(fault)
    await bench.start()
    result = await bench.run(plan(*single(30)))
    errors = [r.error for r in result.records]
    assert len(errors) == 30
    assert RequestError.DISCONNECTED in errors
    assert RequestError.CONNECT in errors
    [replica] = await bench.lane.observe()
    assert replica.state is ReplicaState.DEAD
    kinds = {"oom": FailureKind.OUT_OF_MEMORY_UNDER_LOAD, "die": FailureKind.KILLED}
    assert replica.failure is not None
    assert replica.failure.kind is kinds[fault[:3]]


async def test_a_narrow_config_starts_and_runs_out_of_memory_only_under_load() -> None:
    config: dict[str, Value] = {
        "gpu_memory_utilization": 0.95,
        "num_speculative_tokens": 3,
        "speculative_method": "mtp",
    }
    bench = Bench()
    assert (await bench.start(**config)).state is ReplicaState.WARM
    few = await bench.run(plan(*single(16), streams=8))
    assert all(r.error is None for r in few.records)
    many = await bench.run(plan(*single(96), streams=48))
    assert any(r.failed for r in many.records)
    [replica] = await bench.lane.observe()
    assert replica.failure is not None
    assert replica.failure.kind is FailureKind.OUT_OF_MEMORY_UNDER_LOAD


async def test_a_hung_engine_leaves_its_streams_open_to_the_end() -> None:
    bench = Bench("hang_mid_stream:8")
    await bench.start()
    result = await bench.run(plan(*single(30)))
    hung = [r for r in result.records if r.error is RequestError.CANCELLED]
    assert hung
    assert {r.end_s for r in hung} == {60.0}
    assert (await bench.lane.observe())[0].state is ReplicaState.WARM


async def test_a_slow_engine_is_slower_and_a_refusing_one_answers_5xx() -> None:
    ends = []
    for fault in ("", "slow"):
        bench = Bench(fault)
        await bench.start()
        ends.append(max(r.end_s for r in (await bench.run(plan(*single(8)))).records))
    assert ends[1] == pytest.approx(4 * ends[0])
    bench = Bench("http_500:3")
    await bench.start()
    errors = [r.error for r in (await bench.run(plan(*single(8)))).records]
    assert errors.count(RequestError.HTTP_5XX) == 5


async def test_without_an_engine_every_request_fails_to_connect() -> None:
    result = await Bench().run(plan(*single(10)))
    assert [r.error for r in result.records] == [RequestError.CONNECT] * 10
