from __future__ import annotations

import math
from dataclasses import replace

import pytest

from agent.planner.history import Failed as FailedConfig
from agent.planner.history import History, Measured, gain, score
from domain.engine import EngineConfig
from domain.study import Failure, FailureKind, Objective
from tests.fakes.records import measured

A = EngineConfig.of({"a": 1})
B = EngineConfig.of({"b": 1})
AB = EngineConfig.of({"a": 1, "b": 1})
ABC = EngineConfig.of({"a": 1, "b": 1, "c": 1})
DIED = Failure(kind=FailureKind.DIED, sentence="The engine died.")


def history(scores: dict[EngineConfig, float], failed: tuple[EngineConfig, ...] = ()) -> History:
    return History(
        baseline=EngineConfig(),
        objective=Objective.THROUGHPUT,
        measured=tuple(Measured(config, measured(tokens)) for config, tokens in scores.items()),
        failed=tuple(FailedConfig(config, DIED) for config in failed),
        tried=frozenset([*scores, *failed]),
    )


def test_without_any_goodput_the_tokens_tell_which_config_is_nearer() -> None:
    assert gain(measured(100), measured(150), Objective.GOODPUT) == 1.5
    assert gain(measured(100), measured(150, good=5), Objective.GOODPUT) == math.inf
    assert gain(measured(100, good=4), measured(150, good=2), Objective.GOODPUT) == 0.75
    assert gain(measured(0), measured(0), Objective.GOODPUT) == 1.0


@pytest.mark.parametrize("objective", Objective)
def test_a_gain_is_that_of_the_objective(objective: Objective) -> None:
    before, after = measured(100, good=4), measured(200, good=4)
    assert gain(before, after, objective) == 2.0
    assert score(before, objective) < score(after, objective)


def test_of_an_older_measurement_no_gain_of_latency_is_known_and_it_never_leads() -> None:
    fast = measured(900)
    older = replace(fast, blocks=tuple(replace(b, waited_s=None) for b in fast.blocks))
    assert gain(older, fast, Objective.LATENCY) is None
    assert gain(fast, older, Objective.LATENCY) is None
    past = History(
        baseline=EngineConfig(),
        objective=Objective.LATENCY,
        measured=(Measured(EngineConfig(), measured(1)), Measured(A, older)),
        failed=(),
        tried=frozenset(),
    )
    assert past.incumbent == EngineConfig()
    assert past.gain_over_baseline(A) is None
    assert past.effect(frozenset({("a", 1)})) is None


def test_the_effect_of_a_switch_is_that_of_two_configs_that_differ_in_it_alone() -> None:
    switch = frozenset({("b", 1)})
    assert history({EngineConfig(): 100.0, AB: 150.0}).effect(switch) is None
    assert history({EngineConfig(): 100.0, A: 120.0, AB: 150.0}).effect(switch) == 1.25
    assert history({AB: 150.0, A: 120.0}).effect(switch) == 1.25


def test_the_whole_effect_of_a_switch_is_that_against_the_baselines_values_of_it() -> None:
    pair = frozenset({("a", 1), ("b", 1)})
    without_baseline = history({A: 120.0, AB: 150.0})
    assert without_baseline.effect(pair) == 1.25
    assert without_baseline.effect(pair, whole=True) is None
    assert history({EngineConfig(): 100.0, A: 120.0, AB: 150.0}).effect(pair, whole=True) == 1.5


def test_what_no_measured_config_contains_is_to_blame_for_a_failure() -> None:
    past = history({EngineConfig(): 1.0, A: 1.0}, failed=(AB,))
    assert past.suspect(B) is DIED
    assert past.suspect(ABC) is DIED
    assert past.suspect(A) is None


def test_where_each_change_went_well_alone_the_combination_is_to_blame() -> None:
    past = history({EngineConfig(): 1.0, A: 1.0, B: 1.0}, failed=(AB,))
    assert past.suspect(ABC) is DIED
    assert past.suspect(EngineConfig.of({"b": 1, "c": 1})) is None


def test_a_baseline_that_failed_condemns_nothing() -> None:
    assert history({}, failed=(EngineConfig(),)).suspect(A) is None
