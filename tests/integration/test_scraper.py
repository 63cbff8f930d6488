"""The embedded scraper and the direct reader against engines that are slow, huge or gone."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from pytest_httpserver import HTTPServer
from werkzeug import Request, Response

from domain.metrics import Function, NoData, Partial, Query, Sample
from tests.fakes.clock import FakeClock
from tests.fakes.metrics import FakeEngineMetrics
from tools.counters import read_counters
from tools.queries import FINISHED, PREFIX_QUERIES, RUNNING, UP
from tools.scrape import Scraper, Target

DATA = Path(__file__).resolve().parents[1] / "data"
TEXT = (DATA / "vllm-0.32-metrics.txt").read_text()
LAST = Query(metric=RUNNING, function=Function.LAST)


@pytest.fixture
def targets() -> list[Target]:
    return []


@pytest.fixture
async def scraper(targets: list[Target]) -> AsyncIterator[Scraper]:
    scraper = Scraper(
        lambda: targets, interval_s=0.5, retention_s=60.0, clock=FakeClock(), timeout_s=600.0
    )
    yield scraper
    await scraper.close()


def target(httpserver: HTTPServer, name: str) -> Target:
    return Target(url=httpserver.url_for(f"/{name}"), arm="production", config="c0", replica=name)


def closed_url() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}"


async def test_a_slow_engine_costs_itself_alone_its_scrape(
    httpserver: HTTPServer, scraper: Scraper, targets: list[Target]
):
    over = asyncio.Event()

    async def hang(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await over.wait()
        writer.close()
        await writer.wait_closed()
        gone.set()

    gone = asyncio.Event()
    hung = await asyncio.start_server(hang, "127.0.0.1", 0)
    port = hung.sockets[0].getsockname()[1]
    httpserver.expect_request("/good/metrics").respond_with_data(TEXT)
    slow = Target(url=f"http://127.0.0.1:{port}", arm="production", config="c0", replica="slow")
    targets += [target(httpserver, "good"), slow]
    async with asyncio.timeout(60):  # an interval ends the scrape, whatever the timeout says
        await scraper.scrape_once(1.0)
    over.set()
    await gone.wait()
    hung.close()
    await hung.wait_closed()
    reading = await scraper.read(LAST, 1.0)
    assert isinstance(reading, Partial)
    assert reading.sample.total() == 5
    assert "replica=slow" in reading.reason
    up = await scraper.read(Query(metric=UP, function=Function.LAST, by=("replica",)), 1.0)
    assert isinstance(up, Partial)
    assert up.sample.by("replica") == {"good": 1, "slow": 0}


@pytest.mark.parametrize(
    "answer",
    [
        Response("down", 500),
        Response("<html>", 200),
        Response(b"\xff\xfe up 1\n", 200),
        Response("# " + "x" * 9_000_000, 200),
        Response("", 302, headers={"Location": "/good/metrics"}),
    ],
    ids=["error", "page", "bytes", "huge", "redirect"],
)
async def test_an_answer_that_is_no_exposition_is_a_failed_scrape(
    httpserver: HTTPServer, scraper: Scraper, targets: list[Target], answer: Response
):
    httpserver.expect_request("/good/metrics").respond_with_data(TEXT)
    httpserver.expect_request("/bad/metrics").respond_with_response(answer)
    targets.append(target(httpserver, "bad"))
    await scraper.scrape_once(1.0)
    reading = await scraper.read(LAST, 1.0)
    assert isinstance(reading, NoData)
    assert await read_counters(httpserver.url_for("/bad")) is None


async def test_an_engine_that_is_gone_is_said_once_until_it_is_back(
    httpserver: HTTPServer,
    scraper: Scraper,
    targets: list[Target],
    caplog: pytest.LogCaptureFixture,
):
    def said() -> int:
        return sum("replica a could not be scraped" in r.message for r in caplog.records)

    gone = Target(url=closed_url(), arm="production", config="c0", replica="a")
    httpserver.expect_request("/a/metrics").respond_with_data(TEXT)
    with caplog.at_level(logging.WARNING):
        for at_s, now in enumerate([gone, gone, gone, target(httpserver, "a"), gone]):
            targets[:] = [now]
            await scraper.scrape_once(float(at_s))
    assert said() == 2


async def test_it_scrapes_once_an_interval_until_it_is_cancelled(httpserver: HTTPServer):
    """In simulated time, which moves only while the scraper sleeps."""
    engine, scraped = FakeEngineMetrics(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def show(_: Request) -> Response:
        engine.running += 1
        if engine.running == 5:
            loop.call_soon_threadsafe(scraped.set)
        return Response(engine.text())

    httpserver.expect_request("/a/metrics").respond_with_handler(show)
    clock = FakeClock(100.0)
    scraper = Scraper(
        lambda: [target(httpserver, "a")], interval_s=5.0, retention_s=600.0, clock=clock
    )
    running = asyncio.create_task(scraper.run())
    async with asyncio.timeout(10):
        await scraped.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert running.cancelled()
    for k in range(4):
        reading = await scraper.read(LAST, 100.0 + 5 * k)
        assert isinstance(reading, Sample)
        assert reading.total() == k + 1


async def test_a_fleet_of_several_versions_is_scraped_under_todays_names(
    httpserver: HTTPServer, scraper: Scraper, targets: list[Target]
):
    """vLLM 0.8 has the prefix counters' older names, 0.10 shows both, 0.6 has neither."""
    for version in ("0.32.0", "0.10.2", "0.8.5", "0.6.3.post1"):
        shown = (DATA / f"metrics-{version}.txt").read_text()
        httpserver.expect_request(f"/{version}/metrics").respond_with_data(shown)
        targets.append(target(httpserver, version))
    await scraper.scrape_once(1.0)
    queries = await scraper.read(replace(LAST, metric=PREFIX_QUERIES, by=("replica",)), 1.0)
    finished = await scraper.read(replace(LAST, metric=FINISHED), 1.0)
    assert isinstance(queries, Sample)
    assert queries.by("replica") == {"0.32.0": 2048, "0.10.2": 2048, "0.8.5": 128}
    assert isinstance(finished, Sample)
    assert finished.total() == 4 * 16


async def test_counters_are_read_from_the_engine_directly(httpserver: HTTPServer):
    httpserver.expect_request("/metrics").respond_with_data(TEXT)
    found = await read_counters(httpserver.url_for("/"))
    assert found is not None
    assert (found.requests, found.generation_tokens) == (16, 1350)


@pytest.mark.parametrize("url", ["http://", "no url"])
async def test_counters_of_an_engine_that_cannot_be_asked_are_none(url: str):
    assert await read_counters(url) is None
    assert await read_counters(closed_url()) is None
