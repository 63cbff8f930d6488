"""The published case, replayed: five changes in order, at 512 tokens in, 512 out, 256 streams."""

import random
from collections.abc import Callable

import pytest

from domain.engine import EngineConfig, Value
from domain.fleet import Role, Slot
from domain.load import Arrival, LoadPlan, RequestSpec, Session
from serving.simulator import profile
from serving.simulator.virtual import VirtualClock, VirtualLane

SLOT = Slot(name="canary", role=Role.CANARY, port=8000)
STEPS: tuple[dict[str, Value], ...] = (
    {"speculative_method": "mtp", "num_speculative_tokens": 3, "OMP_NUM_THREADS": 1},
    {"async_scheduling": True},
    {"mamba_backend": "flashinfer"},
    {"num_speculative_tokens": 1},
    {"mamba_ssm_cache_dtype": "float16", "enable_mamba_cache_stochastic_rounding": True},
)
Throughput = Callable[[EngineConfig], float]


def closed_plan(*, streams: int, requests: int, isl: int, osl: int, shared: int = 0) -> LoadPlan:
    """``requests`` sessions of one turn each, the first ``shared`` tokens of which are the same."""
    draw = random.Random(7)

    def prompt() -> tuple[int, ...]:
        return (*range(shared), *(draw.randrange(1 << 20) for _ in range(isl - shared)))

    sessions = tuple(
        Session(name=str(i), turns=(RequestSpec(prompt=prompt(), osl=osl),))
        for i in range(requests)
    )
    return LoadPlan(
        level=f"{streams} streams",
        arrival=Arrival.CLOSED,
        concurrency=streams,
        sessions=sessions,
        warm_up_s=0.0,
        duration_s=3600.0,
        seed=7,
    )


async def output_tok_s(name: str, plan: LoadPlan, config: EngineConfig) -> float:
    """Output tokens a second from the first request to the end of the last."""
    clock = VirtualClock()
    chosen = profile.load(name)
    lane = VirtualLane(chosen, clock, seed=1)
    await lane.start(SLOT, config)
    await clock.sleep(chosen.start_s)
    result = await lane.run(plan, SLOT.url, "model", lambda: False)
    assert all(record.error is None for record in result.records)
    return sum(r.osl for r in result.records) / max(r.end_s for r in result.records)


def ladder(base: EngineConfig) -> list[EngineConfig]:
    configs = [base]
    for step in STEPS:
        configs.append(configs[-1].having(step))
    return configs


@pytest.mark.parametrize("base", [EngineConfig(), EngineConfig.of({"max_num_seqs": 256})], ids=str)
async def test_the_station_goes_from_6058_to_11840_and_each_step_gains(base: EngineConfig) -> None:
    plan = closed_plan(streams=256, requests=512, isl=512, osl=512)
    rates = [await output_tok_s("dgx-station-hybrid", plan, config) for config in ladder(base)]
    assert rates[0] == pytest.approx(6058, rel=0.05)
    assert rates[-1] == pytest.approx(11840, rel=0.05)
    assert rates == sorted(rates)


async def test_the_demo_gains_about_as_much_at_48_streams() -> None:
    plan = closed_plan(streams=48, requests=480, isl=600, osl=32, shared=360)
    rates = [await output_tok_s("demo-hybrid", plan, config) for config in ladder(EngineConfig())]
    assert 450 <= rates[0] <= 550
    assert 2.0 <= rates[-1] / rates[0] <= 2.3
    assert rates == sorted(rates)


@pytest.mark.parametrize("name", profile.names())
@pytest.mark.parametrize("streams", [1, 4])
async def test_at_few_streams_three_drafts_beat_one(name: str, streams: int) -> None:
    plan = closed_plan(streams=streams, requests=8 * streams, isl=512, osl=256)
    best = ladder(EngineConfig())[-1]
    one = await output_tok_s(name, plan, best)
    three = await output_tok_s(name, plan, best.having({"num_speculative_tokens": 3}))
    assert three > one * 1.03
