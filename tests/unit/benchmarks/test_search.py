"""The benchmark of searches: its surfaces are what the simulator plays, and its races are fair."""

import asyncio
import random
from itertools import islice

import numpy as np
import pytest

from benchmarks.search import medians, ratio
from benchmarks.search_rivals import STRATEGIES, Search, Told, Values
from benchmarks.search_surfaces import NAMES, Broken, Surface, best_of, drawn, load, settled
from benchmarks.search_trials import Run, Starts, measurement, near, product, rival
from canary.measure import measure
from canary.objective import value
from canary.prompts import synthesise
from domain.engine import EngineConfig, SearchSpace
from domain.fleet import Role, Slot
from domain.slo import SLO
from domain.study import Failure, FailureKind, Measurement, Objective, TrialPurpose
from serving.simulator.virtual import VirtualClock, VirtualLane

GRID = "real CPU grid, independent"
LANE = Slot(name="canary-0", role=Role.CANARY, port=8201)
# The Gaussian process needs PyTorch, which the tests do not have.
WITHOUT_TORCH = [name for name in STRATEGIES if name != "Optuna GP"]


async def played(surface: Surface, config: EngineConfig) -> Measurement | Failure:
    """The same engine under the same load, iteration by iteration in virtual time."""
    assert surface.profile is not None
    clock = VirtualClock()
    lane = VirtualLane(surface.profile, clock, seed=1)
    await lane.start(LANE, config)
    clock.advance(surface.profile.start_s + 1.0)
    plan = synthesise(
        surface.shape,
        level="all",
        concurrency=round(surface.shape.concurrency),
        warm_up_s=20.0,
        duration_s=60.0,
        seed=2,
    )
    result = await lane.run(plan, "", "", lambda: False)
    return measure(result, SLO(e2el_ms=3_600_000.0), None, None)


@pytest.mark.parametrize(
    "name",
    ["station, 4 streams", "station, 64 short chats", "demo, 48 streams, 60 % shared"],
)
def test_what_is_worked_out_is_what_the_simulator_plays(name: str) -> None:
    surface, rng = load(name), random.Random(3)
    for config in (EngineConfig(), drawn(surface.space, rng), drawn(surface.space, rng)):
        found = asyncio.run(played(surface, config))
        assert isinstance(found, Measurement)
        assert surface.rate(config) == pytest.approx(found.output_tok_s, rel=0.08)


@pytest.mark.parametrize("name", NAMES)
def test_every_surface_has_a_best_that_is_not_the_default(name: str) -> None:
    surface = load(name)
    assert surface.rate(EngineConfig()) > 0
    assert 0 < surface.trial_s < 1000
    rng = random.Random(1)
    rates = [surface.rate(drawn(surface.space, rng)) for _ in range(50)]
    assert max(rates) > surface.rate(EngineConfig())


def test_the_grid_of_real_engines_has_its_32_configs_and_their_failures() -> None:
    surface = load(GRID)
    configs = set(surface.candidates)
    assert len(configs) == 32
    assert {surface.space.fault(config) for config in configs} == {None}
    broken = [config for config in configs if isinstance(surface.truth(config), Broken)]
    assert 0 < len(broken) < 32 and best_of(GRID).config not in broken


def test_what_is_forbidden_or_known_costs_a_rival_nothing() -> None:
    heard: list[Told] = []
    forbidden: Values = {"max_num_seqs": 4, "max_num_batched_tokens": 512}

    def stubborn(space: SearchSpace, seed: int) -> Search:
        for values in ({}, forbidden, {}, best_of(GRID).config.as_dict()):
            told = yield values
            heard.append(told)

    raced = rival(load(GRID), stubborn, 1, 0.0, 30)
    assert raced == (2 * load(GRID).trial_s, 2, True)
    assert [told.free for told in heard] == [False, True, True]
    assert heard[1].value is None and heard[2].value == heard[0].value


