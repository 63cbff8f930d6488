"""One contract for every MetricSource: the same scrapes, the same question, the same answer.

The embedded scraper really scrapes over HTTP, Prometheus is a real server that is fed the very
samples a scrape would have stored, at the same milliseconds.
"""

import random
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from itertools import count

import pytest
from prometheus_client.parser import text_string_to_metric_families
from werkzeug import Request, Response

from domain.errors import BadInput
from domain.metrics import Failed, Function, NoData, Partial, Query, Reading, Sample, moments
from domain.ports import MetricSource
from tests.fakes.metrics import FakeMetricSource
from tests.fakes.metrics import target as fake_target
from tests.fakes.prometheus import PrometheusServer
from tools.prometheus import PrometheusSource
from tools.scrape import Scraper, Target

Round = Mapping[str, str | None]
"""What each replica showed in one round of scrapes; ``None``: it was down; absent: removed."""
Feed = Callable[[Sequence[Round]], Awaitable[MetricSource]]

FINISHED = "vllm:request_success_total"
RUNNING = "vllm:num_requests_running"
TTFT = "vllm:time_to_first_token_seconds_bucket"
HITS, OLD_HITS = "vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"
GAP = "vllm:inter_token_latency_seconds_bucket"
OLD_GAP = "vllm:time_per_output_token_seconds_bucket"
INTERVAL_S = 5.0
LOOKBACK_S = 15.0
BASE_S = float(int(time.time()) - 1800)
ARMS = count()


class Clock:
    def now(self) -> float:
        return BASE_S

    async def sleep(self, seconds: float) -> None:
        raise AssertionError("the contract scrapes by itself")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrometheusServer]:
    binary = shutil.which("prometheus")
    if binary is None:
        pytest.skip("no prometheus executable")
    server = PrometheusServer(binary, tmp_path_factory.mktemp("prometheus"))
    yield server
    server.stop()


@pytest.fixture
def arm() -> str:
    """An arm of its own for each test: the Prometheus server is shared."""
    return f"arm{next(ARMS)}"


@pytest.fixture(params=["fake", "embedded", "prometheus"])
async def feed(request: pytest.FixtureRequest, arm: str) -> AsyncIterator[Feed]:
    if request.param == "prometheus":
        server = request.getfixturevalue("server")
        source = PrometheusSource(server.url, lookback_s=LOOKBACK_S)

        async def fill(rounds: Sequence[Round]) -> MetricSource:
            server.write(stored(arm, rounds))
            return source

        yield fill
        source.close()
    elif request.param == "embedded":
        httpserver = request.getfixturevalue("httpserver")
        now: Round = {}
        scraper = Scraper(
            lambda: [
                Target(url=httpserver.url_for(f"/{name}"), arm=arm, config="c0", replica=name)
                for name in now
            ],
            interval_s=INTERVAL_S,
            retention_s=3600,
            clock=Clock(),
            lookback_s=LOOKBACK_S,
        )

        def show(asked: Request) -> Response:
            text = now[asked.path.split("/")[1]]
            return Response("down", 503) if text is None else Response(text, 200)

        for name in ("a", "b"):
            httpserver.expect_request(f"/{name}/metrics").respond_with_handler(show)

        async def scrape(rounds: Sequence[Round]) -> MetricSource:
            nonlocal now
            for k, shown in enumerate(rounds):
                now = shown
                await scraper.scrape_once(moment(k))
            return scraper

        yield scrape
        await scraper.close()
    else:
        fake = FakeMetricSource(lookback_s=LOOKBACK_S)

        async def script(rounds: Sequence[Round]) -> MetricSource:
            for k, now in enumerate(rounds):
                fake.scrape(
                    moment(k), {fake_target(arm=arm, replica=n): text for n, text in now.items()}
                )
            return fake

        yield script


def moment(k: int) -> float:
    """The time of round ``k``: never on the bound of a window, where versions differ."""
    return BASE_S + 0.2 + INTERVAL_S * k


