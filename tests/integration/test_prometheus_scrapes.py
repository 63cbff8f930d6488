"""A real Prometheus server and the embedded scraper look at the same living engines."""

import asyncio
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pytest_httpserver import HTTPServer
from werkzeug import Request, Response

from domain.metrics import Function, NoData, Partial, Query, Reading, Sample
from domain.ports import MetricSource
from domain.traffic import TrafficShape
from tests.fakes.clock import SystemClock
from tests.fakes.metrics import FakeEngineMetrics
from tests.fakes.prometheus import PrometheusServer
from tools.narrowed import Narrowed
from tools.profiler import Missing, read_shape
from tools.prometheus import PrometheusSource
from tools.queries import RUNNING
from tools.scrape import Scraper, Target

CONFIG = """
global: {scrape_interval: 500ms, scrape_timeout: 400ms}
scrape_configs:
  - job_name: engines
    file_sd_configs: [{files: [targets.json], refresh_interval: 200ms}]
"""
TWO_JOBS = f"""{CONFIG}
  - job_name: pods
    file_sd_configs: [{{files: [targets.json], refresh_interval: 200ms}}]
"""
LOOKBACK_S = 2.0
NOW = Query(metric=RUNNING, function=Function.LAST, where=(("arm", "production"),))


class Engines:
    """Two engines behind one server, and the list of targets that both sources read."""

    def __init__(self, httpserver: HTTPServer, home: Path) -> None:
        self._server, self._home = httpserver, home
        self.engines = {"a": FakeEngineMetrics(), "b": FakeEngineMetrics()}
        self.down: set[str] = set()
        self.targets: list[Target] = []
        for name in self.engines:
            httpserver.expect_request(f"/{name}/metrics").respond_with_handler(self._show)
        self.list("a", "b")

    def list(self, *names: str) -> None:
        self.targets = [
            Target(url=self._server.url_for(f"/{n}"), arm="production", config="c0", replica=n)
            for n in names
        ]
        groups = ", ".join(
            f'{{"targets": ["{self._server.host}:{self._server.port}"], "labels":'
            f' {{"arm": "production", "replica": "{n}", "__metrics_path__": "/{n}/metrics"}}}}'
            for n in names
        )
        fresh = self._home / "targets.new"
        fresh.write_text(f"[{groups}]")
        fresh.replace(self._home / "targets.json")

    def _show(self, request: Request) -> Response:
        name = request.path.split("/")[1]
        if name in self.down:
            return Response("down", 503)
        return Response(self.engines[name].text(), 200, content_type="text/plain; version=0.0.4")


@pytest.fixture
def engines(httpserver: HTTPServer, tmp_path: Path) -> Engines:
    return Engines(httpserver, tmp_path)


@pytest.fixture
def server(
    engines: Engines, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[PrometheusServer]:
    binary = shutil.which("prometheus")
    if binary is None:
        pytest.skip("no prometheus executable")
    server = PrometheusServer(binary, tmp_path, getattr(request, "param", CONFIG))
    yield server
    server.stop()


async def until(
    sources: tuple[MetricSource, ...], query: Query, kind: type, total: float | None
) -> list[Reading]:
    """Both sources' readings once they are what is waited for, within a deadline."""
    end_s = time.monotonic() + 20
    while True:
        readings = [await source.read(query, time.time()) for source in sources]
        if all(
            isinstance(r, kind) and (total is None or _sample(r).total() == total) for r in readings
        ):
            return readings
        assert time.monotonic() < end_s, readings
        await asyncio.sleep(0.1)


def _sample(reading: Reading) -> Sample:
    return reading.sample if isinstance(reading, Partial) else reading  # type: ignore[return-value]


async def test_both_sources_follow_engines_that_serve_fail_return_and_leave(
    engines: Engines, server: PrometheusServer
):
    scraper = Scraper(
        lambda: engines.targets,
        interval_s=0.5,
        retention_s=300,
        clock=SystemClock(),
        timeout_s=0.4,
        lookback_s=LOOKBACK_S,
    )
    prometheus = PrometheusSource(server.url, lookback_s=LOOKBACK_S)
    sources = (scraper, prometheus)
    running = asyncio.create_task(scraper.run())
    try:
        engines.engines["a"].running, engines.engines["b"].running = 3, 4
        await until(sources, NOW, Sample, 7)

        engines.down.add("b")
        for reading in await until(sources, NOW, Partial, 3):
            assert isinstance(reading, Partial)
            assert "replica=b" in reading.reason

        engines.down.clear()
        await until(sources, NOW, Sample, 7)

        engines.list("a")
        await until(sources, NOW, Sample, 3)

        engines.down.add("a")
        await until(sources, NOW, NoData, None)
        engines.down.clear()

        began_s = time.time()
        while time.time() < began_s + 5:
            engines.engines["a"].finish(2, isl=400, osl=80)
            await asyncio.sleep(0.05)
        shapes = [
            await read_shape(
                s, model="m", arm="production", end_s=time.time(), window_s=4.0, scrape_s=0.5
            )
            for s in sources
        ]
        for shape in shapes:
            assert isinstance(shape, TrafficShape), shape
            assert shape.isl.mean == pytest.approx(400, rel=0.2)
            assert shape.running == 3
            assert shape.covered, "scrapes are seen, however late they come"
        ours, theirs = shapes
        assert isinstance(ours, TrafficShape)
        assert isinstance(theirs, TrafficShape)
        assert ours.rate_rps == pytest.approx(theirs.rate_rps, rel=0.3)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        prometheus.close()


async def shape_once(
    source: MetricSource, true: Callable[[TrafficShape | Missing], bool]
) -> TrafficShape | Missing:
    """The shape, once it is what is waited for, within a deadline."""
    end_s = time.monotonic() + 20
    while True:
        found = await read_shape(
            source, model="m", arm="production", end_s=time.time(), window_s=4.0, scrape_s=0.5
        )
        if true(found):
            return found
        assert time.monotonic() < end_s, found
        await asyncio.sleep(0.1)


@pytest.mark.parametrize("server", [TWO_JOBS], indirect=True)
async def test_an_engine_that_two_jobs_scrape_counts_once_and_only_where_one_is_named(
    engines: Engines, server: PrometheusServer
):
    engines.list("a")
    engines.engines["a"].running = 3
    prometheus = PrometheusSource(server.url, lookback_s=LOOKBACK_S)
    try:
        await until((prometheus,), NOW, Sample, 6)
        found = await shape_once(
            prometheus, lambda shape: isinstance(shape, Missing) and "jobs" in shape.reason
        )
        assert isinstance(found, Missing)
        assert "replica 'a' is scraped by the jobs 'engines' and 'pods'" in found.reason
        named = Narrowed(prometheus, {"job": "engines"})
        shape = await shape_once(named, lambda shape: isinstance(shape, TrafficShape))
        assert isinstance(shape, TrafficShape)
        assert shape.running == 3
    finally:
        prometheus.close()
