"""Whether the shape of known traffic comes back through Prometheus: ``python -m benchmarks.shape``.

Seeded arrivals of known rate, burstiness and lengths go to two SIMULATED engines in virtual time.
What those show at each scrape is stored in a real Prometheus server, with missed scrapes and a
restart in one of the runs, and read back as in production. The last line printed is one JSON
object. The exit code is 1 where a limit was missed, and 2 without a ``prometheus`` executable.
Arguments are the number of seeds and the window in seconds, 50 minutes at most.
"""

from __future__ import annotations

import asyncio
import math
import random
import shutil
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Final, NamedTuple

from benchmarks.targets import ended, held, skipped
from domain.burstiness import burstiness
from domain.engine import EngineConfig
from domain.traffic import Distribution, TrafficShape
from serving.simulator import profile, startup
from serving.simulator.core import Core
from serving.simulator.metrics import EngineMetrics
from serving.simulator.scheduler import Request
from serving.simulator.startup import NotStarted
from tests.fakes.prometheus import PrometheusServer
from tools.exposition import parse
from tools.profiler import read_shape
from tools.prometheus import PrometheusSource
from tools.queries import METRICS

PROFILE: Final = "demo-hybrid"
MODEL: Final = "demo"
REPLICAS: Final = 2
SCRAPE_S: Final = 5.0
LEAD_S: Final = 120.0
WINDOW_S: Final = 2400.0
RATE_RPS: Final = 2.0
SEEDS: Final = 3
QUANTILES: Final = (0.5, 0.95)
# As a share of the true rate. A quantile must lie inside its bucket.
MOST_RATE_ERROR: Final = 0.03
# Of a window's scrapes, those of each replica that fail, and how long the restart takes.
MISSED: Final = 0.04
RESTART_S: Final = 12.0
_SHARED: Final = tuple(range(64))
_MESSAGE: Final = 200

Labels = tuple[tuple[str, str], ...]
Times = Sequence[float]


class Traffic(NamedTuple):
    """A way to arrive, told by the dispersion that it has over long intervals."""

    name: str
    dispersion: float
    arrive: Callable[[random.Random, float, float], Times]
    faults: bool = False


class Asked(NamedTuple):
    """A request as it was sent, in seconds since the start and in tokens."""

    at_s: float
    isl: int
    osl: int


def renewals(shape: float) -> Callable[[random.Random, float, float], Times]:
    """Independent Gamma gaps: dispersion 1 / ``shape``; Poisson at 1."""

    def arrive(rng: random.Random, rate_rps: float, end_s: float) -> Times:
        times, at_s = [], rng.gammavariate(shape, 1 / (shape * rate_rps))
        while at_s < end_s:
            times.append(at_s)
            at_s += rng.gammavariate(shape, 1 / (shape * rate_rps))
        return times

    return arrive


def clusters(size: int, spread_s: float) -> Callable[[random.Random, float, float], Times]:
    """Groups of ``size`` within ``spread_s``, which themselves are Poisson: dispersion ``size``."""

    def arrive(rng: random.Random, rate_rps: float, end_s: float) -> Times:
        begins = renewals(1.0)(rng, rate_rps / size, end_s)
        times = (at_s + rng.uniform(0, spread_s) for at_s in begins for _ in range(size))
        return sorted(at_s for at_s in times if at_s < end_s)

    return arrive


TRAFFIC: Final = (
    Traffic("poisson", 1.0, renewals(1.0)),
    Traffic("gamma", 4.0, renewals(0.25)),
    Traffic("clusters", 8.0, clusters(8, 8.0)),
    Traffic("clusters with missed scrapes and a restart", 8.0, clusters(8, 8.0), faults=True),
)


def requests(traffic: Traffic, rng: random.Random, end_s: float) -> list[Asked]:
    """The traffic's requests, with lengths about 300 and 60 tokens that have long tails."""

    def tokens(median: float, sigma: float, most: int) -> int:
        return min(max(round(rng.lognormvariate(math.log(median), sigma)), 2), most)

    return [
        Asked(at_s, len(_SHARED) + tokens(240, 1.0, 4000), tokens(60, 0.8, 600))
        for at_s in traffic.arrive(rng, RATE_RPS, end_s)
    ]