def stored(
    arm: str, rounds: Sequence[Round]
) -> dict[tuple[tuple[str, str], ...], list[tuple[int, float | None]]]:
    """The samples that a Prometheus server stores when it scrapes the rounds."""
    series: dict[tuple[tuple[str, str], ...], list[tuple[int, float | None]]] = {}
    before: dict[tuple[tuple[str, str], ...], float] = {}
    for k, shown in enumerate(rounds):
        at_ms = round(moment(k) * 1000)
        now = {}
        for replica, text in shown.items():
            own = (("arm", arm), ("config", "c0"), ("replica", replica))
            now[("__name__", "up"), *own] = float(text is not None)
            for family in text_string_to_metric_families(text or ""):
                for shown_as in family.samples:
                    labels = sorted(shown_as.labels.items())
                    now[("__name__", shown_as.name), *own, *labels] = shown_as.value
        for key, value in now.items():
            series.setdefault(key, []).append((at_ms, value))
        for key in before.keys() - now.keys():
            series[key].append((at_ms, None))
        before = now
    return series


def counter(value: float) -> str:
    return f'{FINISHED}{{engine="0",finished_reason="stop",model_name="m"}} {value}\n'


def gauge(value: float) -> str:
    return f'{RUNNING}{{engine="0",model_name="m"}} {value}\n'


def query(arm: str, function: Function, metric: str = FINISHED, **changes: object) -> Query:
    fields: dict[str, object] = {"where": (("arm", arm),), "window_s": 30.0} | changes
    return Query(metric=metric, function=function, **fields)  # type: ignore[arg-type]


def one(reading: Reading) -> float:
    assert isinstance(reading, Sample), reading
    assert len(reading.series) == 1
    return reading.total()


NEWEST_S = BASE_S + 61.0
"""Half a second or more after round 12 and before round 13."""


async def test_an_increase_is_extrapolated_to_the_bounds_of_its_window(feed: Feed, arm: str):
    source = await feed([{"a": counter(1000 + 10 * k)} for k in range(13)])
    # Six samples in (31, 61]: 35.2 … 60.2, a rise of 50 over 25 s; 4.2 s and 0.8 s to the bounds.
    assert one(await source.read(query(arm, Function.INCREASE), NEWEST_S)) == pytest.approx(60)
    assert one(await source.read(query(arm, Function.RATE), NEWEST_S)) == pytest.approx(2)


async def test_a_counter_is_not_extrapolated_to_before_it_was_zero(feed: Feed, arm: str):
    source = await feed([{}] * 7 + [{"a": counter(10 * k)} for k in range(6)])
    # Starts with 0 at 35.2, so that only the 0.8 s at the end are added to 25 s.
    rise = one(await source.read(query(arm, Function.INCREASE), NEWEST_S))
    assert rise == pytest.approx(50 * 25.8 / 25)


async def test_a_series_that_began_in_the_window_is_extrapolated_by_half_an_interval(
    feed: Feed, arm: str
):
    source = await feed([{}] * 10 + [{"a": counter(1000 + 10 * k)} for k in range(3)])
    rise = one(await source.read(query(arm, Function.INCREASE), NEWEST_S))
    assert rise == pytest.approx(20 * (10 + 2.5 + 0.8) / 10)


async def test_a_counter_reset_loses_nothing_and_adds_nothing(feed: Feed, arm: str):
    values = [1000, 1010, 1020, 1030, 1040, 1050, 1060, 1070, 1080, 1090, 5, 15, 25]
    source = await feed([{"a": counter(value)} for value in values])
    # 1070 → 1090, then from 0 to 25: 20 + 25 over 25 s.
    rise = one(await source.read(query(arm, Function.INCREASE), NEWEST_S))
    assert rise == pytest.approx(45 * 30 / 25)


async def test_no_traffic_is_zero_and_no_metric_is_no_data(feed: Feed, arm: str):
    source = await feed([{"a": counter(7)} for _ in range(13)])
    assert one(await source.read(query(arm, Function.INCREASE), NEWEST_S)) == 0
    assert isinstance(await source.read(query(arm, Function.LAST, RUNNING), NEWEST_S), NoData)


async def test_one_sample_makes_no_increase(feed: Feed, arm: str):
    source = await feed([{}] * 12 + [{"a": counter(7)}])
    assert isinstance(await source.read(query(arm, Function.INCREASE), NEWEST_S), NoData)
    assert one(await source.read(query(arm, Function.LAST), NEWEST_S)) == 7


