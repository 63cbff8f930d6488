"""Two measurements on one engine: what the first leaves in the prefix cache voids the second."""

import pytest

from canary.measure import measure
from canary.prompts import synthesise
from domain.engine import EngineConfig
from domain.fleet import Role, Slot
from domain.load import LoadPlan
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