class Engine:
    """One simulated replica in virtual time; ``ended`` are the requests that it finished."""

    def __init__(self, seed: int) -> None:
        self.ended: list[Asked] = []
        self._seed = seed
        self._due: deque[Asked] = deque()
        self._tokens = 1000
        self.restart()

    def restart(self) -> None:
        """Lose what is inside and begin to count anew, as a new process does."""
        chosen = profile.load(PROFILE)
        started = startup.start(chosen, EngineConfig())
        assert not isinstance(started, NotStarted)
        self._core = Core(chosen, started, self._seed)
        self._metrics = EngineMetrics(MODEL, self._core, 0.0)
        self._now_s = 0.0

    def send(self, asked: Asked) -> None:
        self._due.append(asked)

    def show(self, at_s: float) -> str:
        """What a scrape at that time gets."""
        while (next_s := self._next_s()) <= at_s:
            self._now_s = next_s
            while self._due and self._due[0].at_s <= self._now_s:
                one = self._due.popleft()
                self._tokens += one.isl
                fresh = range(self._tokens, self._tokens + one.isl - len(_SHARED))
                self._core.submit(Request((*_SHARED, *fresh), one.osl, one.at_s))
            step = self._core.step(self._now_s)
            self._now_s += step.seconds
            advances = self._core.scheduler.complete(step.batch, self._now_s)
            self._metrics.iterated(step.batch, advances)
            for request, _, _ in advances:
                if request.finish is not None:
                    self._metrics.ended(request, request.osl)
                    self.ended.append(Asked(self._now_s, request.isl, request.osl))
        return self._metrics.exposition().decode()

    def _next_s(self) -> float:
        """When the engine begins its next iteration."""
        if self._core.scheduler.busy:
            return self._now_s
        return max(self._now_s, self._due[0].at_s) if self._due else math.inf


class Scrape(NamedTuple):
    """What a replica showed at a time; ``None`` where it could not be scraped."""

    at_s: float
    text: str | None


def scraped(engine: Engine, rng: random.Random, end_s: float, faults: bool) -> Iterator[Scrape]:
    """Scrapes at the replica's own phase, some milliseconds late, and the faults if any."""
    at_s = rng.uniform(0, SCRAPE_S)
    dies_s = rng.uniform(0.4, 0.6) * end_s if faults else math.inf
    while at_s <= end_s:
        text: str | None = engine.show(at_s)
        if dies_s <= at_s < dies_s + RESTART_S:
            text = None
        elif at_s >= dies_s:
            engine.restart()
            dies_s, text = math.inf, engine.show(at_s)
        inside = LEAD_S + 3 * SCRAPE_S < at_s < end_s - 3 * SCRAPE_S
        if faults and inside and rng.random() < MISSED:
            text = None
        yield Scrape(at_s + rng.uniform(0, 0.03), text)
        at_s += SCRAPE_S


def samples(
    scrapes: Sequence[Scrape], own: Labels, start_s: float
) -> dict[Labels, list[tuple[int, float | None]]]:
    """What Prometheus stores of the scrapes of one target: ``None`` is its stale marker."""
    series: dict[Labels, list[tuple[int, float | None]]] = {}
    before: set[Labels] = set()
    for at_s, text in scrapes:
        at_ms = round((start_s + at_s) * 1000)
        points = parse(text, METRICS) if text is not None else []
        now = {(("__name__", p.name), *own, *p.labels): p.value for p in points}
        series.setdefault((("__name__", "up"), *own), []).append((at_ms, float(text is not None)))
        for key, value in now.items():
            series.setdefault(key, []).append((at_ms, value))
        for key in before - now.keys():
            series[key].append((at_ms, None))
        before = set(now)
    return series


class Measured(NamedTuple):
    """What came back, beside the truth: requests sent, and those that ended, in the window."""

    traffic: Traffic
    shape: TrafficShape
    sent: Sequence[Asked]
    ended: Sequence[Asked]


async def measure(
    server: PrometheusServer,
    source: PrometheusSource,
    traffic: Traffic,
    seed: int,
    end_at_s: float,
    window_s: float,
) -> Measured:
    """Play the traffic, store what the engines showed, and read its shape at ``end_at_s``."""
    rng, end_s = random.Random(f"{traffic.name} {seed}"), LEAD_S + window_s
    arm = f"{traffic.name}-{seed}"
    asked = requests(traffic, rng, end_s)
    engines = [Engine(seed + k) for k in range(REPLICAS)]
    for one in asked:
        rng.choice(engines).send(one)
    for k, engine in enumerate(engines):
        scrapes = list(scraped(engine, rng, end_s, traffic.faults and k == 0))
        own = (("arm", arm), ("instance", f"engine-{k}"), ("replica", f"r{k}"))
        series = list(samples(scrapes, own, end_at_s - end_s).items())
        for first in range(0, len(series), _MESSAGE):
            server.write(dict(series[first : first + _MESSAGE]))
    shape = await read_shape(
        source, model=MODEL, arm=arm, end_s=end_at_s, window_s=window_s, scrape_s=SCRAPE_S
    )
    if not isinstance(shape, TrafficShape):
        raise RuntimeError(shape.reason)
    ended = [one for engine in engines for one in engine.ended]
    return Measured(
        traffic,
        shape,
        [one for one in asked if one.at_s >= LEAD_S],
        [one for one in ended if one.at_s >= LEAD_S],
    )


class Quantile(NamedTuple):
    """A quantile of lengths: the truth, what was told, and what the buckets leave open."""

    of: str
    true: float
    told: float
    low: float
    high: float

    @property
    def within(self) -> bool:
        return self.low < self.true <= self.high

    @property
    def error(self) -> float:
        """As a share of what the buckets leave open."""
        return abs(self.told - self.true) / (self.high - self.low)


