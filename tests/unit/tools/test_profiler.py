"""From what engines show to a shape and to an arm's figures; what is missing is never filled in."""

import math
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.metrics import Failed, Function, NoData, Partial, Query, Reading, Sample, Series
from domain.traffic import TrafficShape
from tests.fakes.metrics import FakeEngineMetrics, FakeMetricSource, target
from tools import queries
from tools.arm import ArmReading, read_arm
from tools.live_shape import LiveShape
from tools.narrowed import Narrowed
from tools.profiler import Missing, distribution, read_shape
from tools.served import read_adapters, read_models

LIVE = target(arm="production")
END_S, WINDOW_S, INTERVAL_S = 10_000.0, 60.0, 5.0


def traffic(
    engine: FakeEngineMetrics,
    *,
    finished: int = 5,
    inside: float = 0.0,
    rejected: int = 0,
    source: FakeMetricSource | None = None,
) -> FakeMetricSource:
    """A minute and more of the same: requests that finish, requests that pile up, a scrape."""
    source = source or FakeMetricSource()
    engine.finish(1000, isl=400, osl=80)
    at_s = END_S - 2 * WINDOW_S
    while at_s <= END_S:
        source.scrape(at_s, {LIVE: engine.text()})
        at_s += INTERVAL_S
        engine.waiting += inside
        if finished:
            engine.finish(finished, isl=400, osl=80, ttft_s=0.3, tpot_s=0.03, prefix_hits=100)
        engine.reject(rejected)
    return source


async def shape(source: FakeMetricSource, arm: str | None = "production") -> TrafficShape | Missing:
    return await read_shape(source, model="m", arm=arm, end_s=END_S, window_s=WINDOW_S)


async def known(source: FakeMetricSource) -> TrafficShape:
    found = await shape(source)
    assert isinstance(found, TrafficShape)
    return found


async def test_steady_traffic_has_its_shape():
    engine = FakeEngineMetrics()
    engine.running, engine.waiting = 6, 2
    found = await known(traffic(engine))
    assert found.rate_rps == pytest.approx(1.0)
    assert found.requests == pytest.approx(60)
    assert (found.running, found.waiting, found.concurrency) == (6, 2, 8)
    assert found.isl.mean == pytest.approx(400)
    assert found.osl.mean == pytest.approx(80)
    assert found.isl.n == pytest.approx(60)
    assert found.isl.bounds[-1] == math.inf
    assert found.output_tok_s == pytest.approx(80)
    assert found.prefix_hit_rate == pytest.approx(0.25)
    assert found.preemptions == 0
    assert found.draft_acceptance is None
    assert (found.model, found.end_s, found.window_s) == ("m", END_S, WINDOW_S)


async def test_latencies_are_milliseconds_inside_the_engines_buckets():
    latencies = (await known(traffic(FakeEngineMetrics()))).latencies
    assert latencies.ttft_p50_ms == pytest.approx(375)  # the middle of 250–500
    assert latencies.ttft_p95_ms == pytest.approx(487.5)
    assert latencies.tpot_p50_ms == pytest.approx(37.5)
    assert latencies.tpot_p95_ms == pytest.approx(48.75)
    assert latencies.itl_p50_ms == pytest.approx(37.5)
    assert latencies.itl_p95_ms == pytest.approx(48.75)
    assert latencies.e2el_p50_ms == pytest.approx(3750)  # 2.67 s lies in 2.5–5
    assert latencies.e2el_p95_ms == pytest.approx(4875)
    assert latencies.e2el_longest_ms == 5000
    for of, p50_ms in ((latencies.ttft_ms, 375), (latencies.tpot_ms, 37.5)):
        assert of is not None
        assert (of.n, of.quantile(0.5)) == (pytest.approx(60), pytest.approx(p50_ms))


