"""What the simulator says of a config under the load that is there."""

from typing import Any

from agent.what_if import simulate
from domain.engine import EngineConfig
from domain.slo import SLO
from domain.traffic import Distribution, TrafficShape
from tests.fakes.records import shape
from tools.catalog.knobs import WhatIf

ANY = SLO.parse("e2el<=600s")


async def asked(load: TrafficShape | None, simulated: bool = True, **values: Any) -> WhatIf:
    run = simulate("demo-hybrid", simulated=simulated, shape=load, slo=ANY)
    return await run(EngineConfig.of(values))


async def test_a_narrow_batch_gives_fewer_tokens_in_the_simulator():
    short = Distribution.of_values([24.0], (16.0, 32.0))
    load = shape(running=16.0, waiting=0.0, osl=short)
    wide, narrow = await asked(load), await asked(load, max_num_seqs=2)
    tokens = [{f.name: f.value for f in found.figures}["output"] for found in (wide, narrow)]
    assert tokens[0] > 1.5 * tokens[1]
    assert all("simulated" in figure.source for figure in (*wide.figures, *narrow.figures))


async def test_without_a_profile_or_a_load_it_says_why():
    assert "No profile" in (await asked(shape(), simulated=False)).fault
    assert "not known" in (await asked(None)).fault
    assert "more than are simulated" in (await asked(shape(running=1000.0))).fault
