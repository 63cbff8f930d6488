"""What a measurement is worth: one definition a kind, and nothing where nothing is known."""

from dataclasses import replace
from typing import Any

import pytest

from canary.objective import METRICS, UNITS, best_level, blocks, compared, least_rate, value
from domain.study import Block, Measurement, Objective
from tests.fakes import records


def run(*cut: Block) -> Measurement:
    requests = sum(block.requests for block in cut)
    return records.measurement(requests=requests, blocks=cut, heavier=())


def block(
    requests: int = 10, good: int = 5, failed: int = 0, waited_s: float | None = 20.0
) -> Block:
    return Block(
        seconds=2.0,
        requests=requests,
        good=good,
        failed=failed,
        output_tokens=100.0 * (requests - failed),
        waited_s=waited_s,
    )


OLDER = run(block(), block(waited_s=None))


@pytest.mark.parametrize(
    ("objective", "worth"),
    [
        (Objective.GOODPUT, 250.0),
        (Objective.THROUGHPUT, 500.0),
        (Objective.LATENCY, 0.5),
        (Objective.COST, 250.0),
    ],
)
def test_the_value_is_the_rate_of_its_blocks(objective: Objective, worth: float) -> None:
    measured = run(block(), block())
    found = blocks(measured, objective)
    assert found is not None and found.rate == value(measured, objective) == pytest.approx(worth)


@pytest.mark.parametrize("objective", Objective)
def test_each_has_a_name_and_a_unit(objective: Objective) -> None:
    assert METRICS[objective] and UNITS[objective]


@pytest.mark.parametrize("objective", Objective)
def test_a_failed_request_makes_nothing_better(objective: Objective) -> None:
    sound, broken = run(block()), run(block(failed=2, good=4))
    ours, theirs = value(broken, objective), value(sound, objective)
    assert ours is not None and theirs is not None and ours < theirs


@pytest.mark.parametrize("objective", Objective)
def test_where_nothing_completed_the_least_stands_for_it(objective: Objective) -> None:
    nothing, sound = run(block(failed=10, good=0)), run(block())
    assert value(nothing, objective) == 0.0
    arms = compared([nothing], [sound], objective)
    assert arms is not None and 0 < arms.candidate[0] < arms.baseline[0]


def test_the_least_latency_raises_no_slow_run() -> None:
    slow, fast = run(block(waited_s=1000.0)), run(block(waited_s=1.0))
    assert least_rate([slow, fast], Objective.LATENCY) == pytest.approx(3 / 1000)
    arms = compared([fast], [slow], Objective.LATENCY)
    assert arms == ([10.0], [0.01])


@pytest.mark.parametrize(
    "unknown",
    [OLDER, run(block(requests=0, good=0, waited_s=0.0)), run()],
    ids=["older", "nobody waited", "no blocks"],
)
def test_a_latency_that_nobody_knows_has_no_value(unknown: Measurement) -> None:
    assert value(unknown, Objective.LATENCY) is None
    assert blocks(unknown, Objective.LATENCY) is None
    assert least_rate([unknown], Objective.LATENCY) in (0.0, 3 / 20)
    assert compared([unknown], [run(block())], Objective.LATENCY) is None
    assert compared([unknown], [unknown], Objective.LATENCY) is None


def test_the_other_objectives_of_an_older_row_are_known() -> None:
    newer = run(*(replace(one, waited_s=1.0) for one in OLDER.blocks))
    for objective in (Objective.GOODPUT, Objective.THROUGHPUT):
        assert value(OLDER, objective) == value(newer, objective)


def at(good: int, *, met: bool | None, **changes: Any) -> Measurement:
    return replace(run(block(good=good)), slo_met=met, **changes)


@pytest.mark.parametrize(
    ("heavier", "worth"),
    [
        ((), 100.0),
        ((at(6, met=True),), 300.0),
        ((at(6, met=True), at(9, met=True)), 450.0),
        ((at(6, met=True), at(5, met=True)), 300.0),
        ((at(6, met=True), at(9, met=False)), 300.0),
        ((at(9, met=None),), 100.0),
        ((at(1, met=True),), 100.0),
    ],
)
def test_a_token_costs_least_at_the_best_load_that_keeps_the_slo(
    heavier: tuple[Measurement, ...], worth: float
) -> None:
    live = at(2, met=False, heavier=heavier)
    assert value(live, Objective.COST) == pytest.approx(worth)
    assert value(live, Objective.GOODPUT) == pytest.approx(100.0)


def test_of_a_run_at_the_live_load_alone_nobody_knows_the_cost() -> None:
    alone = at(2, met=True, heavier=None)
    assert value(alone, Objective.COST) is None and best_level(alone) is None
    assert compared([alone], [at(2, met=True)], Objective.COST) is None