async def test_demand_counts_what_piles_up_and_what_is_turned_away():
    """Completions alone would call an overloaded fleet idle: ai-dynamo/dynamo#11693."""
    found = await known(traffic(FakeEngineMetrics(), finished=1, inside=3, rejected=2))
    assert found.rate_rps == pytest.approx((1 + 3 + 2) / INTERVAL_S)
    assert found.requests == pytest.approx(12)
    assert found.rejected == pytest.approx(24)
    assert found.grown == pytest.approx(36)


async def test_an_even_stream_has_no_dispersion_and_is_wholly_covered():
    found = await known(traffic(FakeEngineMetrics(), finished=3, inside=1, rejected=1))
    assert found.covered == 1
    (short,) = found.burstiness
    assert (short.scale_s, short.dispersion, short.interval.n) == (INTERVAL_S, 0, 11)
    assert found.burstiest is short
    assert found.correlation is None, "counters cannot tell which lengths went together"


async def test_the_kv_cache_is_as_full_as_the_fullest_engines():
    engines = {name: FakeEngineMetrics() for name in ("production-0", "production-1")}
    source = FakeMetricSource()
    for step in range(25):
        for used, engine in zip((0.2, 0.8), engines.values(), strict=True):
            engine.kv_usage = used
            engine.finish(1, isl=400, osl=80)
        shown = {
            target(arm="production", replica=name): engine.text()
            for name, engine in engines.items()
        }
        source.scrape(END_S - (24 - step) * INTERVAL_S, shown)
    assert (await known(source)).kv_cache_usage == pytest.approx(0.8)


async def test_bursts_and_gaps_show_in_the_shape():
    engine, source = FakeEngineMetrics(), FakeMetricSource()
    for k in range(25):
        at_s = END_S - 2 * WINDOW_S + k * INTERVAL_S
        if k != 16:
            source.scrape(at_s, {LIVE: engine.text()})
        engine.finish(20 if k % 2 else 0)
    found = await known(source)
    assert found.covered == pytest.approx(9 / 11)
    (short,) = found.burstiness
    assert short.interval.n == 9
    assert short.dispersion == pytest.approx(12.5)  # four bursts of 20 in nine intervals
    assert short.interval.low > 1


def live(source: FakeMetricSource) -> LiveShape:
    return LiveShape(source, model="m", arm="production", scrape_s=INTERVAL_S)


def counts(source: FakeMetricSource) -> int:
    """How often it was asked at a moment whether there was a scrape."""
    return sum(query.function is Function.COUNT for query, _ in source.asked)


async def test_arrivals_are_counted_once_a_window_and_all_else_at_each_look():
    source = traffic(FakeEngineMetrics(), finished=3, inside=1)
    looks = live(source)
    once = await looks.read(END_S - INTERVAL_S, WINDOW_S)
    asked = counts(source)
    again = await looks.read(END_S, WINDOW_S)
    assert isinstance(once, TrafficShape)
    assert isinstance(again, TrafficShape)
    assert asked > 0
    assert counts(source) == asked
    assert once.burstiness
    assert (again.burstiness, again.covered) == (once.burstiness, once.covered)
    whole = await known(source)
    assert replace(again, burstiness=whole.burstiness, covered=whole.covered) == whole


@pytest.mark.parametrize("later_s", [WINDOW_S, -INTERVAL_S], ids=["next window", "clock set back"])
async def test_arrivals_are_counted_anew_in_another_window(later_s: float):
    source = traffic(FakeEngineMetrics())
    looks, asked = live(source), []
    for end_s in (END_S - WINDOW_S, END_S - WINDOW_S + later_s):
        assert isinstance(await looks.read(end_s, WINDOW_S - INTERVAL_S), TrafficShape)
        asked.append(counts(source))
    assert asked == [asked[0], 2 * asked[0]]


