"""An engine that holds requests and generates nothing is dead, whatever its health check says."""

from collections.abc import Mapping
from dataclasses import replace

from agent.progress import Progress
from canary.rollout import Observed
from domain.fleet import Replica, ReplicaState, Role, SlotTraffic, Split
from domain.metrics import Failed
from domain.study import Failure, FailureKind
from tests.fakes.metrics import FakeEngineMetrics, FakeMetricSource, target
from tests.fakes.rollout_world import BASELINE, CANARY, PRODUCTION

STUCK_S = 20.0
SLOTS = (PRODUCTION.name, CANARY.name)


def observed(**in_flight: int) -> Observed:
    counts = {name.replace("_", "-"): n for name, n in in_flight.items()}
    traffic = tuple(
        SlotTraffic(
            slot=slot.name,
            role=slot.role,
            admitted=True,
            up=True,
            in_flight=counts.get(slot.name, 0),
            requests=0,
            errors=0,
        )
        for slot in (PRODUCTION, CANARY)
    )
    replicas = {
        name: Replica(slot=name, config=BASELINE, state=ReplicaState.WARM, started_s=0.0)
        for name in SLOTS
    }
    return Observed(
        production=(PRODUCTION,),
        canary=CANARY,
        replicas=replicas,
        split=Split(weight=50, slots=traffic),
    )


class Engines:
    """Production generates all the time; the candidate while ``candidate_generates``."""

    def __init__(self) -> None:
        self.source = FakeMetricSource()
        self.shown = {name: FakeEngineMetrics() for name in SLOTS}
        self.candidate_generates = True

    def scrape(self, now: float) -> None:
        self.shown[PRODUCTION.name].finish(1)
        if self.candidate_generates:
            self.shown[CANARY.name].finish(1)
        roles = {PRODUCTION.name: Role.PRODUCTION, CANARY.name: Role.CANARY}
        texts = {
            target(arm=roles[name].arm, replica=name): metrics.text()
            for name, metrics in self.shown.items()
        }
        self.source.scrape(now, texts)


async def replicas(engines: Engines, until_s: float, seen: Observed) -> Mapping[str, Replica]:
    progress = Progress(engines.source, model="m", stuck_s=STUCK_S)
    now, last = 0.0, seen
    while now <= until_s:
        engines.scrape(now)
        last = await progress.seen(seen, now)
        now += 2.0
    return last.replicas


async def states(engines: Engines, until_s: float, seen: Observed) -> dict[str, ReplicaState]:
    found = await replicas(engines, until_s, seen)
    return {name: replica.state for name, replica in found.items()}


async def test_only_the_engine_that_hangs_is_dead_and_says_why():
    engines = Engines()
    engines.candidate_generates = False
    both = observed(production_0=4, canary_0=2)
    found = await replicas(engines, 60.0, both)
    assert found[PRODUCTION.name] == both.replicas[PRODUCTION.name]
    dead = found[CANARY.name]
    assert dead.state is ReplicaState.DEAD
    assert dead.failure == Failure(kind=FailureKind.HUNG, sentence=dead.detail)
    assert dead.detail == "It holds requests and generated nothing for 20 s."


async def test_not_before_its_time_nor_without_requests_nor_while_it_generates():
    hanging = Engines()
    hanging.candidate_generates = False
    warm = dict.fromkeys(SLOTS, ReplicaState.WARM)
    assert await states(hanging, STUCK_S - 2.0, observed(production_0=4, canary_0=2)) == warm
    idle = Engines()
    idle.candidate_generates = False
    assert await states(idle, 60.0, observed(production_0=4)) == warm
    assert await states(Engines(), 60.0, observed(production_0=4, canary_0=2)) == warm


async def test_a_clock_that_was_set_back_does_not_hide_an_engine_that_hangs():
    engines = Engines()
    engines.candidate_generates = False
    progress = Progress(engines.source, model="m", stuck_s=STUCK_S)
    both = observed(production_0=4, canary_0=2)
    await progress.seen(both, 7200.0)
    last = both
    for now in range(0, 60, 2):
        engines.scrape(float(now))
        last = await progress.seen(both, float(now))
    assert last.replicas[CANARY.name].state is ReplicaState.DEAD


async def test_missing_metrics_and_an_unreadable_gateway_mark_nothing():
    engines = Engines()
    engines.candidate_generates = False
    engines.source.answer("vllm:generation_tokens_total", Failed(reason="down"))
    warm = dict.fromkeys(SLOTS, ReplicaState.WARM)
    both = observed(production_0=4, canary_0=2)
    assert await states(engines, 60.0, both) == warm
    assert await states(engines, 60.0, replace(both, split=None)) == warm


async def test_an_idle_replica_of_another_fleet_and_the_same_name_kills_none_of_ours():
    """Ours is not scraped, and is busy; theirs generates nothing."""
    engines = Engines()
    engines.shown[CANARY.name] = FakeEngineMetrics("other")
    engines.candidate_generates = False
    warm = dict.fromkeys(SLOTS, ReplicaState.WARM)
    assert await states(engines, 60.0, observed(production_0=4, canary_0=2)) == warm


async def test_of_several_replicas_only_the_one_that_hangs_is_dead():
    """Tokens of the others are not taken for its own."""
    second = replace(PRODUCTION, name="production-1", port=8102)
    source, busy, hanging = FakeMetricSource(), FakeEngineMetrics(), FakeEngineMetrics()
    traffic = tuple(
        SlotTraffic(
            slot=slot.name,
            role=slot.role,
            admitted=True,
            up=True,
            in_flight=3,
            requests=9,
            errors=0,
        )
        for slot in (PRODUCTION, second)
    )
    seen = Observed(
        production=(PRODUCTION, second),
        canary=CANARY,
        replicas={
            slot.name: Replica(
                slot=slot.name, config=BASELINE, state=ReplicaState.WARM, started_s=0.0
            )
            for slot in (PRODUCTION, second)
        },
        split=Split(weight=0, slots=traffic),
    )
    progress = Progress(source, model="m", stuck_s=STUCK_S)
    for now in range(0, 60, 2):
        busy.finish(1)
        source.scrape(
            float(now),
            {
                target(arm="production", replica=slot.name): metrics.text()
                for slot, metrics in ((PRODUCTION, busy), (second, hanging))
            },
        )
        last = await progress.seen(seen, float(now))
    found = {name: replica.state for name, replica in last.replicas.items()}
    assert found == {PRODUCTION.name: ReplicaState.WARM, second.name: ReplicaState.DEAD}