@pytest.mark.parametrize("bad", ["NaN", "+Inf", "-Inf"])
@pytest.mark.parametrize("function", [Function.LAST, Function.AVG, Function.INCREASE])
async def test_what_is_not_finite_is_no_data(feed: Feed, arm: str, bad: str, function: Function):
    good = [{"a": gauge(k), "b": gauge(k)} for k in range(12)]
    source = await feed([*good, {"a": gauge(float(bad)), "b": gauge(1)}])
    reading = await source.read(query(arm, function, RUNNING, by=("engine",)), NEWEST_S)
    assert isinstance(reading, NoData)
    assert "finite" in reading.reason


async def test_a_gauge_is_averaged_and_has_its_maximum(feed: Feed, arm: str):
    source = await feed([{"a": gauge(k * k), "b": gauge(3)} for k in range(13)])
    squares = [k * k for k in range(7, 13)]
    mean = one(await source.read(query(arm, Function.AVG, RUNNING), NEWEST_S))
    assert mean == pytest.approx(sum(squares) / 6 + 3)
    assert one(await source.read(query(arm, Function.MAX, RUNNING), NEWEST_S)) == 144 + 3


@pytest.mark.parametrize("function", list(Function))
async def test_a_source_that_went_silent_is_stale(feed: Feed, arm: str, function: Function):
    source = await feed([{"a": gauge(k)} for k in range(13)])
    still_s, silent_s = moment(12) + LOOKBACK_S - 0.1, moment(12) + LOOKBACK_S + 0.1
    asked = query(arm, function, RUNNING, window_s=60.0)
    assert isinstance(await source.read(asked, still_s), Sample)
    assert isinstance(await source.read(asked, silent_s), NoData)


async def test_a_past_moment_knows_nothing_of_what_came_after(feed: Feed, arm: str):
    source = await feed([{"a": gauge(k)} for k in range(13)])
    assert one(await source.read(query(arm, Function.LAST, RUNNING), moment(4) + 0.5)) == 4
    assert isinstance(await source.read(query(arm, Function.LAST, RUNNING), BASE_S), NoData)


async def test_series_are_summed_by_the_labels_asked_for(feed: Feed, arm: str):
    def shown(stop: int, abort: int) -> str:
        return (
            f'{FINISHED}{{engine="0",finished_reason="stop"}} {stop}\n'
            f'{FINISHED}{{engine="1",finished_reason="stop"}} {stop}\n'
            f'{FINISHED}{{engine="0",finished_reason="abort"}} {abort}\n'
        )

    source = await feed([{"a": shown(2, 1), "b": shown(10, 0)} for _ in range(3)])
    asked = query(arm, Function.LAST, by=("finished_reason",))
    reading = await source.read(asked, moment(2) + 0.5)
    assert isinstance(reading, Sample)
    assert reading.by("finished_reason") == {"abort": 1, "stop": 24}
    by_two = await source.read(
        query(arm, Function.LAST, by=("replica", "finished_reason")), moment(2) + 0.5
    )
    assert isinstance(by_two, Sample)
    assert [(s.labels, s.value) for s in by_two.series] == [
        ((("replica", "a"), ("finished_reason", "abort")), 1),
        ((("replica", "a"), ("finished_reason", "stop")), 4),
        ((("replica", "b"), ("finished_reason", "abort")), 0),
        ((("replica", "b"), ("finished_reason", "stop")), 20),
    ]


async def test_a_label_that_no_series_has_is_empty(feed: Feed, arm: str):
    source = await feed([{"a": gauge(4)}])
    reading = await source.read(query(arm, Function.LAST, RUNNING, by=("none",)), moment(0) + 1)
    assert isinstance(reading, Sample)
    assert [(s.labels, s.value) for s in reading.series] == [((("none", ""),), 4)]


async def test_label_values_match_exactly_whatever_they_contain(feed: Feed, arm: str):
    name = 'm"} or vector(1) #\\'
    escaped = name.replace("\\", "\\\\").replace('"', '\\"')
    source = await feed(
        [{"a": f'{RUNNING}{{model_name="{escaped}"}} 5\n{RUNNING}{{model_name="m"}} 1\n'}]
    )
    asked = query(arm, Function.LAST, RUNNING, where=(("arm", arm), ("model_name", name)))
    assert one(await source.read(asked, moment(0) + 1)) == 5
    other = query(arm, Function.LAST, RUNNING, where=(("arm", arm), ("model_name", name + "x")))
    assert isinstance(await source.read(other, moment(0) + 1), NoData)