async def test_arrivals_that_could_not_be_counted_are_asked_for_again():
    class Ranged(FakeMetricSource):
        late = True

        async def read_range(
            self, query: Query, start_s: float, end_s: float, step_s: float
        ) -> tuple[Reading, ...]:
            answers = await super().read_range(query, start_s, end_s, step_s)
            return (Failed(reason="late"),) * len(answers) if self.late else answers

    source = traffic(FakeEngineMetrics(), source=(ranged := Ranged()))
    looks = live(source)
    first = await looks.read(END_S - INTERVAL_S, WINDOW_S)
    ranged.late = False
    second = await looks.read(END_S, WINDOW_S)
    assert isinstance(first, TrafficShape)
    assert isinstance(second, TrafficShape)
    assert (first.burstiness, first.covered) == ((), None)
    assert second.covered == 1


async def test_no_arrivals_are_counted_where_there_is_no_shape():
    source = FakeMetricSource()
    assert isinstance(await shape(source), Missing)
    assert counts(source) == 0


async def test_requests_are_counted_by_how_they_ended():
    engine = FakeEngineMetrics()
    source = traffic(engine)
    engine.finish(4, reason="abort")
    source.scrape(END_S + INTERVAL_S, {LIVE: engine.text()})
    found = await read_shape(
        source, model="m", arm=None, end_s=END_S + INTERVAL_S, window_s=WINDOW_S
    )
    assert isinstance(found, TrafficShape)
    assert dict(found.finish_reasons) == pytest.approx({"abort": 4, "stop": 60}, rel=0.1)
    assert sum(n for _, n in found.finish_reasons) == pytest.approx(found.requests)


async def test_how_requests_ended_is_the_sum_over_all_replicas():
    """In a shape and in a verdict alike: one replica's figures do not stand for another's."""
    source, engines = FakeMetricSource(), [FakeEngineMetrics(), FakeEngineMetrics()]
    for step in range(25):
        at_s = END_S - (24 - step) * INTERVAL_S
        for engine, aborted in zip(engines, (1, 2), strict=True):
            engine.finish(4)
            engine.finish(aborted, reason="abort")
        source.scrape(
            at_s,
            {
                target(arm="production", replica=f"r{number}"): engine.text()
                for number, engine in enumerate(engines)
            },
        )
    found = await known(source)
    assert dict(found.finish_reasons) == pytest.approx({"abort": 36, "stop": 96}, rel=0.1)
    judged = await read_arm(source, model="m", arm="production", end_s=END_S, window_s=WINDOW_S)
    assert isinstance(judged, ArmReading)
    assert (judged.completed, judged.aborted) == pytest.approx((96, 36), rel=0.1)


async def test_no_traffic_is_a_shape_of_zeros_and_not_a_missing_one():
    found = await known(traffic(FakeEngineMetrics(), finished=0))
    assert (found.rate_rps, found.requests, found.isl.n) == (0, 0, 0)
    assert found.isl.mean is None
    assert found.latencies.ttft_p50_ms is None
    assert found.latencies.ttft_ms is None
    assert found.prefix_hit_rate is None


async def test_a_backlog_that_drains_is_no_negative_demand():
    engine = FakeEngineMetrics()
    engine.waiting = 1000
    assert (await known(traffic(engine, finished=0, inside=-10))).rate_rps == 0


async def test_speculation_shows_where_the_engine_speculates():
    engine = FakeEngineMetrics()
    engine.speculate(0, 0)
    source = traffic(engine)
    engine.speculate(300, 210)
    source.scrape(END_S + INTERVAL_S, {LIVE: engine.text()})
    found = await read_shape(
        source, model="m", arm=None, end_s=END_S + INTERVAL_S, window_s=WINDOW_S
    )
    assert isinstance(found, TrafficShape)
    assert found.draft_acceptance == pytest.approx(0.7)


