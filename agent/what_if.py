"""What the simulator says of a config under the load that is there, in virtual time.

It starts no engine and measures nothing: it compares, and only where the fleet's own engines are of
a profile that there is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Final

from canary.measure import measure
from canary.prompts import synthesise
from domain.engine import EngineConfig
from domain.figure import Figure, Unit
from domain.fleet import ReplicaState, Role, Slot
from domain.load import LoadPlan
from domain.slo import SLO
from domain.study import Failure, Measurement
from domain.traffic import TrafficShape
from serving.simulator import profile
from serving.simulator.profile import Profile
from serving.simulator.virtual import VirtualClock, VirtualLane
from tools.catalog.knobs import Simulate, WhatIf

WARM_UP_S: Final = 20.0
MEASURED_S: Final = 60.0
MOST_STREAMS: Final = 256
SEED: Final = 1
_SLOT: Final = Slot(name="simulated", role=Role.CANARY, port=0)


def simulate(name: str, *, simulated: bool, shape: TrafficShape | None, slo: SLO) -> Simulate:
    """The simulator for engines of the profile ``name`` under the load ``shape``; where they are
    not ``simulated``, or no shape is known, each call says why there is nothing."""
    return partial(_what_if, name, simulated, shape, slo)


async def _what_if(
    name: str, simulated: bool, shape: TrafficShape | None, slo: SLO, config: EngineConfig
) -> WhatIf:
    if not simulated:
        return WhatIf(fault="No profile of the simulator is of this model and GPU.")
    streams = 0 if shape is None else round(shape.concurrency)
    if shape is None or streams < 1 or shape.requests < 1:
        return WhatIf(fault="The load is not known, so there is none to simulate.")
    if streams > MOST_STREAMS:
        return WhatIf(fault=f"{streams} requests at once are more than are simulated here.")
    plan = synthesise(
        shape,
        level=f"{streams} streams",
        concurrency=streams,
        warm_up_s=WARM_UP_S,
        duration_s=WARM_UP_S + MEASURED_S,
        seed=SEED,
    )
    # It computes for seconds, and whoever waits for it must be able to give up.
    return await asyncio.to_thread(_played, profile.load(name), config, plan, slo)


def _played(chosen: Profile, config: EngineConfig, plan: LoadPlan, slo: SLO) -> WhatIf:
    return asyncio.run(_measured(chosen, config, plan, slo))


async def _measured(chosen: Profile, config: EngineConfig, plan: LoadPlan, slo: SLO) -> WhatIf:
    clock = VirtualClock()
    lane = VirtualLane(chosen, clock, seed=SEED)
    await lane.start(_SLOT, config)
    clock.advance(chosen.start_s)
    (replica,) = await lane.observe()
    if replica.state is not ReplicaState.WARM:
        return WhatIf(fault=f"The simulated engine does not start: {replica.detail}")
    before = lane.counters(_SLOT)
    result = await lane.run(plan, _SLOT.url, chosen.name, lambda: False)
    found = measure(result, slo, before, lane.counters(_SLOT), plan=plan)
    if isinstance(found, Failure):
        return WhatIf(fault=f"The simulated run failed: {found.sentence}")
    return WhatIf(figures=_figures(found))


def _figures(found: Measurement) -> tuple[Figure, ...]:
    source = f"simulated, n={found.requests}"
    values = {
        "goodput": (found.goodput_rps, Unit.REQUESTS_A_SECOND),
        "output": (found.output_tok_s, Unit.TOKENS_A_SECOND),
        "ttft_p95": (_p95(found.ttft_ms), Unit.MILLISECONDS),
        "tpot_p95": (_p95(found.tpot_ms), Unit.MILLISECONDS),
    }
    return tuple(
        Figure(name=name, value=value, unit=unit, source=source)
        for name, (value, unit) in values.items()
        if value is not None
    )


def _p95(values: Sequence[float]) -> float | None:
    """The nearest rank."""
    return sorted(values)[-(-95 * len(values) // 100) - 1] if values else None
