"""The rulebook against made-up engines whose response surface is known."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.planner.rulebook import Rulebook
from domain.engine import Condition, EngineConfig, SearchSpace, Value
from domain.slo import SLO
from domain.study import (
    Failure,
    FailureKind,
    Objective,
    Study,
    Trial,
    TrialPurpose,
    TrialState,
)
from domain.traffic import Distribution, Latencies
from tests.fakes import records
from tests.fakes.records import knob, measured

SPACE = SearchSpace(
    knobs=(
        knob("speculative_method", ("none", "mtp", "ngram"), "none"),
        knob(
            "num_speculative_tokens",
            (0, 1, 2, 3),
            0,
            only_if=(Condition("speculative_method", ("mtp", "ngram")),),
        ),
        knob("OMP_NUM_THREADS", (0, 1, 4), 0),
        knob("async_scheduling", (False, True), False),
        knob("mamba_backend", ("triton", "flashinfer"), "triton"),
        knob("mamba_ssm_cache_dtype", ("float32", "float16"), "float32", lossy_values=("float16",)),
        knob(
            "enable_mamba_cache_stochastic_rounding",
            (False, True),
            False,
            only_if=(Condition("mamba_ssm_cache_dtype", ("float16",)),),
        ),
        knob("max_num_seqs", (64, 128, 256, 512), 256),
        knob("max_num_batched_tokens", (2048, 8192, 16384), 8192),
        knob("enable_prefix_caching", (False, True), True),
        knob("gpu_memory_utilization", (0.9, 0.95), 0.9),
        knob("kv_cache_dtype", ("auto", "fp8"), "auto", lossy_values=("fp8",)),
    )
)

Speed = Callable[[EngineConfig], float]


def study(streams: float = 256, budget: int = 8, **figures: object) -> Study:
    lengths = Distribution.of_values([512.0] * 100, (256.0, 512.0, 1024.0))
    whole = {
        "running": streams,
        "waiting": 0.0,
        "isl": lengths,
        "osl": lengths,
        "requests": 1000.0,
        "latencies": Latencies(),
        "prefix_hit_rate": 0.05,
        **figures,
    }
    return records.study(
        shape=records.shape(**whole),
        slo=SLO(ttft_ms=1000.0),
        objective=Objective.THROUGHPUT,
        baseline=EngineConfig(),
        trial_budget=budget,
    )


def trial(number: int, config: EngineConfig, speed: Speed) -> Trial:
    planned = Trial(
        id=f"t{number}",
        study_id="s1",
        number=number,
        purpose=TrialPurpose.SEARCH if number > 1 else TrialPurpose.BASELINE,
        config=config,
        hypothesis="",
    )
    tokens = speed(config)
    if tokens <= 0:
        failure = Failure(kind=FailureKind.START, sentence="The engine did not start.")
        return replace(planned, state=TrialState.FAILED, failure=failure)
    return replace(planned, state=TrialState.MEASURED, measurement=measured(tokens))


async def climb(asked: Study, speed: Speed, space: SearchSpace = SPACE) -> list[Trial]:
    """Follow the rulebook's first proposal until the budget is used or it has no idea left."""
    trials = [trial(1, space.normalised(asked.baseline), speed)]
    while len(trials) < asked.trial_budget:
        proposals = await Rulebook().propose(asked, space, trials, 4)
        if not proposals.ranked:
            break
        trials.append(trial(len(trials) + 1, proposals.ranked[0].config, speed))
    return trials


def factors(table: Mapping[tuple[str, Value], float]) -> Speed:
    """A surface whose effects multiply; a factor of 0 keeps the engine from starting."""

    def speed(config: EngineConfig) -> float:
        tokens = 6058.0
        for name, default in ((k.name, k.default) for k in SPACE.knobs):
            value = config.get(name)
            tokens *= table.get((name, default if value is None else value), 1.0)
        return tokens

    return speed


STATION = {
    ("num_speculative_tokens", 3): 1.30,
    ("num_speculative_tokens", 1): 1.42,
    ("async_scheduling", True): 1.10,
    ("mamba_backend", "flashinfer"): 1.15,
    ("mamba_ssm_cache_dtype", "float16"): 1.08,
}


def best(trials: list[Trial], speed: Speed) -> float:
    return max(speed(t.config) for t in trials)


async def test_the_five_changes_of_the_station_are_found_within_eight_trials() -> None:
    speed = factors(STATION)
    trials = await climb(study(), speed)
    assert len(trials) == 8
    assert best(trials, speed) == pytest.approx(6058 * 1.42 * 1.10 * 1.15 * 1.08)


async def test_the_second_trial_stacks_what_is_believed_in_and_nothing_lossy() -> None:
    second = (await climb(study(budget=2), factors(STATION)))[1].config
    assert second.as_dict() == {
        "speculative_method": "mtp",
        "num_speculative_tokens": 1,
        "OMP_NUM_THREADS": 1,
        "async_scheduling": True,
        "mamba_backend": "flashinfer",
    }