@pytest.mark.parametrize(
    ("metric", "signal"),
    [
        (queries.FINISHED, "finished"),
        (queries.RUNNING, "running"),
        (queries.WAITING, "waiting"),
        (queries.ISL.bucket, "isl"),
        (queries.OSL.sum, "osl total"),
    ],
)
@pytest.mark.parametrize(
    ("reading", "words"),
    [
        (NoData(reason="why"), "is missing"),
        (Failed(reason="why"), "could not be read"),
        (Partial(reason="why", sample=Sample(at_s=END_S, series=())), "is partial"),
    ],
)
async def test_a_required_signal_that_is_no_complete_answer_is_named(
    metric: str, signal: str, reading: NoData | Failed | Partial, words: str
):
    source = traffic(FakeEngineMetrics())
    source.answer(metric, reading)
    found = await shape(source)
    assert isinstance(found, Missing)
    assert signal in found.signals
    assert f"{signal} {words} (why)" in found.reason


async def test_an_optional_signal_that_is_missing_is_none():
    source = traffic(FakeEngineMetrics())
    for metric in (
        queries.TTFT.bucket,
        queries.PREFIX_HITS,
        queries.PREEMPTIONS,
        queries.GENERATION_TOKENS,
        queries.REJECTED,
    ):
        source.answer(metric, NoData(reason="an older engine"))
    found = await known(source)
    assert found.latencies.ttft_p95_ms is None
    assert found.latencies.tpot_p95_ms is not None
    assert (found.prefix_hit_rate, found.preemptions, found.output_tok_s) == (None, None, None)
    assert found.rate_rps == pytest.approx(1.0)


@pytest.mark.parametrize(
    "reading",
    [
        Failed(reason="late"),
        Partial(reason="late", sample=Sample(at_s=END_S, series=(Series(labels=(), value=1),))),
    ],
)
async def test_rejections_that_could_not_be_read_are_not_none(reading: Failed | Partial):
    """Demand would be called lower than it is just while the fleet is overloaded."""
    source = traffic(FakeEngineMetrics(), rejected=5)
    source.answer(queries.REJECTED, reading)
    found = await shape(source)
    assert isinstance(found, Missing)
    assert found.signals == ("rejected",)


def scraped_by(jobs: Mapping[str, float]) -> FakeMetricSource:
    """One engine, as a Prometheus server keeps it whose jobs scrape it until so many seconds."""
    source, engine = FakeMetricSource(), FakeEngineMetrics()
    for step in range(25):
        at_s = END_S - (24 - step) * INTERVAL_S
        engine.finish(5)
        places = [target(arm="production", job=job) for job, end_s in jobs.items() if at_s <= end_s]
        source.scrape(at_s, dict.fromkeys(places, engine.text()))
    return source


@pytest.mark.parametrize("until_s", [END_S, END_S - WINDOW_S / 2], ids=["still", "until just now"])
async def test_an_engine_that_two_jobs_scrape_is_no_figure(until_s: float):
    """Every sum over it would be twice what there is, in a shape as in a verdict."""
    source = scraped_by({"pods": until_s, "vllm": END_S})
    judged = await read_arm(source, model="m", arm="production", end_s=END_S, window_s=WINDOW_S)
    for found in (await shape(source), judged):
        assert isinstance(found, Missing)
        assert found.signals == ("finished",)
        assert "scraped by the jobs 'pods' and 'vllm'" in found.reason
    ours = Narrowed(source, {"job": "vllm"})
    alone = await read_shape(ours, model="m", arm="production", end_s=END_S, window_s=WINDOW_S)
    assert alone == await known(scraped_by({"vllm": END_S}))
    assert isinstance(alone, TrafficShape)
    assert alone.rate_rps == pytest.approx(1)


async def test_metrics_that_do_not_reach_back_over_the_window_are_a_hold():
    engine, source = FakeEngineMetrics(), FakeMetricSource()
    for at_s in (END_S - 20, END_S - 15, END_S - 10, END_S - 5, END_S):
        engine.finish(5)
        source.scrape(at_s, {LIVE: engine.text()})
    found = await shape(source)
    assert isinstance(found, Missing)
    assert "do not cover all of the last 60 s" in found.reason


async def test_another_model_and_another_arm_are_not_counted():
    source = traffic(FakeEngineMetrics(model="other"))
    assert isinstance(await shape(source), Missing)
    assert isinstance(await shape(traffic(FakeEngineMetrics()), arm="candidate"), Missing)


