"""Which engines answer, and where the time to a first token goes."""

import pytest

from domain.metrics import Failed, NoData
from tests.fakes.metrics import FakeEngineMetrics, FakeMetricSource, target
from tools import queries
from tools.engines import Engines, read_engines
from tools.means import Means, read_means

END_S, WINDOW_S, SCRAPE_S = 10_000.0, 120.0, 5.0


def played(*, down: bool = False, restarted: bool = False, gone: bool = False) -> FakeMetricSource:
    """Two engines, of which something happens to the second in mid-window."""
    source = FakeMetricSource()
    first, second = FakeEngineMetrics(), FakeEngineMetrics()
    for tick in range(40):
        at_s = END_S - SCRAPE_S * (39 - tick)
        late = at_s > END_S - WINDOW_S / 2
        if restarted and late:
            second, restarted = FakeEngineMetrics(), False
        for engine in (first, second):
            engine.finish(2, ttft_s=0.5, tpot_s=0.02, osl=51, queued_s=0.1, prefill_s=0.15)
        shown = {target(arm="a", replica="r1"): first.text()}
        if not (gone and late):
            shown[target(arm="a", replica="r2")] = None if down and late else second.text()
        source.scrape(at_s, shown)
    return source


async def engines(source: FakeMetricSource) -> Engines:
    return await read_engines(source, model="m", arm="a", end_s=END_S, window_s=WINDOW_S)


@pytest.mark.parametrize(
    ("happens", "up", "down", "restarted"),
    [
        ({}, ("r1", "r2"), (), ()),
        ({"down": True}, ("r1",), ("r2",), ()),
        ({"restarted": True}, ("r1", "r2"), (), ("r2",)),
        ({"gone": True}, ("r1",), (), ()),
    ],
)
async def test_engines_are_told_apart(
    happens: dict[str, bool], up: tuple[str, ...], down: tuple[str, ...], restarted: tuple[str, ...]
):
    found = await engines(played(**happens))
    assert (found.up, found.down, found.restarted) == (up, down, restarted)
    assert (found.seen, found.most, found.fault) == (("r1", "r2"), 2, "")


async def test_no_engine_and_no_source_are_different_things():
    assert await engines(FakeMetricSource()) == Engines()
    failing = FakeMetricSource()
    failing.answer(queries.UP, Failed(reason="it is down"))
    found = await engines(failing)
    assert (found.known, found.fault) == (False, "it is down")


async def means(source: FakeMetricSource) -> Means:
    return await read_means(source, model="m", arm="a", end_s=END_S, window_s=WINDOW_S)


async def test_what_queue_and_prefill_do_not_explain_is_the_servers():
    found = await means(played())
    assert (found.ttft_ms, found.tpot_ms, found.e2el_ms) == pytest.approx((500, 20, 1500))
    assert (found.queued_ms, found.prefill_ms, found.server_ms) == pytest.approx((100, 150, 250))


async def test_a_mean_that_lacks_its_sum_is_not_known():
    source = played()
    source.answer(queries.QUEUED.sum, NoData(reason="not shown"))
    found = await means(source)
    assert (found.queued_ms, found.server_ms) == (None, None)
    assert found.ttft_ms == pytest.approx(500)
    assert await means(FakeMetricSource()) == Means()