async def test_few_streams_begin_with_three_drafts_and_a_full_gpu_with_one() -> None:
    few = await Rulebook().propose(study(4), SPACE, (), 1)
    many = await Rulebook().propose(study(256), SPACE, (), 1)
    assert few.ranked[0].config.get("num_speculative_tokens") == 3
    assert many.ranked[0].config.get("num_speculative_tokens") == 1
    assert "4 requests at once leave a GPU room" in few.ranked[0].hypothesis


async def test_the_other_number_of_drafts_is_found_where_the_first_guess_is_wrong() -> None:
    speed = factors({**STATION, ("num_speculative_tokens", 3): 1.8})
    trials = await climb(study(), speed)
    assert max(trials, key=lambda t: speed(t.config)).config.get("num_speculative_tokens") == 3


@pytest.mark.parametrize(
    "bad",
    [("mamba_backend", "flashinfer"), ("async_scheduling", True), ("speculative_method", "mtp")],
)
@pytest.mark.parametrize("factor", [0.0, 0.6])
async def test_one_believed_switch_that_fails_or_harms_does_not_spoil_the_others(
    bad: tuple[str, Value], factor: float
) -> None:
    speed = factors({**STATION, bad: factor})
    trials = await climb(study(budget=10), speed)
    good = {"async_scheduling": 1.10, "mamba_backend": 1.15, "speculative_method": 1.42}
    good.pop(bad[0])
    wanted = 6058.0
    for gained in good.values():
        wanted *= gained
    assert best(trials, speed) >= wanted * 0.999


async def test_a_switch_that_kept_an_engine_from_starting_is_not_proposed_again() -> None:
    speed = factors({("mamba_backend", "flashinfer"): 0.0})
    trials = await climb(study(budget=20), speed)
    lone = next(
        i for i, t in enumerate(trials) if t.state is TrialState.MEASURED and len(t.config.values)
    )
    assert [t for t in trials[lone:] if t.config.get("mamba_backend")] == []


@pytest.mark.parametrize("kind", [kind for kind in FailureKind if not kind.blames_config])
async def test_what_no_config_is_to_blame_for_condemns_no_switch(kind: FailureKind) -> None:
    stack = (await Rulebook().propose(study(), SPACE, (), 1)).ranked[0].config
    lost = replace(trial(2, stack, lambda _: 0.0), failure=Failure(kind=kind, sentence="Lost."))
    proposals = await Rulebook().propose(study(), SPACE, (lost,), 20)
    configs = [p.config for p in proposals.ranked]
    assert stack not in configs
    assert any(config.get("mamba_backend") == "flashinfer" for config in configs)


async def test_knobs_that_the_space_lacks_are_left_out() -> None:
    names = ("async_scheduling", "max_num_batched_tokens")
    space = SearchSpace(knobs=tuple(k for k in SPACE.knobs if k.name in names))
    trials = await climb(study(), factors(STATION), space)
    assert trials[1].config == EngineConfig.of({"async_scheduling": True})
    assert {name for t in trials for name in t.config.as_dict()} == set(names)


async def test_a_space_without_knobs_gives_no_proposal() -> None:
    assert (await Rulebook().propose(study(), SearchSpace(knobs=()), (), 3)).ranked == ()


@pytest.mark.parametrize(
    ("rate", "default", "expected"), [(0.5, False, True), (0.0, True, False), (None, False, True)]
)
async def test_the_hit_rate_speaks_for_or_against_prefix_caching(
    rate: float | None, default: bool, expected: bool
) -> None:
    space = SearchSpace(knobs=(knob("enable_prefix_caching", (False, True), default),))
    given_shape = study(prefix_hit_rate=rate)
    proposals = await Rulebook().propose(given_shape, space, (), 1)
    assert proposals.ranked[0].config.get("enable_prefix_caching") is expected


async def test_more_streams_than_places_raise_max_num_seqs_to_fit() -> None:
    proposals = await Rulebook().propose(study(300), SPACE, (), 1)
    assert proposals.ranked[0].config.get("max_num_seqs") == 512
    assert "only 256 may run" in proposals.ranked[0].hypothesis


async def test_memory_pressure_brings_fp8_in_but_never_into_the_stack() -> None:
    pressed = study(preemptions=500.0)
    proposals = await Rulebook().propose(pressed, SPACE, (), 20)
    having = [p for p in proposals.ranked if p.config.get("kv_cache_dtype") == "fp8"]
    assert having and having[0] is not proposals.ranked[0]
    assert "Memory for the KV cache" in having[0].hypothesis


async def test_production_that_speculates_badly_is_offered_no_drafts() -> None:
    drafting = replace(
        study(draft_acceptance=0.2),
        baseline=EngineConfig.of({"speculative_method": "mtp", "num_speculative_tokens": 3}),
    )
    proposals = await Rulebook().propose(drafting, SPACE, (), 20)
    plain = [p for p in proposals.ranked if p.config.get("speculative_method") is None]
    assert plain and "20%" in plain[0].hypothesis