def fleet(*, leaves_s: float = math.inf) -> FakeMetricSource:
    """Two models that differ in everything; the other one's replica is removed at ``leaves_s``."""
    source = FakeMetricSource()
    ours, theirs = FakeEngineMetrics(), FakeEngineMetrics(model="other")
    ours.running, theirs.running = 6, 70
    at_s = END_S - 2 * WINDOW_S
    while at_s <= END_S:
        shown = {LIVE: ours.text(), target(arm="production", replica="r1"): theirs.text()}
        if at_s >= leaves_s:
            del shown[target(arm="production", replica="r1")]
        source.scrape(at_s, shown)
        at_s += INTERVAL_S
        ours.finish(5, isl=400, osl=80, ttft_s=0.3, tpot_s=0.03, prefix_hits=100)
        theirs.finish(90, isl=40, osl=800, ttft_s=3.0, tpot_s=0.3)
    return source


@pytest.mark.parametrize("leaves_s", [math.inf, END_S - WINDOW_S / 2])
async def test_models_of_one_fleet_are_not_mixed(leaves_s: float):
    source = fleet(leaves_s=leaves_s)
    engine = FakeEngineMetrics()
    engine.running = 6
    assert await known(source) == await known(traffic(engine))
    models = await read_models(source, arm="production", end_s=END_S, window_s=WINDOW_S)
    assert models == ("m", "other")
    gone = await read_models(source, arm="candidate", end_s=END_S, window_s=WINDOW_S)
    assert isinstance(gone, Missing)


async def test_a_replica_that_was_removed_leaves_its_requests_and_no_wrong_rate():
    """Its counters end in mid-window, hours of uptime after they began."""
    source, leaves_s = FakeMetricSource(), END_S - 32
    stays, leaves = FakeEngineMetrics(), FakeEngineMetrics()
    leaves.finish(1_000_000)
    at_s, after = END_S - 2 * WINDOW_S, 0
    while at_s <= END_S:
        shown = {LIVE: stays.text()}
        if at_s <= leaves_s:
            shown[target(arm="production", replica="r1")] = leaves.text()
        source.scrape(at_s, shown)
        at_s += INTERVAL_S
        stays.finish(5)
        leaves.finish(15)
        after += 5 + (15 if at_s <= leaves_s else 0) if at_s > END_S - WINDOW_S else 0
    found = await known(source)
    assert found.rate_rps * WINDOW_S == pytest.approx(after, abs=15)
    assert found.covered == pytest.approx(10 / 11), "one interval is not known whole"
    steady = [one.interval.high for one in found.burstiness]
    assert max(steady) < 40, "a million requests before the window are no burst in it"


async def replaced(at_s: float, *, stays: bool, looks: int = 1) -> TrafficShape | Missing:
    """Twelve requests are always inside: one engine's, then another's in its place."""
    source, engine = FakeMetricSource(), FakeEngineMetrics()
    engine.running, engine.waiting = 8, 4
    other = FakeEngineMetrics()
    other.running = 5
    for step in range(25):
        now_s = END_S - (24 - step) * INTERVAL_S
        config = "c0" if now_s <= at_s else "c1"
        shown = {target(arm="production", config=config): engine.text()}
        if stays:
            shown[target(arm="production", replica="r1")] = other.text()
        source.scrape(now_s, shown)
        engine.finish(5)
    arm = live(source)
    for look in range(looks - 1, 0, -1):
        await arm.read(END_S - look * INTERVAL_S, WINDOW_S)
    return await arm.read(END_S, WINDOW_S)


