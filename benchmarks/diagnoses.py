"""Known troubles of a fleet as data, and how many of them the diagnosis by rules names rightly.

``python -m benchmarks.diagnoses`` plays each scenario's two windows into the recorded past of a
metric source, asks the rules what is the matter, and says right or wrong. The traffic is made up:
its figures are such as vLLM shows in that trouble, with noise from a seed. Scenarios that are not
``claimed`` are troubles that the rules cannot tell by the metrics that they have; they stand here
so that a score is honest. The exit code is 1 where one that is claimed comes out wrong.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from agent.inquiry.causes import Cause
from agent.inquiry.period import Period
from agent.inquiry.rules import diagnose
from agent.inquiry.seen import Seen, Setup, look
from benchmarks.targets import ended, held
from domain.metrics import Failed
from domain.slo import SLO
from tests.fakes.metrics import FakeEngineMetrics, FakeMetricSource, target
from tools.queries import ENGINE_TIMES, METRICS, UP

MODEL = "m"
ARM = "production"
END_S = 1_800_000_000.0
WINDOW_S = 300.0
SCRAPE_S = 10.0
NOISE = 0.03
SLO_TEXT = "ttft<=1s, tpot<=60ms, share>=95%"


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """What one engine does. Lengths are tokens, times seconds, rates a second; ``hits`` and
    ``accepted`` are shares (0–1); of a TTFT what is neither ``prefill_s`` nor ``server_s`` is spent
    in the queue; ``preempted`` is a request's, ``stalled`` how many of its gaps are as long as
    ``stall_s``. ``long`` of the requests (0–1) have prompts of ``long_isl``."""

    rps: float = 4.0
    isl: int = 800
    osl: int = 150
    ttft_s: float = 0.3
    tpot_s: float = 0.03
    running: float = 20.0
    waiting: float = 0.0
    kv: float = 0.5
    hits: float = 0.5
    preempted: float = 0.0
    accepted: float | None = None
    prefill_s: float = 0.15
    server_s: float = 0.02
    stalled: int = 0
    stall_s: float = 0.0
    long: float = 0.0
    long_isl: int = 12_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """``right`` is the cause that a person would name. ``down_s`` is for how long at the end one
    engine's scrapes fail, ``gone`` that one is removed, ``restart_s`` when in the window one is
    started anew, ``unscraped`` that no engine is scraped any more, ``failing`` that the source
    fails, ``without`` the metrics that the engines do not show."""

    name: str
    question: str
    right: Cause
    now: Traffic
    before: Traffic = field(default_factory=Traffic)
    claimed: bool = True
    engines: int = 1
    seats: float | None = 256.0
    chunked: bool | None = True
    down_s: float = 0.0
    gone: bool = False
    restart_s: float | None = None
    unscraped: bool = False
    failing: bool = False
    without: frozenset[str] = frozenset()


CALM = Traffic()

SCENARIOS = (
    Scenario(
        name="KV cache full, with preemptions",
        question="Why is TTFT high?",
        right=Cause.KV_CACHE,
        before=replace(CALM, kv=0.8, running=60),
        now=replace(
            CALM, kv=0.98, running=60, waiting=25, ttft_s=2.4, tpot_s=0.055, preempted=0.2
        ),
    ),
    Scenario(
        name="queue behind max_num_seqs",
        question="Why do requests wait?",
        right=Cause.SCHEDULER,
        seats=32.0,
        before=replace(CALM, running=24),
        now=replace(CALM, rps=4.6, running=32, waiting=20, ttft_s=5.0),
    ),
    Scenario(
        name="prefix cache finds less",
        question="Why did TTFT rise?",
        right=Cause.PREFIX_CACHE,
        before=replace(CALM, hits=0.7, ttft_s=0.25),
        now=replace(CALM, hits=0.2, ttft_s=0.9, running=30, prefill_s=0.7),
    ),
    Scenario(
        name="long prompts block decodes, no chunked prefill",
        question="Why do tokens come in jerks?",
        right=Cause.BLOCKED_DECODES,
        chunked=False,
        now=replace(CALM, long=0.1, tpot_s=0.022, stalled=12, stall_s=0.45, ttft_s=0.6),
    ),
    Scenario(
        name="drafts are no longer accepted",
        question="Why is TPOT worse?",
        right=Cause.SPECULATION,
        before=replace(CALM, accepted=0.75, tpot_s=0.015),
        now=replace(CALM, accepted=0.35, tpot_s=0.03, running=26),
    ),
    Scenario(
        name="demand doubled",
        question="Why is everything slower?",
        right=Cause.DEMAND,
        now=replace(CALM, rps=8.4, running=75, waiting=6, ttft_s=0.9, tpot_s=0.045, kv=0.8),
    ),
    Scenario(
        name="demand doubled, and the batch is full",
        question="Why is there a queue?",
        right=Cause.DEMAND,
        seats=64.0,
        now=replace(CALM, rps=8.0, running=64, waiting=40, ttft_s=4.0, tpot_s=0.05),
    ),
    Scenario(
        name="the load client is slow",
        question="Why is throughput so low?",
        right=Cause.CLIENTS,
        before=replace(CALM, rps=6.0, running=30),
        now=replace(CALM, rps=2.0, running=9, ttft_s=0.28, tpot_s=0.028, kv=0.2),
    ),
    Scenario(
        name="one of two replicas is dead",
        question="Why is TTFT high?",
        right=Cause.REPLICA_DOWN,
        engines=2,
        down_s=120.0,
        now=replace(CALM, rps=7.0, running=45, waiting=12, ttft_s=1.8),
    ),
    Scenario(
        name="one of two replicas was removed",
        question="Why is TTFT high?",
        right=Cause.REPLICA_DOWN,
        engines=2,
        gone=True,
        now=replace(CALM, rps=7.0, running=45, waiting=12, ttft_s=1.8),
    ),
    Scenario(
        name="cold start after a restart",
        question="Why was TTFT high?",
        right=Cause.COLD_START,
        restart_s=60.0,
        before=replace(CALM, hits=0.7, ttft_s=0.25),
        now=replace(CALM, hits=0.3, ttft_s=0.85, running=26, prefill_s=0.7),
    ),
    Scenario(
        name="traffic is gone",
        question="Why is there no throughput?",
        right=Cause.NO_TRAFFIC,
        now=replace(CALM, rps=0.0, running=0, kv=0.0),
    ),
    Scenario(
        name="scrapes are missing",
        question="Why is there no throughput?",
        right=Cause.NO_METRICS,
        unscraped=True,
        now=CALM,
    ),
    Scenario(
        name="the metric source is down",
        question="Why is there no throughput?",
        right=Cause.NO_METRICS,
        failing=True,
        now=CALM,
    ),
    Scenario(
        name="the API server's CPU is saturated",
        question="Why is TTFT high while the GPU idles?",
        right=Cause.API_SERVER,
        now=replace(CALM, ttft_s=2.0, tpot_s=0.045, running=16, kv=0.4, server_s=1.8),
    ),
    Scenario(
        name="prompts became long, with chunked prefill",
        question="Why did TTFT rise?",
        right=Cause.PREFILL,
        now=replace(CALM, isl=2600, ttft_s=0.95, running=28, prefill_s=0.8),
    ),
    Scenario(
        name="answers became long",
        question="Why does it take so long?",
        right=Cause.DECODE,
        now=replace(CALM, osl=420, running=55, tpot_s=0.04, kv=0.7),
    ),
    Scenario(
        name="healthy",
        question="Is anything wrong?",
        right=Cause.HEALTHY,
        now=CALM,
    ),
    Scenario(
        name="healthy, with more demand",
        question="Do we cope?",
        right=Cause.HEALTHY,
        now=replace(CALM, rps=7.0, running=34, kv=0.6),
    ),
    Scenario(
        name="the API server's CPU is saturated, and the engine tells no times of its own",
        question="Why is TTFT high while the GPU idles?",
        right=Cause.API_SERVER,
        claimed=False,
        without=ENGINE_TIMES,
        now=replace(CALM, ttft_s=2.0, tpot_s=0.045, running=16, kv=0.4, server_s=1.8),
    ),
    Scenario(
        name="the KV cache is full and throws prefixes out",
        question="Why did TTFT rise?",
        right=Cause.KV_CACHE,
        before=replace(CALM, hits=0.7, kv=0.8, running=50, ttft_s=0.25),
        now=replace(CALM, hits=0.4, kv=0.99, running=55, ttft_s=0.7, prefill_s=0.5),
    ),
    Scenario(
        name="the GPU is throttled",
        question="Why is TPOT worse?",
        right=Cause.UNKNOWN,
        claimed=False,
        now=replace(CALM, tpot_s=0.07, ttft_s=0.5, running=40),
    ),
)  # fmt: skip


def setup_of(scenario: Scenario) -> Setup:
    return Setup(
        model=MODEL,
        arm=ARM,
        slo=SLO.parse(SLO_TEXT),
        seats=scenario.seats,
        chunked=scenario.chunked,
    )


def period_of() -> Period:
    return Period(start_s=END_S - WINDOW_S, end_s=END_S)


def history(scenario: Scenario, seed: int = 0) -> FakeMetricSource:
    """The recorded past of the scenario's engines: two windows, and what came before."""
    draw = random.Random(seed)
    source = FakeMetricSource(lookback_s=3 * SCRAPE_S)
    engines = [_Played(scenario, number) for number in range(scenario.engines)]
    ticks = round((2 * WINDOW_S + 6 * SCRAPE_S) / SCRAPE_S)
    for tick in range(ticks + 1):
        at_s = END_S - (ticks - tick) * SCRAPE_S
        shown = {}
        for engine in engines:
            text = engine.text(at_s, draw)
            if not engine.absent(at_s):
                shown[engine.labels] = None if engine.silent(at_s) else text
        source.scrape(at_s, shown)
    if scenario.failing:
        for metric in METRICS | ENGINE_TIMES | {UP}:
            source.answer(metric, Failed(reason="Prometheus cannot be reached (ConnectionError)"))
    return source


