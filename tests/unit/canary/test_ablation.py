"""What one switch did: of which pairs it is told, in which direction, and with which interval."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from canary.ablation import SwitchEffect, switch_effects, within_run
from canary.objective import METRICS, least_rate
from domain.engine import Change, EngineConfig
from domain.study import Block, Measurement, Objective, Trial, TrialPurpose, TrialState
from tests.fakes import records

BASELINE = EngineConfig.of({"max_num_seqs": 256})


def run(tokens: float = 100.0, blocks: int = 20, **changes: Any) -> Measurement:
    """Blocks of a second with some noise, half of the requests good."""
    generator = np.random.default_rng(int(tokens))
    made = [tokens * float(factor) for factor in generator.uniform(0.9, 1.1, blocks)]
    cut = tuple(
        Block(seconds=1.0, requests=4, good=2, failed=0, output_tokens=amount) for amount in made
    )
    return records.measurement(requests=4 * blocks, blocks=cut, **changes)


def trial(number: int, tokens: float, changes: dict[str, Any], **more: Any) -> Trial:
    values = {
        "config": BASELINE.having(changes),
        "state": TrialState.MEASURED,
        "measurement": run(tokens),
        **more,
    }
    return records.trial(number, **values)


def effects(*trials: Trial, objective: Objective = Objective.GOODPUT) -> tuple[SwitchEffect, ...]:
    return switch_effects(trials, BASELINE, objective, seed=7)


def told(*trials: Trial) -> list[tuple[str, int, int]]:
    return [(one.change.knob, one.before, one.after) for one in effects(*trials)]


def test_each_pair_that_differs_in_one_switch_is_told() -> None:
    trials = [
        trial(1, 100, {}, purpose=TrialPurpose.BASELINE),
        trial(2, 120, {"a": True}),
        trial(3, 130, {"a": True, "b": 2}),
        trial(4, 110, {"b": 2}),
        trial(5, 110, {"a": False, "b": 4, "c": 1}),
    ]
    assert told(*trials) == [("a", 1, 2), ("a", 4, 3), ("b", 1, 4), ("b", 2, 3)]


def test_an_effect_has_both_figures_an_interval_and_its_blocks() -> None:
    (found,) = effects(trial(1, 100, {}), trial(2, 150, {"a": True}))
    goodput, output = found.effects
    assert found.change == Change("a", None, True)
    assert (goodput.metric, output.metric) == ("goodput_tok_s", "output_tok_s")
    assert goodput.candidate == pytest.approx(output.candidate / 2)
    assert output.estimate == pytest.approx(output.candidate / output.baseline)
    assert 1.3 < output.interval.low < output.estimate < output.interval.high < 1.7
    assert (output.interval.level, output.interval.n) == (0.95, 40)
    assert output.interval.method.startswith("block bootstrap")


def test_the_objective_comes_first_and_the_answer_repeats() -> None:
    trials = [trial(1, 100, {}), trial(2, 150, {"a": True})]
    (found,) = effects(*trials, objective=Objective.THROUGHPUT)
    assert found.effects[0].metric == "output_tok_s"
    assert effects(*trials) == effects(*reversed(trials))


def test_a_change_leads_away_from_the_baseline() -> None:
    (found,) = effects(trial(2, 150, {"max_num_seqs": 512}), trial(3, 100, {}))
    assert (found.change, found.before, found.after) == (Change("max_num_seqs", 256, 512), 3, 2)
    (between,) = effects(
        trial(2, 150, {"max_num_seqs": 512}), trial(3, 100, {"max_num_seqs": 1024})
    )
    assert between.change == Change("max_num_seqs", 512, 1024)


@pytest.mark.parametrize(
    "more",
    [
        {"state": TrialState.FAILED, "measurement": None},
        {"purpose": TrialPurpose.CONFIRM},
        {"measurement": run(blocks=9)},
        {"measurement": run(tokens=0.0)},
        {"measurement": run(level="96 streams")},
        {"overridden": (Change("a", True, False),)},
        {"lane": "canary-1"},
    ],
    ids=["failed", "fresh run", "too short", "no output", "another load", "overridden", "lane"],
)
def test_nothing_is_told_of_runs_that_cannot_be_compared(more: dict[str, Any]) -> None:
    assert told(trial(1, 100, {}), trial(2, 100, {"a": True}, **more)) == []


def test_without_a_good_request_on_either_side_goodput_is_not_told() -> None:
    bad = tuple(
        Block(seconds=1.0, requests=4, good=0, failed=0, output_tokens=100.0) for _ in range(20)
    )
    trials = [
        trial(n, 100, changes, measurement=records.measurement(requests=80, blocks=bad))
        for n, changes in ((1, {}), (2, {"a": True}))
    ]
    (found,) = effects(*trials)
    assert [effect.metric for effect in found.effects] == ["output_tok_s"]


def waiting(measured: Measurement, seconds: float) -> Measurement:
    """Each block's four requests waited so long together, and no heavier load was borne."""
    blocks = tuple(replace(b, waited_s=seconds) for b in measured.blocks)
    return replace(measured, blocks=blocks, heavier=())


@pytest.mark.parametrize("objective", Objective)
def test_all_objectives_are_told_where_they_are_known(objective: Objective) -> None:
    before, after = waiting(run(100), 8.0), waiting(run(150), 4.0)
    trials = [trial(1, 100, {}, measurement=before), trial(2, 150, {"a": 1}, measurement=after)]
    (found,) = effects(*trials, objective=objective)
    assert found.effects[0].metric == METRICS[objective]
    assert {effect.metric for effect in found.effects} == set(METRICS.values())
    speed = next(effect for effect in found.effects if effect.metric == "stream_rps")
    assert (speed.baseline, speed.candidate, speed.estimate) == (0.5, 1.0, 2.0)


def test_of_an_older_run_latency_and_cost_are_not_told() -> None:
    trials = [
        trial(1, 100, {}, measurement=waiting(run(100), 8.0)),
        trial(2, 150, {"a": 1}, measurement=run(150)),
    ]
    (found,) = effects(*trials, objective=Objective.LATENCY)
    assert [effect.metric for effect in found.effects] == ["goodput_tok_s", "output_tok_s"]
    assert within_run(run(150), Objective.LATENCY, seed=1) is None


def test_a_run_that_is_too_short_has_no_interval() -> None:
    assert within_run(run(blocks=9), Objective.GOODPUT, seed=1) is None
    found = within_run(run(blocks=10), Objective.THROUGHPUT, seed=1)
    assert found is not None and found.low < 100 < found.high and found.n == 10


def test_a_rate_stands_for_three_requests_at_least() -> None:
    assert least_rate([run(tokens=0.0)], Objective.THROUGHPUT) == 0.0
    assert least_rate([run(blocks=20)], Objective.GOODPUT) == pytest.approx(3 * 25 / 20, rel=0.1)