@pytest.mark.parametrize("stays", [True, False], ids=["of a fleet", "alone"])
@pytest.mark.parametrize("part", [0.3, 0.5, 0.8])
@pytest.mark.parametrize("looks", [1, 3])
async def test_a_replica_and_the_one_in_its_place_are_not_both_inside(
    part: float, stays: bool, looks: int
):
    """Each one's own mean is of its own time only: their sum would be twice what was there."""
    found = await replaced(END_S - part * WINDOW_S, stays=stays, looks=looks)
    assert isinstance(found, TrafficShape)
    assert found.running == pytest.approx(13 if stays else 8)
    assert found.waiting == pytest.approx(4)


async def test_the_kv_caches_of_an_engine_and_of_the_one_in_its_place_are_two():
    source, engine = FakeMetricSource(), FakeEngineMetrics()
    engine.kv_usage = 0.75
    for step in range(25):
        place = target(arm="production", config="c0" if step < 20 else "c1")
        source.scrape(END_S - (24 - step) * INTERVAL_S, {place: engine.text()})
    assert (await known(source)).kv_cache_usage == pytest.approx(0.75)


async def test_a_fleet_that_changed_and_was_not_seen_throughout_is_a_hold():
    class Ranged(FakeMetricSource):
        async def read_range(
            self, query: Query, start_s: float, end_s: float, step_s: float
        ) -> tuple[Reading, ...]:
            answers = await super().read_range(query, start_s, end_s, step_s)
            return (Failed(reason="late"),) * len(answers)

    source, engine = Ranged(), FakeEngineMetrics()
    for step in range(25):
        config = "c0" if step < 20 else "c1"
        source.scrape(
            END_S - (24 - step) * INTERVAL_S,
            {target(arm="production", config=config): engine.text()},
        )
    found = await shape(source)
    assert isinstance(found, Missing)
    assert "engines came or went" in found.reason
    assert found.signals == ("running", "waiting")


def adapters(running: str, waiting: str, seen_s: float, replica: str = "r0") -> Series:
    return Series(
        labels=(
            ("instance", replica),
            ("replica", replica),
            ("max_lora", "4"),
            ("running_lora_adapters", running),
            ("waiting_lora_adapters", waiting),
        ),
        value=seen_s,
    )


async def test_adapters_are_named_that_had_requests_in_the_window():
    source = FakeMetricSource()
    seen = (
        adapters("sql,chat", "legal", END_S - 1),
        adapters("chat", "", END_S - 30, replica="r1"),
        adapters("old", "", END_S - WINDOW_S - 1),
        adapters("", "", END_S),
    )
    source.answer(queries.ADAPTERS, Sample(at_s=END_S, series=seen))
    found = await read_adapters(source, arm=None, end_s=END_S, window_s=WINDOW_S)
    assert found == ("chat", "legal", "sql")
    source.forget(queries.ADAPTERS)
    nothing = await read_adapters(source, arm=None, end_s=END_S, window_s=WINDOW_S)
    assert isinstance(nothing, Missing)


async def test_an_arms_requests_are_told_apart_by_how_they_ended():
    engine = FakeEngineMetrics()
    source = traffic(engine)
    engine.finish(4, reason="abort")
    engine.finish(3, reason="error")
    engine.finish(2, reason="length")
    source.scrape(END_S + INTERVAL_S, {LIVE: engine.text()})
    found = await read_arm(
        source, model="m", arm="production", end_s=END_S + INTERVAL_S, window_s=WINDOW_S
    )
    assert isinstance(found, ArmReading)
    extrapolated = WINDOW_S / (WINDOW_S - INTERVAL_S)
    assert found.aborted == pytest.approx(4, rel=0.1)
    assert found.errored == pytest.approx(3, rel=0.1)
    assert found.completed == pytest.approx(55 * extrapolated + 2, rel=0.01)
    assert found.ttft_s.quantile(0.5) == pytest.approx(0.365, abs=0.02)
    everything = found.completed + found.aborted + found.errored
    assert found.ttft_s.n == pytest.approx(everything, rel=0.05)
    assert found.prefix_hit_rate is not None
    assert any(
        'increase(vllm:request_success_total{arm="production", model_name="m"}' in q
        for q in found.queries
    )