NO_HEAD = SearchSpace(
    knobs=(
        knob("speculative_method", ("none", "ngram"), "none"),
        knob(
            "num_speculative_tokens",
            (1, 2, 3, 4),
            1,
            only_if=(Condition("speculative_method", ("ngram",)),),
        ),
        knob("OMP_NUM_THREADS", (0, 1, 4), 0),
        knob("async_scheduling", ("auto", True, False), "auto"),
        knob("max_num_seqs", (64, 128, 256, 512), 256),
        knob("max_num_batched_tokens", (2048, 8192), 8192),
        knob("enable_prefix_caching", (False, True), True),
    )
)


def values_of(trials: list[Trial], name: str) -> list[Value | None]:
    return [t.config.get(name) for t in trials]


async def test_a_model_without_a_head_of_its_own_gets_one_thread_and_drafts_from_the_prompt() -> (
    None
):
    trials = await climb(study(32, prefix_hit_rate=0.0), lambda _: 100.0, NO_HEAD)
    assert trials[1].config.as_dict() == {"OMP_NUM_THREADS": 1, "async_scheduling": True}
    assert trials[2].config.get("speculative_method") == "ngram"
    crowded = await climb(study(256, prefix_hit_rate=0.0), lambda _: 100.0, NO_HEAD)
    drafting = [t.config for t in crowded if t.config.get("speculative_method") == "ngram"]
    assert drafting and {config.get("num_speculative_tokens") for config in drafting} == {None}


async def test_drafts_are_added_for_as_long_as_they_gain() -> None:
    def speed(config: EngineConfig) -> float:
        drafting = config.get("speculative_method") == "ngram"
        return 100.0 + 10.0 * int(config.get("num_speculative_tokens") or 1) * drafting

    trials = await climb(study(8, prefix_hit_rate=0.0), speed, NO_HEAD)
    assert max(trials, key=lambda t: speed(t.config)).config.get("num_speculative_tokens") == 4


async def test_what_can_only_gain_little_comes_last() -> None:
    trials = await climb(study(32, budget=30, prefix_hit_rate=0.0), lambda _: 100.0, NO_HEAD)
    small = ("max_num_seqs", "enable_prefix_caching")
    first = min(i for i, t in enumerate(trials) if any(t.config.get(n) is not None for n in small))
    assert "ngram" in values_of(trials[:first], "speculative_method")
    assert 2048 in values_of(trials[:first], "max_num_batched_tokens")


async def test_what_was_measured_to_give_nothing_is_left_to_the_search() -> None:
    trials = await climb(study(256, budget=60), factors(STATION))
    assert len(trials) < 30


@pytest.mark.parametrize(("tokens", "believed"), [(98.0, True), (90.0, None)])
async def test_two_starts_that_differ_by_chance_do_not_refute_a_belief(
    tokens: float, believed: bool | None
) -> None:
    alone = EngineConfig.of({"async_scheduling": True})
    trials = [trial(1, EngineConfig(), lambda _: 100.0), trial(2, alone, lambda _: tokens)]
    first = (await Rulebook().propose(study(), SPACE, trials, 1)).ranked[0]
    assert first.config.get("async_scheduling") is believed


FACTOR = st.sampled_from([0.0, 0.7, 0.95, 1.0, 1.1, 1.3])


@settings(max_examples=40)
@given(
    table=st.fixed_dictionaries(
        {(k.name, value): FACTOR for k in SPACE.knobs for value in k.domain if value != k.default}
    ),
    streams=st.sampled_from([0.0, 1.0, 32.0, 256.0, 900.0]),
    waiting=st.sampled_from([0.0, 200.0]),
)
def test_proposals_are_feasible_normalised_and_never_repeated(
    table: dict[tuple[str, Value], float], streams: float, waiting: float
) -> None:
    trials = asyncio.run(climb(study(streams, budget=30, waiting=waiting), factors(table)))
    configs = [t.config for t in trials]
    assert len(set(configs)) == len(configs)
    for config in configs:
        assert SPACE.fault(config) is None
        assert SPACE.normalised(config) == config


async def test_eight_trials_reach_the_optimum_where_random_search_does_not() -> None:
    rng = random.Random(7)
    ruled, drawn = 0, 0
    for _ in range(40):
        table = {key: value * rng.uniform(0.85, 1.15) for key, value in STATION.items()}
        speed = factors(table)
        optimum = 6058.0 * max(1.0, *(table["num_speculative_tokens", n] for n in (1, 3)))
        for change in list(STATION)[2:]:
            optimum *= max(1.0, table[change])
        ruled += best(await climb(study(), speed), speed) >= optimum * 0.999
        configs = (
            SPACE.normalised(EngineConfig.of({k.name: rng.choice(k.domain) for k in SPACE.knobs}))
            for _ in range(1000)
        )
        feasible = itertools.islice((c for c in configs if SPACE.fault(c) is None), 7)
        drawn += max(map(speed, feasible)) >= optimum * 0.999
    assert ruled == 40
    assert drawn < 20
