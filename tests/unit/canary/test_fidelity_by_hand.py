"""A plan made after figures that stand here by hand is graded by them, not by what made both sides.

The live side is what counters of an engine told, as a person would copy it down: nothing
in it comes from a simulation or from the code that draws the rehearsal.
"""

from dataclasses import replace
from statistics import mean

import pytest

from canary.fidelity import compare
from canary.prompts import ideal_hit_rate, synthesise
from domain.fidelity import Agreement, Grade, Signal
from domain.study import Block, Measurement
from domain.traffic import Distribution, Latencies, TrafficShape

SENT = 260
"""Requests of the rehearsal, in 104 s: 2.5 a second, as live."""

SHAPE = TrafficShape(
    model="m",
    end_s=0.0,
    window_s=120.0,
    requests=300.0,
    rate_rps=2.5,
    running=12.0,
    waiting=0.0,
    # Mean 650 and 160 tokens.
    isl=Distribution(
        bounds=(200.0, 500.0, 1000.0, 2000.0), counts=(0.0, 100.0, 160.0, 40.0), total=195_000.0
    ),
    osl=Distribution(
        bounds=(50.0, 100.0, 200.0, 500.0), counts=(0.0, 60.0, 180.0, 60.0), total=48_000.0
    ),
    # Medians 220 and 19.75 ms.
    latencies=Latencies(
        ttft_ms=Distribution(
            bounds=(100.0, 250.0, 500.0, 750.0, 1000.0),
            counts=(30.0, 150.0, 90.0, 24.0, 6.0),
            total=78_000.0,
        ),
        tpot_ms=Distribution(
            bounds=(10.0, 25.0, 50.0, 75.0), counts=(20.0, 200.0, 70.0, 10.0), total=7_000.0
        ),
    ),
    output_tok_s=400.0,
    prefix_hit_rate=0.55,
)

TTFT_MS = (90.0, 150.0, 190.0, 215.0, 240.0, 260.0, 320.0, 420.0, 600.0, 680.0)
TPOT_MS = (9.0, 14.0, 17.0, 19.0, 20.0, 22.0, 24.0, 31.0, 40.0, 55.0)


def rehearsed(made_after: TrafficShape, seconds: float = SENT / 2.5) -> Measurement:
    """A lane with the given times answered so many requests of the plan."""
    plan = synthesise(
        made_after, level="12", concurrency=12, warm_up_s=0.0, duration_s=60.0, seed=4
    )
    turns = [turn for session in plan.sessions for turn in session.turns][:SENT]
    tokens = float(sum(turn.osl for turn in turns))
    return Measurement(
        level="12 streams",
        seed=4,
        requests=SENT,
        failed=0,
        blocks=(Block(seconds=seconds, requests=SENT, good=0, failed=0, output_tokens=tokens),),
        ttft_ms=TTFT_MS * (SENT // 10),
        tpot_ms=TPOT_MS * (SENT // 10),
        isl=tuple(turn.isl for turn in turns),
        osl=tuple(turn.osl for turn in turns),
        prefix_hit_rate=ideal_hit_rate(plan),
        streams=12,
    )


def test_the_plan_has_the_figures_that_stand_here() -> None:
    found = rehearsed(SHAPE)
    assert mean(found.isl) == pytest.approx(650, rel=0.05)
    assert mean(found.osl) == pytest.approx(160, rel=0.05)
    assert found.prefix_hit_rate == pytest.approx(0.55, abs=0.03)


def test_a_rehearsal_of_the_plan_is_an_a_and_shows_the_live_figures() -> None:
    found = compare(SHAPE, rehearsed(SHAPE))
    assert found.grade is Grade.A, found.reasons
    live = {row.signal: row.live for row in found.rows}
    assert live[Signal.ISL_MEAN] == pytest.approx(650)
    assert live[Signal.OSL_MEAN] == pytest.approx(160)
    assert live[Signal.RATE] == pytest.approx(2.5)
    assert live[Signal.OUTPUT] == pytest.approx(400)
    assert live[Signal.TTFT_P50] == pytest.approx(220)
    assert live[Signal.TPOT_P50] == pytest.approx(19.75)


@pytest.mark.parametrize(
    ("made_after", "seconds", "off"),
    [
        (replace(SHAPE, prefix_hit_rate=None), 104.0, {Signal.PREFIX_HIT_RATE}),
        (replace(SHAPE, isl=SHAPE.isl.times(2)), 104.0, {Signal.ISL_MEAN}),
        (replace(SHAPE, osl=SHAPE.osl.times(0.5)), 104.0, {Signal.OSL_MEAN, Signal.OUTPUT}),
        (SHAPE, 30.0, {Signal.RATE, Signal.OUTPUT}),
    ],
    ids=["no prefixes", "prompts twice as long", "answers half as long", "three times as fast"],
)
def test_a_plan_made_after_other_figures_is_a_d_by_what_is_wrong_with_it(
    made_after: TrafficShape, seconds: float, off: set[Signal]
) -> None:
    found = compare(SHAPE, rehearsed(made_after, seconds))
    assert found.grade is Grade.D
    wrong = {row.signal for row in (*found.of(Agreement.FAR), *found.of(Agreement.OFF))}
    assert off <= wrong
    right = {Signal.TTFT_P50, Signal.TTFT_P95, Signal.TPOT_P50, Signal.TPOT_P95}
    assert right.isdisjoint(wrong)