async def test_an_arm_that_is_missing_is_a_hold():
    found = await read_arm(
        traffic(FakeEngineMetrics()), model="m", arm="candidate", end_s=END_S, window_s=WINDOW_S
    )
    assert isinstance(found, Missing)
    assert set(found.signals) == {"finished", "ttft", "ttft total", "tpot", "tpot total"}


async def test_an_arms_engines_of_another_model_are_not_counted_in():
    source = traffic(FakeEngineMetrics(model="other"))
    found = await read_arm(source, model="m", arm="production", end_s=END_S, window_s=WINDOW_S)
    assert isinstance(found, Missing)


async def test_an_arm_with_a_dead_replica_is_a_hold():
    source = traffic(FakeEngineMetrics())
    source.scrape(
        END_S + 1,
        {LIVE: FakeEngineMetrics().text(), target(arm="production", replica="r1"): None},
    )
    found = await read_arm(source, model="m", arm="production", end_s=END_S + 1, window_s=WINDOW_S)
    assert isinstance(found, Missing)
    assert "replica=r1" in found.reason


def bucketed(engines: dict[str, dict[str, float]]) -> Sample:
    """Cumulative counts by engine and bound."""
    return Sample(
        at_s=0.0,
        series=tuple(
            Series(labels=(("le", le), ("instance", engine)), value=count)
            for engine, counts in engines.items()
            for le, count in counts.items()
        ),
    )


def test_bounds_that_not_all_engines_have_are_not_told():
    """Up to 2 one engine has 20 values; nobody knows how many the other one has."""
    found = distribution(
        bucketed(
            {
                "short": {"1.0": 10, "2.0": 20, "5.0": 20, "+Inf": 20},
                "long": {"1.0": 10, "5.0": 30, "10.0": 40, "+Inf": 40},
            }
        ),
        300.0,
    )
    assert found.bounds == (1, 5, math.inf)
    assert found.counts == (20, 30, 10)
    assert found.total == 300


def test_an_engine_without_a_value_and_another_way_to_write_a_bound_take_no_bound_away():
    idle = {"7.0": 0.0, "+Inf": 0.0}
    found = distribution(
        bucketed({"one": {"1": 2, "+Inf": 3}, "two": {"1.0": 4, "+Inf": 4}, "idle": idle}), None
    )
    assert (found.bounds, found.counts) == ((1, math.inf), (6, 1))
    none = distribution(bucketed({"idle": idle}), None)
    assert (none.bounds, none.n) == ((7, math.inf), 0)


async def test_engines_with_other_bounds_are_one_histogram():
    """Bounds of lengths end at an engine's context length, and change from version to version."""
    source, engines = FakeMetricSource(), (FakeEngineMetrics(), FakeEngineMetrics())
    for step in range(25):
        shown = {}
        for number, engine in enumerate(engines):
            engine.finish(5, isl=400 if number else 30)
            text = engine.text()
            if number:
                lines = text.splitlines()
                text = "\n".join(x for x in lines if 'le="50.0"' not in x) + "\n"
            shown[target(arm="production", replica=f"r{number}")] = text
        source.scrape(END_S - (24 - step) * INTERVAL_S, shown)
    isl = (await known(source)).isl
    assert 50 not in isl.bounds
    assert dict(zip(isl.bounds, isl.counts, strict=True)) == pytest.approx(
        {bound: 60 if bound in (100, 500) else 0 for bound in isl.bounds}
    )


@given(st.lists(st.tuples(st.floats(0.001, 1e4), st.floats(0, 1e6)), min_size=1, max_size=30))
def test_a_distribution_never_has_a_negative_count(buckets: list[tuple[float, float]]):
    series = tuple(Series(labels=(("le", repr(le)),), value=v) for le, v in dict(buckets).items())
    found = distribution(Sample(at_s=0.0, series=series), None)
    assert list(found.bounds) == sorted(found.bounds)
    assert all(count >= 0 for count in found.counts)
    assert found.n == pytest.approx(max(one.value for one in series))
