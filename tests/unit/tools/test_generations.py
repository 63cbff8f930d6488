"""Older versions of vLLM are read as today's is, under whatever names they show their metrics."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from domain.metrics import Function, Query, Reading, Sample
from domain.traffic import TrafficShape
from tests.fakes.metrics import FakeEngineMetrics, FakeMetricSource, target
from tools.arm import read_arm
from tools.counters import counters
from tools.exposition import parse
from tools.generations import OLDER, names
from tools.profiler import Missing, read_shape
from tools.promql import promql
from tools.queries import METRICS, PREFIX_HITS, UP

DATA = Path(__file__).resolve().parents[2] / "data"
TODAY = "0.32.0"
OLD = ("0.10.2", "0.8.5", "0.6.3.post1")
LIVE = target(arm="production")
END_S, WINDOW_S, INTERVAL_S = 10_000.0, 60.0, 5.0
LINE = re.compile(r"([\w:]+)(\{.*\})? (\S+)")


def shown_by(version: str) -> str:
    return (DATA / f"metrics-{version}.txt").read_text()


def grown(text: str, times: int) -> str:
    """What the engine shows once it has done all of it ``times`` over: gauges stay."""

    def line(match: re.Match[str]) -> str:
        name, labels, value = match.groups("")
        gauge = name.startswith("vllm:num_requests") or name.endswith(("_perc", "_rate"))
        return match[0] if gauge else f"{name}{labels} {float(value) * times}"

    return LINE.sub(line, "\n".join(kept(text)))


def kept(text: str) -> list[str]:
    return [line for line in text.splitlines() if not line.startswith("#")]


def traffic(text: str) -> FakeMetricSource:
    source = FakeMetricSource()
    for k in range(round(2 * WINDOW_S / INTERVAL_S) + 1):
        at_s = END_S - 2 * WINDOW_S + k * INTERVAL_S
        source.scrape(at_s, {LIVE: grown(text, k + 10)})
    return source


async def shape(version: str) -> TrafficShape:
    found = await read_shape(
        traffic(shown_by(version)),
        model="models/smollm2-135m",
        arm="production",
        end_s=END_S,
        window_s=WINDOW_S,
    )
    assert isinstance(found, TrafficShape), found
    return found


@pytest.mark.parametrize("version", OLD)
async def test_the_same_traffic_has_the_same_shape_in_every_version(version: str):
    """But what a version did not measure, which is unknown and not zero."""
    today = await shape(TODAY)
    assert today.rate_rps == pytest.approx(16 / INTERVAL_S)
    assert (today.isl.mean, today.osl.mean, today.prefix_hit_rate) == (128, 32, 0)
    assert today.latencies.tpot_p95_ms is not None
    timed = replace(today.latencies, tpot_p50_ms=None, tpot_p95_ms=None, tpot_ms=None)
    found = await shape(version)
    unknown = replace(today, latencies=timed, rejected=None)
    if version.startswith("0.6"):
        # Its buckets end sooner; the quantiles are those of today.
        timed = replace(timed, ttft_ms=found.latencies.ttft_ms)
        unknown = replace(unknown, latencies=timed, prefix_hit_rate=None)
    assert found == unknown


@pytest.mark.parametrize("version", OLD)
async def test_an_arm_without_a_tpot_holds_instead_of_being_judged_by_gaps(version: str):
    found = await read_arm(
        traffic(shown_by(version)),
        model="models/smollm2-135m",
        arm="production",
        end_s=END_S,
        window_s=WINDOW_S,
    )
    assert isinstance(found, Missing)
    assert found.signals == ("tpot", "tpot total")


@pytest.mark.parametrize("version", OLD)
def test_an_engines_counters_are_read_in_every_version(version: str):
    found, today = counters(shown_by(version)), counters(shown_by(TODAY))
    assert found is not None
    assert today is not None
    assert (found.requests, found.prompt_tokens, found.generation_tokens) == (16, 2048, 512)
    assert replace(found, prefix_queries=2048, prefix_hits=0) == today
    queries = {"0.10.2": 2048, "0.8.5": 128, "0.6.3.post1": None}  # 0.8 counts blocks of 16
    assert found.prefix_queries == queries[version]


def test_every_older_name_was_shown_once_and_is_no_longer():
    once = {name for version in OLD for name in names_in(shown_by(version))}
    today = names_in(shown_by(TODAY))
    for name, older in OLDER.items():
        assert name in METRICS & today
        for one in older:
            assert one in once - today


def names_in(text: str) -> set[str]:
    return {match[1] for line in kept(text) if (match := LINE.fullmatch(line))}


def test_no_name_stands_for_two_signals():
    every = [name for metric in METRICS for name in names(metric)]
    assert len(every) == len(set(every))
    assert names(UP) == (UP,)


def test_a_query_asks_for_every_name():
    older = "vllm:gpu_prefix_cache_hits_total"
    query = Query(metric=PREFIX_HITS, function=Function.INCREASE, where=(("arm", "a"),))
    assert promql(query) == (
        f'sum (increase({PREFIX_HITS}{{arm="a"}}[60s]) or increase({older}{{arm="a"}}[60s]))'
        f' and on () (time() - timestamp({PREFIX_HITS}{{arm="a"}}) < 15'
        f' or time() - timestamp({older}{{arm="a"}}) < 15)'
    )
    assert promql(replace(query, function=Function.LAST, where=())) == (
        f"sum ({PREFIX_HITS} and time() - timestamp({PREFIX_HITS}) < 15"
        f" or {older} and time() - timestamp({older}) < 15)"
    )


def test_a_series_under_two_names_has_the_newer_ones_value():
    text = f'{OLDER[PREFIX_HITS][0]}{{e="0"}} 5\n{PREFIX_HITS}{{e="0"}} 7\n'
    for order in (text, "\n".join(reversed(text.splitlines()))):
        assert [(p.name, p.value) for p in parse(order, METRICS)] == [(PREFIX_HITS, 7.0)]


Texts = Sequence[str]


@st.composite
def histories(draw: st.DrawFn) -> Texts:
    """What an engine showed at five scrapes, after a long past."""
    engine = FakeEngineMetrics()
    for reason in ("stop", "length", "abort", "error"):
        engine.finish(1000, reason=reason, prefix_hits=40)
    engine.speculate(9000, 4000)
    engine.count("vllm:num_preemptions_total", 1000)
    texts = []
    for _ in range(5):
        engine.running, engine.waiting = draw(st.integers(0, 99)), draw(st.integers(0, 99))
        isl, osl = draw(st.integers(1, 3000)), draw(st.integers(2, 300))
        engine.finish(
            draw(st.integers(0, 9)),
            isl=isl,
            osl=osl,
            tpot_s=draw(st.sampled_from([0.004, 0.03, 0.3, 90.0])),
            prefix_hits=draw(st.integers(0, isl)),
            reason=draw(st.sampled_from(["stop", "length", "abort", "error"])),
        )
        engine.reject(draw(st.integers(0, 3)))
        engine.speculate(draw(st.integers(5, 9)), draw(st.integers(0, 5)))
        texts.append(engine.text())
    return texts


async def readings(texts: Texts) -> dict[Query, Reading]:
    source = FakeMetricSource()
    for k, text in enumerate(texts):
        source.scrape(END_S - 20 + 5 * k, {LIVE: text})
    queries = [
        Query(metric=metric, function=function, window_s=18.0, by=("le", "finished_reason"))
        for metric in sorted(METRICS)
        for function in Function
    ]
    return {query: await source.read(query, END_S + 1) for query in queries}


def rewritten(texts: Texts, line: Callable[[str, str, str], str]) -> Texts:
    return [LINE.sub(lambda match: line(*match.groups("")), text) for text in texts]


@given(histories())
@settings(max_examples=6, deadline=None)
async def test_older_names_alone_or_beside_todays_change_no_reading(texts: Texts):
    def renamed(name: str, labels: str, value: str) -> str:
        return f"{names(name)[-1]}{labels} {value}"

    def both(name: str, labels: str, value: str) -> str:
        shown = [(one, float(value) * (1 + age)) for age, one in enumerate(names(name))]
        return "\n".join(f"{one}{labels} {number}" for one, number in reversed(shown))

    today = await readings(texts)
    assert await readings(rewritten(texts, renamed)) == today
    assert await readings(rewritten(texts, both)) == today


@given(histories(), st.sampled_from([0.25, 0.5, 0.75]))
@settings(max_examples=6, deadline=None)
async def test_one_engine_split_over_two_labels_sums_to_the_same(texts: Texts, share: float):
    """As data-parallel engines show themselves."""

    def split(name: str, labels: str, value: str) -> str:
        if 'engine="0"' not in labels:
            return f"{name}{labels} {value}"
        other = labels.replace('engine="0"', 'engine="1"')
        part = float(value) * share
        return f"{name}{labels} {part}\n{name}{other} {float(value) - part}"

    whole, parts = await readings(texts), await readings(rewritten(texts, split))
    for query, reading in whole.items():
        if query.function in (Function.MAX, Function.COUNT) or "engine" in query.by:
            continue  # The two need not reach their highest at once, and have a sample each.
        summed = parts[query]
        assert isinstance(reading, Sample)
        assert isinstance(summed, Sample)
        for ours, theirs in zip(summed.series, reading.series, strict=True):
            assert ours.labels == theirs.labels
            assert ours.value == pytest.approx(theirs.value, rel=1e-9, abs=1e-9)