class _Played:
    """One engine of a scenario; the last is the one that something happens to."""

    def __init__(self, scenario: Scenario, number: int) -> None:
        self._scenario = scenario
        self._odd = number == scenario.engines - 1
        self._shown = FakeEngineMetrics(MODEL)
        self._shown.finish(500)
        self._carry = 0.0
        name = f"production-{number}"
        self.labels = target(arm=ARM, replica=name)

    def absent(self, at_s: float) -> bool:
        since_s = END_S - WINDOW_S
        lost = self._scenario.unscraped or (self._odd and self._scenario.gone)
        return lost and at_s > since_s - 4 * SCRAPE_S

    def silent(self, at_s: float) -> bool:
        down_s = self._scenario.down_s
        return self._odd and down_s > 0 and at_s > END_S - down_s

    def text(self, at_s: float, draw: random.Random) -> str:
        """What it shows after the time since the last scrape."""
        scenario, restart_s = self._scenario, self._scenario.restart_s
        start_s = END_S - WINDOW_S
        if self._odd and restart_s is not None and 0 <= at_s - start_s - restart_s < SCRAPE_S:
            self._shown = FakeEngineMetrics(MODEL)
        self._play(scenario.now if at_s > start_s else scenario.before, draw)
        lines = self._shown.text().splitlines()
        kept = (line for line in lines if not line.startswith(tuple(scenario.without)))
        return "\n".join(kept if scenario.without else lines) + "\n"

    def _play(self, traffic: Traffic, draw: random.Random) -> None:
        def about(value: float) -> float:
            return value * (1 + draw.uniform(-NOISE, NOISE))

        shown = self._shown
        shown.running, shown.waiting = round(about(traffic.running)), round(about(traffic.waiting))
        shown.kv_usage = min(about(traffic.kv), 1.0)
        self._carry += about(traffic.rps) * SCRAPE_S
        finished = int(self._carry)
        self._carry -= finished
        long = round(finished * traffic.long)
        ttft_s, prefill_s = about(traffic.ttft_s), about(traffic.prefill_s)
        for n, isl in ((finished - long, traffic.isl), (long, traffic.long_isl)):
            shown.finish(
                n,
                isl=round(about(isl)),
                osl=round(about(traffic.osl)),
                ttft_s=ttft_s,
                tpot_s=about(traffic.tpot_s),
                prefix_hits=round(about(isl * traffic.hits)),
                queued_s=max(ttft_s - prefill_s - about(traffic.server_s), 0.0),
                prefill_s=prefill_s,
                stalled=traffic.stalled,
                stall_s=about(traffic.stall_s),
            )
        shown.count("vllm:num_preemptions_total", round(finished * traffic.preempted))
        if traffic.accepted is not None:
            drafted = 10 * finished
            shown.speculate(drafted, round(drafted * traffic.accepted))


