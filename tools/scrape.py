"""The embedded metric source: scrapes the engines of one machine and answers from memory.

It is the default where there is no Prometheus server, and answers the same queries with the same
meaning. It only reads ``/metrics``; it never judges, and a target that is down is recorded, not
raised.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import httpx

from domain.metrics import Query, Reading, moments
from domain.ports import Clock
from tools.exposition import Labels, Point, parse
from tools.history import History
from tools.queries import METRICS

_LOG = logging.getLogger(__name__)
_MAX_BYTES: Final = 8_000_000
_LOOKBACK_INTERVALS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """An engine to scrape: its base URL (``/metrics`` is added), and the labels it is known by."""

    url: str
    arm: str
    config: str
    replica: str

    @property
    def labels(self) -> Labels:
        """What every series of this target carries; ``instance`` is host and port."""
        instance = httpx.URL(self.url).netloc.decode()
        return (
            ("arm", self.arm),
            ("config", self.config),
            ("instance", instance),
            ("replica", self.replica),
        )


class Scraper:
    """A MetricSource over the targets that ``targets`` names at each scrape.

    ``interval_s`` is the time between scrapes, ``timeout_s`` the most one may take (an interval
    at most), ``lookback_s`` the age at which a sample is stale (three intervals), in seconds. Keeps
    ``retention_s`` of the metrics that ``tools.queries`` names, and at most ``series_cap`` series.
    """

    def __init__(
        self,
        targets: Callable[[], Sequence[Target]],
        *,
        interval_s: float,
        retention_s: float,
        clock: Clock,
        timeout_s: float = 2.0,
        lookback_s: float | None = None,
        series_cap: int = 50_000,
    ) -> None:
        self._targets = targets
        self._interval_s = interval_s
        # A round lasts as long as its slowest target, which must not make the others stale.
        self._timeout_s = min(timeout_s, interval_s)
        self._clock = clock
        self._history = History(
            retention_s=retention_s,
            lookback_s=_LOOKBACK_INTERVALS * interval_s if lookback_s is None else lookback_s,
            series_cap=series_cap,
        )
        self._client = httpx.AsyncClient(trust_env=False, timeout=self._timeout_s)
        self._said: set[str] = set()

    async def read(self, query: Query, at_s: float) -> Reading:
        return self._history.read(query, at_s)

    async def read_range(
        self, query: Query, start_s: float, end_s: float, step_s: float
    ) -> tuple[Reading, ...]:
        return self._history.read_at(query, moments(start_s, end_s, step_s))

    async def scrape_once(self, at_s: float) -> None:
        """Scrape all targets at once and record what they say as of ``at_s``."""
        targets = {target.labels: target for target in self._targets()}
        points = await asyncio.gather(*(self._fetch(target) for target in targets.values()))
        for fault in self._history.record(at_s, dict(zip(targets, points, strict=True))):
            self._say(fault, fault)

    async def run(self) -> None:
        """Scrape for ever, once an interval; ends by being cancelled, and then closes."""
        try:
            while True:
                began_s = self._clock.now()
                await self.scrape_once(began_s)
                spent_s = self._clock.now() - began_s
                await self._clock.sleep(min(max(self._interval_s - spent_s, 0), self._interval_s))
        finally:
            await self.close()

    async def close(self) -> None:
        """Let go of the connections; what was recorded can still be read."""
        await self._client.aclose()

    async def _fetch(self, target: Target) -> Sequence[Point] | None:
        url = f"{target.url.rstrip('/')}/metrics"
        try:
            async with asyncio.timeout(self._timeout_s):
                text = await self._body(url)
            points = parse(text, METRICS)
        except (httpx.HTTPError, TimeoutError, ValueError) as error:
            self._say(target.replica, f"replica {target.replica} could not be scraped: {error!r}")
            return None
        self._said.discard(target.replica)
        return points

    async def _body(self, url: str) -> str:
        body = bytearray()
        async with self._client.stream("GET", url) as response:
            if response.status_code != httpx.codes.OK:
                raise ValueError(f"HTTP {response.status_code}")
            async for chunk in response.aiter_bytes():
                body += chunk
                if len(body) > _MAX_BYTES:
                    raise ValueError(f"more than {_MAX_BYTES} bytes")
        return body.decode()

    def _say(self, subject: str, sentence: str) -> None:
        """Log a sentence once for as long as its subject stays as it is."""
        if subject not in self._said:
            self._said.add(subject)
            _LOG.warning("%s", sentence)