def quantiles(name: str, told: Distribution, values: Sequence[int]) -> Iterator[Quantile]:
    ordered = sorted(values)
    for q in QUANTILES:
        bounds, guess = told.quantile_bounds(q), told.quantile(q)
        assert bounds is not None
        assert guess is not None
        true = ordered[math.ceil(q * len(ordered)) - 1]
        yield Quantile(f"{name} p{100 * q:g}", true, guess, *bounds)


def counted(times: Times, start_s: float, step_s: float, steps: int) -> list[float]:
    """How many of the times fall into each step."""
    counts = [0.0] * steps
    for at_s in times:
        if 0 <= (step := int((at_s - start_s) / step_s)) < steps:
            counts[step] += 1
    return counts


class Spread(NamedTuple):
    """The index of dispersion at one scale: of the requests sent, and as told with its interval."""

    scale_s: float
    true: float
    told: float
    low: float
    high: float
    intervals: int


class Row(NamedTuple):
    """One run: errors are shares of the truth, 0 where it was met."""

    traffic: str
    dispersion_by_design: float
    requests: int
    rate_rps: float
    rate_error: float
    isl_mean_error: float
    osl_mean_error: float
    covered: float | None
    quantiles: list[Quantile]
    dispersion: list[Spread]


def row(measured: Measured) -> Row:
    shape, sent, ended = measured.shape, measured.sent, measured.ended
    steps = int(shape.window_s / SCRAPE_S)
    truth = burstiness(counted([one.at_s for one in sent], LEAD_S, SCRAPE_S, steps), SCRAPE_S)
    return Row(
        traffic=measured.traffic.name,
        dispersion_by_design=measured.traffic.dispersion,
        requests=len(sent),
        rate_rps=shape.rate_rps,
        rate_error=error(shape.rate_rps * shape.window_s, len(sent)),
        isl_mean_error=error(shape.isl.mean, fmean(one.isl for one in ended)),
        osl_mean_error=error(shape.osl.mean, fmean(one.osl for one in ended)),
        covered=shape.covered,
        quantiles=[
            *quantiles("isl", shape.isl, [one.isl for one in ended]),
            *quantiles("osl", shape.osl, [one.osl for one in ended]),
        ],
        dispersion=[
            Spread(
                told.scale_s,
                true.dispersion,
                told.dispersion,
                told.interval.low,
                told.interval.high,
                told.interval.n,
            )
            # Gaps leave too few intervals of the longest scale first.
            for told, true in zip(shape.burstiness, truth, strict=False)
        ],
    )


def error(told: float | None, true: float) -> float:
    return math.inf if told is None else abs(told / true - 1)


def summary(rows: Sequence[Row], window_s: float) -> dict[str, object]:
    every = [one for row in rows for one in row.quantiles]
    spreads = [one for row in rows for one in row.dispersion]
    ratios = sorted(one.told / one.true for one in spreads)
    found = {
        "simulated": PROFILE,
        "runs": len(rows),
        "window_s": window_s,
        "scrape_s": SCRAPE_S,
        "replicas": REPLICAS,
        "rate_error_most": rounded(max(one.rate_error for one in rows)),
        "quantiles": len(every),
        "quantiles_within_their_bucket": sum(one.within for one in every),
        "quantile_error_of_bucket_most": rounded(max(one.error for one in every)),
        "dispersions": len(spreads),
        "dispersions_within_their_interval": sum(o.low <= o.true <= o.high for o in spreads),
        "dispersion_told_to_true": rounded([ratios[0], ratios[-1]]),
        "rows": [
            rounded(
                one._asdict()
                | {"quantiles": [{**q._asdict(), "error": q.error} for q in one.quantiles]}
                | {"dispersion": [spread._asdict() for spread in one.dispersion]}
            )
            for one in rows
        ],
    }
    return held(
        found,
        {
            "rate": max(one.rate_error for one in rows) <= MOST_RATE_ERROR,
            "quantiles": all(one.within for one in every),
        },
    )


def rounded(value: object) -> object:
    """Every number inside to four significant digits."""
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, dict):
        return {key: rounded(one) for key, one in value.items()}
    return [rounded(one) for one in value] if isinstance(value, list) else value


async def run(binary: str, seeds: int, window_s: float) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as home:
        server = PrometheusServer(binary, Path(home))
        source = PrometheusSource(server.url, timeout_s=60.0, lookback_s=3 * SCRAPE_S)
        try:
            # In the past, so that a slow run does not overtake it; the server takes it for an hour.
            end_at_s = float(int(time.time()) - 60)
            rows = [
                row(await measure(server, source, traffic, seed, end_at_s, window_s))
                for traffic in TRAFFIC
                for seed in range(1, seeds + 1)
            ]
        finally:
            source.close()
            server.stop()
    return summary(rows, window_s)


def main() -> int:
    binary = shutil.which("prometheus")
    if binary is None:
        return skipped("There is no prometheus executable on the PATH.")
    seeds, window_s = (*sys.argv[1:], *(str(SEEDS), str(WINDOW_S))[len(sys.argv) - 1 :])
    return ended(asyncio.run(run(binary, int(seeds), float(window_s))))


if __name__ == "__main__":
    sys.exit(main())