async def test_buckets_come_by_le(feed: Feed, arm: str):
    def shown(k: int) -> str:
        edges = {"0.1": 100 + k, "0.5": 200 + 3 * k, "+Inf": 300 + 4 * k}
        return "".join(f'{TTFT}{{engine="0",le="{le}"}} {n}\n' for le, n in edges.items())

    source = await feed([{"a": shown(k), "b": shown(k)} for k in range(13)])
    reading = await source.read(query(arm, Function.INCREASE, TTFT, by=("le",)), NEWEST_S)
    assert isinstance(reading, Sample)
    assert reading.by("le") == pytest.approx({"0.1": 12, "0.5": 36, "+Inf": 48})


def hits(name: str, value: float, engine: int = 0) -> str:
    return f'{name}{{engine="{engine}",model_name="m"}} {value}\n'


@pytest.mark.parametrize("function", list(Function))
async def test_engines_of_several_versions_are_summed_whole(
    feed: Feed, arm: str, function: Function
):
    """One shows the name of today, the other an older one: vLLM renamed its prefix counters."""

    def rounds(name: str) -> list[Round]:
        return [
            {"a": hits(HITS, 1000 + 10 * k), "b": hits(name, 1000 + 30 * k) + gauge(1)}
            for k in range(13)
        ]

    asked = query(arm, function, HITS, by=("replica",))
    mixed = await (await feed(rounds(OLD_HITS))).read(asked, NEWEST_S)
    assert isinstance(mixed, Sample)
    expected = {
        Function.LAST: {"a": 1120, "b": 1360},
        Function.INCREASE: {"a": 60, "b": 180},
        Function.RATE: {"a": 2, "b": 6},
        Function.AVG: {"a": 1095, "b": 1285},
        Function.MAX: {"a": 1120, "b": 1360},
        Function.COUNT: {"a": 6, "b": 6},
    }
    assert mixed.by("replica") == pytest.approx(expected[function])


@pytest.mark.parametrize("function", list(Function))
async def test_a_series_under_two_names_counts_once_as_the_newer(
    feed: Feed, arm: str, function: Function
):
    """vLLM 0.9 to 0.11 show a renamed metric under both names; engine 1 has the older alone."""

    def shown(k: int) -> str:
        both = hits(HITS, 1000 + 10 * k) + hits(OLD_HITS, 7000 + 70 * k)
        return both + hits(OLD_HITS, 1000 + 20 * k, engine=1)

    source = await feed([{"a": shown(k)} for k in range(13)])
    expected = {
        Function.LAST: 1120 + 1240,
        Function.INCREASE: 60 + 120,
        Function.RATE: 2 + 4,
        Function.AVG: 1095 + 1190,
        Function.MAX: 1120 + 1240,
        Function.COUNT: 6 + 6,
    }
    assert one(await source.read(query(arm, function, HITS), NEWEST_S)) == pytest.approx(
        expected[function]
    )


@pytest.mark.parametrize("function", list(Function))
async def test_an_older_name_goes_stale_as_todays_does(feed: Feed, arm: str, function: Function):
    source = await feed([{"a": hits(OLD_HITS, k)} for k in range(13)])
    still_s, silent_s = moment(12) + LOOKBACK_S - 0.1, moment(12) + LOOKBACK_S + 0.1
    asked = query(arm, function, HITS, window_s=60.0)
    assert isinstance(await source.read(asked, still_s), Sample)
    assert isinstance(await source.read(asked, silent_s), NoData)


async def test_a_reset_under_an_older_name_loses_nothing(feed: Feed, arm: str):
    values = [1000, 1010, 1020, 1030, 1040, 1050, 1060, 1070, 1080, 1090, 5, 15, 25]
    source = await feed([{"a": hits(OLD_HITS, value)} for value in values])
    rise = one(await source.read(query(arm, Function.INCREASE, HITS), NEWEST_S))
    assert rise == pytest.approx(45 * 30 / 25)


async def test_buckets_of_a_renamed_histogram_are_summed_by_le(feed: Feed, arm: str):
    def shown(name: str, k: int) -> str:
        edges = {"0.025": 100 + k, "0.05": 200 + 3 * k, "+Inf": 300 + 4 * k}
        return "".join(f'{name}{{engine="0",le="{le}"}} {n}\n' for le, n in edges.items())

    rounds: list[Round] = [
        {"a": shown(GAP, k) + shown(OLD_GAP, k), "b": shown(OLD_GAP, k)} for k in range(13)
    ]
    source = await feed(rounds)
    reading = await source.read(query(arm, Function.INCREASE, GAP, by=("le",)), NEWEST_S)
    assert isinstance(reading, Sample)
    assert reading.by("le") == pytest.approx({"0.025": 12, "0.05": 36, "+Inf": 48})


