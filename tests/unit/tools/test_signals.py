"""Each signal has its price, and each way of not being there has its name."""

import pytest

from domain.metrics import Failed, NoData, Partial, Sample
from tests.fakes.metrics import FakeEngineMetrics, FakeMetricSource, target
from tools import arm, profiler, queries
from tools.signals import COSTS, Look, State, look, signals

NOW_S = 10_000.0
ASKED = signals(model="m", arm="production", window_s=60.0)


def source(*, model="m", end_s=NOW_S, lookback_s=15.0, arm="production"):
    """An engine scraped every five seconds for three minutes up to ``end_s``."""
    fake, engine = FakeMetricSource(lookback_s=lookback_s), FakeEngineMetrics(model)
    for k in range(37):
        engine.finish(2)
        fake.scrape(end_s - 180 + 5 * k, {target(arm=arm, replica="a"): engine.text()})
    return fake


async def states(source, **more) -> dict[str, State]:
    seen = await look(source, ASKED, at_s=NOW_S, **more)
    return {finding.signal.name: finding.state for finding in seen.findings}


def test_every_signal_of_a_shape_and_of_a_verdict_is_asked_for_and_has_its_price():
    names = {signal.name for signal in ASKED}
    assert names == {
        *profiler.shape_queries(model="m", arm=None, window_s=1),
        *profiler.REQUIRED,
        *arm.arm_queries(model="m", arm="a", window_s=1),
    }
    assert names - COSTS.keys() == set()
    required = {signal.name for signal in ASKED if signal.required}
    assert required == {*profiler.REQUIRED, *arm.REQUIRED}
    assert [signal.required for signal in ASKED] == sorted(
        (signal.required for signal in ASKED), reverse=True
    )


async def test_what_makes_a_shape_is_found_and_is_complete():
    fake = source()
    shape = await profiler.read_shape(fake, model="m", arm="production", end_s=NOW_S, window_s=60.0)
    assert not isinstance(shape, profiler.Missing)
    seen = await look(fake, ASKED, at_s=NOW_S)
    lacking = {f.signal.name for f in seen.findings if f.state is not State.FOUND}
    assert lacking == {"draft tokens", "accepted tokens"}
    assert seen.complete


@pytest.mark.parametrize(
    ("reading", "state"),
    [
        (Partial(reason="half", sample=Sample(at_s=1.0, series=())), State.PARTIAL),
        (Failed(reason="down"), State.UNREADABLE),
        (NoData(reason="none"), State.MISSING),
    ],
)
async def test_no_incomplete_answer_counts_as_found(reading, state):
    fake = source()
    fake.answer(queries.TTFT.bucket, reading)
    seen = await look(fake, ASKED, at_s=NOW_S)
    [finding] = [finding for finding in seen.findings if finding.signal.name == "ttft"]
    assert (finding.state, finding.reason) == (state, reading.reason)
    assert not seen.complete


async def test_an_optional_signal_that_is_missing_leaves_all_complete():
    fake = source()
    fake.answer(queries.PREEMPTIONS, NoData(reason="none"))
    assert (await look(fake, ASKED, at_s=NOW_S)).complete
    assert not Look(findings=()).complete


@pytest.mark.parametrize(
    ("reading", "holds"),
    [
        (NoData(reason="none"), False),
        (Failed(reason="down"), True),
        (Partial(reason="half", sample=Sample(at_s=1.0, series=())), True),
    ],
)
async def test_all_is_complete_where_there_is_a_shape(reading, holds):
    """Whatever makes Serinus hold must not be told as complete, nor the other way round."""
    fake = source()
    fake.answer(queries.PREEMPTIONS, reading)
    shape = await profiler.read_shape(fake, model="m", arm="production", end_s=NOW_S, window_s=60.0)
    assert isinstance(shape, profiler.Missing) is holds
    assert (await look(fake, ASKED, at_s=NOW_S)).complete is not holds


async def test_an_engine_that_two_jobs_scrape_is_told_and_makes_nothing_complete():
    fake, engine = FakeMetricSource(), FakeEngineMetrics()
    places = [target(arm="production", job=job) for job in ("pods", "vllm")]
    for k in range(37):
        engine.finish(2)
        fake.scrape(NOW_S - 180 + 5 * k, dict.fromkeys(places, engine.text()))
    seen = await look(fake, ASKED, at_s=NOW_S)
    [finding] = [finding for finding in seen.findings if finding.state is State.DOUBLED]
    assert finding.signal.name == "finished"
    assert "by the jobs 'pods' and 'vllm'" in finding.reason
    assert not seen.complete


@pytest.mark.parametrize("gone_s", [120.0, 800.0, 3700.0])
async def test_what_was_there_before_is_stale(gone_s):
    fake, patient = (source(end_s=NOW_S - gone_s, lookback_s=age) for age in (15.0, 300.0))
    told = await states(fake, patient=patient)
    assert told["ttft"] is told["running"] is State.STALE
    assert told["draft tokens"] is State.MISSING
    assert (await states(fake))["ttft"] is State.MISSING


@pytest.mark.parametrize(
    ("theirs", "labels"),
    [
        ({"arm": "blue"}, (("arm", "blue"), ("model_name", "m"))),
        ({"model": "other"}, (("arm", "production"), ("model_name", "other"))),
    ],
)
async def test_what_is_there_under_other_labels_is_told_with_them(theirs, labels):
    seen = await look(source(**theirs), ASKED, at_s=NOW_S)
    unlabelled = {finding.signal.name for finding in seen.findings if finding.unlabelled}
    assert "isl" in unlabelled
    assert "draft tokens" not in unlabelled
    assert seen.labels == (labels,)


async def test_the_fleets_own_labels_say_where_to_look():
    fake = source(arm="blue")
    elsewhere = await look(fake, ASKED, at_s=NOW_S, fleet=(("replica", "b"),))
    assert not any(finding.unlabelled for finding in elsewhere.findings)
    ours = await look(fake, ASKED, at_s=NOW_S, fleet=(("replica", "a"),))
    assert any(finding.unlabelled for finding in ours.findings)
    wheres = {query.where for query, _ in fake.asked}
    assert (("replica", "a"),) in wheres