async def seen(scenario: Scenario, seed: int = 0) -> Seen:
    return await look(history(scenario, seed), setup_of(scenario), period_of(), SCRAPE_S)


async def named(seed: int = 0) -> Mapping[str, Cause]:
    """By scenario, the cause that the rules name."""
    return {each.name: diagnose(await seen(each, seed)).cause for each in SCENARIOS}


def lines(found: Mapping[str, Cause]) -> Iterator[str]:
    """What a person is told of each scenario."""
    for each in SCENARIOS:
        cause = found[each.name]
        mark = "right" if cause is each.right else f"WRONG, {each.right.value} is right"
        claim = "" if each.claimed else " (not claimed)"
        yield f"{each.name}: {cause.value}, {mark}{claim}"


def scored(found: Mapping[str, Cause]) -> dict[str, object]:
    """How many causes are right, of those that are claimed and of all."""
    right = [each for each in SCENARIOS if found[each.name] is each.right]
    claimed = sum(each.claimed for each in SCENARIOS)
    right_claimed = sum(each.claimed for each in right)
    figures: dict[str, object] = {
        "scenarios": len(SCENARIOS),
        "right": len(right),
        "claimed": claimed,
        "right_of_claimed": right_claimed,
    }
    return held(figures, {"claimed": right_claimed == claimed})


def main() -> None:
    found = asyncio.run(named())
    print("\n".join(lines(found)))
    sys.exit(ended(scored(found)))


if __name__ == "__main__":
    main()