async def test_a_replica_that_is_down_makes_the_answer_partial_and_is_named(feed: Feed, arm: str):
    rounds: list[Round] = [{"a": gauge(1), "b": gauge(10)} for _ in range(12)]
    source = await feed([*rounds, {"a": gauge(1), "b": None}])
    for function, value in ((Function.LAST, 1), (Function.AVG, 11)):
        reading = await source.read(query(arm, function, RUNNING), NEWEST_S)
        assert isinstance(reading, Partial)
        assert "replica=b" in reading.reason
        assert "replica=a" not in reading.reason
        assert reading.sample.total() == pytest.approx(value)
    alone = query(arm, Function.LAST, RUNNING, where=(("arm", arm), ("replica", "a")))
    assert isinstance(await source.read(alone, NEWEST_S), Sample)


async def test_an_arm_that_is_down_altogether_is_no_data(feed: Feed, arm: str):
    source = await feed([{"a": gauge(1)} for _ in range(12)] + [{"a": None}])
    for function in Function:
        reading = await source.read(query(arm, function, RUNNING), NEWEST_S)
        assert isinstance(reading, NoData)
        assert "replica=a" in reading.reason


async def test_a_counter_survives_one_missed_scrape_in_ten_but_not_more(feed: Feed, arm: str):
    shown: list[Round] = [{"a": counter(1000 + 10 * k)} for k in range(13)]
    shown[5] = {"a": None}
    source = await feed(shown)
    minute = query(arm, Function.INCREASE, window_s=60.0)
    # Twelve scrapes in (1, 61], one of them missed; seven in the window that ends at 36.
    assert one(await source.read(minute, NEWEST_S)) == pytest.approx(120)
    shorter = query(arm, Function.INCREASE, window_s=35.0)
    assert isinstance(await source.read(shorter, BASE_S + 36), Partial)
    assert isinstance(await source.read(query(arm, Function.LAST), moment(5) + 1), NoData)


async def test_a_removed_replica_is_gone_at_once_and_its_past_still_counts(feed: Feed, arm: str):
    both: list[Round] = [{"a": counter(1000 + 10 * k), "b": counter(10 * k)} for k in range(10)]
    source = await feed([*both, *({"a": counter(1000 + 10 * k)} for k in range(10, 13))])
    assert one(await source.read(query(arm, Function.LAST), moment(9) + 1)) == 1180
    assert one(await source.read(query(arm, Function.LAST), moment(10) + 1)) == 1100
    rise = one(await source.read(query(arm, Function.INCREASE), NEWEST_S))
    # b: three samples, 20 over 10 s; 4.2 s to the start, half an interval to the end.
    assert rise == pytest.approx(60 + 20 * (10 + 4.2 + 2.5) / 10)


async def test_a_series_that_a_good_scrape_no_longer_shows_is_stale(feed: Feed, arm: str):
    source = await feed(
        [{"a": gauge(1) + counter(1)}, {"a": gauge(1) + counter(1)}, {"a": gauge(1)}]
    )
    assert isinstance(await source.read(query(arm, Function.LAST), moment(2) + 1), NoData)
    assert one(await source.read(query(arm, Function.LAST, RUNNING), moment(2) + 1)) == 1


async def test_a_name_that_is_none_is_never_a_number(feed: Feed, arm: str):
    source = await feed([{"a": gauge(1)}])
    asked = query(arm, Function.LAST, 'up{} or vector(1) or up{x="')
    assert isinstance(await source.read(asked, moment(0) + 1), NoData | Failed)


async def test_up_tells_which_replica_answers(feed: Feed, arm: str):
    source = await feed([{"a": gauge(1), "b": None}])
    reading = await source.read(query(arm, Function.LAST, "up", by=("replica",)), moment(0) + 1)
    assert isinstance(reading, Partial)
    assert reading.sample.by("replica") == {"a": 1, "b": 0}


