"""Two measurements on one engine: what the first leaves in the prefix cache voids the second."""

import pytest

from canary import sent
from canary.measure import measure
from canary.prompts import ideal_hit_rate, synthesise
from domain.engine import EngineConfig
from domain.fleet import Role, Slot
from domain.load import Arrival, LoadPlan
from domain.slo import SLO
from domain.study import Failure, FailureKind, Measurement
from domain.traffic import Distribution
from serving.simulator import profile
from serving.simulator.virtual import VirtualClock, VirtualLane
from tests.fakes.records import shape

SLOT = Slot(name="canary-0", role=Role.CANARY, port=8201)


def plan(seed: int, hit_rate: float) -> LoadPlan:
    return synthesise(
        shape(prefix_hit_rate=hit_rate, osl=Distribution.of_values([24.0], (16.0, 32.0))),
        level="8 streams",
        concurrency=8,
        warm_up_s=2.0,
        duration_s=40.0,
        seed=seed,
    )


async def measured(lane: VirtualLane, sent: LoadPlan) -> Measurement | Failure:
    before = lane.counters(SLOT)
    result = await lane.run(sent, SLOT.url, "m", lambda: False)
    return measure(result, SLO(e2el_ms=600_000.0), before, lane.counters(SLOT), plan=sent)


@pytest.mark.parametrize("hit_rate", [0.0, 0.6])
async def test_a_warm_cache_is_noticed_and_a_reset_or_a_new_seed_defeats_it(
    hit_rate: float,
) -> None:
    clock, chosen = VirtualClock(), profile.load("demo-hybrid")
    lane = VirtualLane(chosen, clock, seed=1)
    await lane.start(SLOT, EngineConfig())
    clock.advance(chosen.start_s)

    first = await measured(lane, plan(1, hit_rate))
    assert isinstance(first, Measurement), first
    again = await measured(lane, plan(1, hit_rate))
    assert isinstance(again, Failure)
    assert again.kind is FailureKind.WARM_CACHE

    assert lane.reset_prefix_cache(SLOT)
    after_reset = await measured(lane, plan(1, hit_rate))
    assert isinstance(after_reset, Measurement), after_reset
    new_seed = await measured(lane, plan(2, hit_rate))
    assert isinstance(new_seed, Measurement), new_seed
    for each in (first, after_reset, new_seed):
        assert each.prefix_hit_rate is not None and each.possible_hit_rate is not None
        assert each.prefix_hit_rate == pytest.approx(hit_rate, abs=0.1)
        assert each.prefix_hit_rate <= each.possible_hit_rate + 0.001


async def test_in_an_open_plan_each_request_of_a_conversation_has_its_own_prompt() -> None:
    clock, chosen = VirtualClock(), profile.load("demo-hybrid")
    lane = VirtualLane(chosen, clock, seed=1)
    await lane.start(SLOT, EngineConfig())
    clock.advance(chosen.start_s)
    planned = synthesise(
        shape(prefix_hit_rate=0.6, osl=Distribution.of_values([24.0], (16.0, 32.0))),
        level="4 a second",
        concurrency=8,
        warm_up_s=2.0,
        duration_s=40.0,
        seed=1,
        arrival=Arrival.OPEN,
        rate_rps=4.0,
    )
    assert len({session.name for session in planned.sessions}) < len(planned.sessions)
    result = await lane.run(planned, SLOT.url, "m", lambda: False)
    asked = sent.asked(planned, result.records)
    assert all(
        spec is not None and spec.isl == r.isl
        for spec, r in zip(asked, result.records, strict=True)
    )
    found = sent.findable(asked)
    assert found is not None
    assert found.rate == pytest.approx(ideal_hit_rate(planned), abs=0.02)