def test_values_without_effect_beside_the_others_are_dropped() -> None:
    drawn_values: Values = {
        "num_speculative_tokens": 3,
        "enable_mamba_cache_stochastic_rounding": True,
        "max_num_seqs": 64,
    }
    space = load("station, 4 streams").space
    assert settled(space, drawn_values) == EngineConfig.of({"max_num_seqs": 64})


def test_an_engine_short_of_memory_under_load_fails_after_its_start() -> None:
    surface = load("station, 256 streams")
    wide = {"speculative_method": "mtp", "num_speculative_tokens": 3}
    truth = surface.truth(EngineConfig.of({**wide, "gpu_memory_utilization": 0.95}))
    assert isinstance(truth, Broken)
    assert truth.failure.kind is FailureKind.OUT_OF_MEMORY_UNDER_LOAD
    assert 180.0 < truth.engine_s < surface.trial_s


def test_a_start_scatters_alike_for_all_who_ask_and_a_failure_costs_its_seconds() -> None:
    surface = load(GRID)
    one, other = Starts(surface, 7, 0.05), Starts(surface, 7, 0.05)
    first, second = one.run(EngineConfig()), one.run(EngineConfig())
    assert other.run(EngineConfig()) == first
    assert second.tok_s != first.tok_s
    assert first.tok_s == pytest.approx(surface.rate(EngineConfig()), rel=0.3)
    broken = next(c for c in surface.candidates if isinstance(surface.truth(c), Broken))
    failed = one.run(broken)
    assert failed.tok_s is None and failed.failure is not None and failed.engine_s > 0


def test_a_race_ends_at_the_first_config_that_is_truly_near_and_counts_what_it_cost() -> None:
    surface, best = load(GRID), best_of(GRID).config
    slow, fast = Run(EngineConfig(), 1e9, None, 10.0), Run(best, 1.0, None, 7.0)
    assert near(surface, [slow, fast, slow], 100.0) == (17.0, 2, True)
    assert near(surface, [slow, fast], 16.0).near is False
    assert near(surface, [slow, slow], 100.0).seconds == 100.0


@pytest.mark.parametrize("name", WITHOUT_TORCH)
def test_every_rival_begins_with_the_default_and_goes_on_for_as_long_as_it_is_asked(
    name: str,
) -> None:
    space = load(GRID).space
    search = STRATEGIES[name](space, 5)
    asked = [dict(next(search))]
    asked += [dict(search.send(Told(1.0, free=False))) for _ in range(15)]
    assert EngineConfig() == space.normalised(EngineConfig.of(asked[0]))
    assert len({EngineConfig.of(values) for values in asked}) > 5
    raced = rival(load(GRID), STRATEGIES[name], 1, 0.05, 32)
    assert 0 < raced.seconds <= 32 * load(GRID).trial_s


def test_the_product_races_by_its_own_study_and_its_fresh_runs_are_told_apart() -> None:
    studied = product(load(GRID), 1, 0.02, 8)
    assert studied.raced.near
    assert studied.confirming_s > 0 and studied.recommended
    searched = [t for t in studied.trials if t.purpose is TrialPurpose.SEARCH]
    assert 0 < len(searched) <= 8


def test_a_trials_record_says_its_figure() -> None:
    surface = load(GRID)
    run = Run(EngineConfig(), 50.0, None, 10.0)
    assert value(measurement(surface, run, 3), Objective.THROUGHPUT) == pytest.approx(50.0)


def test_a_ratio_of_medians_has_an_interval_that_holds_it() -> None:
    ours, theirs = np.array([10.0, 11.0, 12.0] * 7), np.array([20.0, 22.0, 24.0] * 7)
    found = ratio([ours], [theirs])
    low, high = found["interval_95"]
    assert found["ratio"] == 0.5 and low <= 0.5 <= high
    both = ratio([ours, theirs], [theirs, ours])
    assert both["ratio"] == pytest.approx(1.0)
    assert len(list(islice(medians(ours), 5))) == 5