async def test_samples_are_counted_and_none_is_no_data(feed: Feed, arm: str):
    shown: list[Round] = [{"a": gauge(0), "b": gauge(0)} for _ in range(13)]
    shown[11] = {"a": gauge(0), "b": None}
    source = await feed(shown)
    asked = query(arm, Function.COUNT, RUNNING, window_s=20.0, by=("replica",))
    reading = await source.read(asked, NEWEST_S)
    assert isinstance(reading, Partial)
    assert reading.sample.by("replica") == {"a": 4, "b": 3}
    between = query(arm, Function.COUNT, RUNNING, window_s=2.0)
    assert isinstance(await source.read(between, moment(12) + 2.5), NoData)


@pytest.mark.parametrize("function", list(Function))
async def test_a_range_answers_at_each_step_what_a_reading_answers_then(
    feed: Feed, arm: str, function: Function
):
    """Before anything was there, over a reset, a missed scrape, a removal, and until all is stale.

    Steps are no whole seconds: the client of the Prometheus server rounds its times to such.
    """
    shown: list[dict[str, str | None]] = [
        {"a": counter(1000 + 10 * k), "b": counter(10 * (k % 4))} for k in range(13)
    ]
    shown[5]["b"] = None
    for now in shown[9:]:
        del now["b"]
    source = await feed(shown)
    asked = query(arm, function, by=("replica",))
    start_s, end_s, step_s = BASE_S - 3.3, NEWEST_S + LOOKBACK_S, 1.7
    readings = await source.read_range(asked, start_s, end_s, step_s)
    at = moments(start_s, end_s, step_s)
    assert len(at) == 47
    assert readings == tuple([await source.read(asked, at_s) for at_s in at])
    assert {type(reading) for reading in readings} == {NoData, Partial, Sample}


@pytest.mark.parametrize(
    ("length_s", "step_s"), [(-1.0, 1.0), (10.0, 0.0), (10.0, -1.0), (11_000.0, 1.0)]
)
async def test_a_range_that_is_none_is_refused(
    feed: Feed, arm: str, length_s: float, step_s: float
):
    source = await feed([{"a": gauge(1)}])
    with pytest.raises(BadInput, match="A range"):
        await source.read_range(query(arm, Function.LAST), BASE_S, BASE_S + length_s, step_s)


async def test_the_embedded_answers_are_those_of_prometheus_on_many_histories(
    server: PrometheusServer, arm: str
):
    """Sixty counters, half of them with resets, half with gaps and late starts, in every function.

    Not both at once: a counter near zero at the start of a gap is the one case in which versions of
    Prometheus differ (the older ones extrapolate to its zero, not half an interval at most).
    """
    rng = random.Random(7)
    rounds: list[dict[str, str | None]] = []
    values = [float(rng.randrange(1000, 3000)) for _ in range(60)]
    starts = [rng.choice([0, 0, 6, 10]) if i % 2 else 0 for i in range(60)]
    for k in range(13):
        for i in range(len(values)):
            step = rng.choice([0, 1, 3.5, 20])
            reset = i % 2 == 0 < k and rng.random() < 0.1
            values[i] = step if reset else values[i] + step
        shown = (
            f'{FINISHED}{{engine="{i}",finished_reason="stop"}} {value}\n'
            for i, value in enumerate(values)
            if k >= starts[i] and (i % 2 == 0 or rng.random() > 0.1)
        )
        rounds.append({"a": "".join(shown)})
    server.write(stored(arm, rounds))
    fake = FakeMetricSource(lookback_s=LOOKBACK_S)
    for k, shown_now in enumerate(rounds):
        fake.scrape(
            moment(k), {fake_target(arm=arm, replica=n): text for n, text in shown_now.items()}
        )
    source = PrometheusSource(server.url, lookback_s=LOOKBACK_S)

    compared = 0
    for function in Function:
        for window_s in (12.0, 30.0, 60.0):
            for at_s in (NEWEST_S, BASE_S + 43.7):
                asked = query(arm, function, window_s=window_s, by=("engine",))
                theirs, ours = await source.read(asked, at_s), await fake.read(asked, at_s)
                assert isinstance(theirs, Sample)
                assert isinstance(ours, Sample)
                assert ours.by("engine") == pytest.approx(dict(theirs.by("engine")), rel=1e-6)
                compared += len(ours.series)
    source.close()
    assert compared > 1200
