"""What a study's trials are given: how long, against which bar, and prompts that share what
production's own cache would find, in blocks as large as its engine's."""

from dataclasses import replace
from typing import Any

import pytest

from agent.loads import TrialLength
from agent.planner.rulebook import Rulebook
from agent.rehearsals import Rehearsals, block_tokens_of, settles, unresolved
from canary import budget
from canary.budget import Terms
from canary.racing import Bar
from canary.trial import PlansOf
from domain.engine import EngineConfig, Refusal, Resolution, SearchSpace
from domain.load import BLOCK_TOKENS, Arrival
from domain.slo import SLO
from domain.study import Objective, Trial, TrialPurpose, TrialState
from serving import hardware
from serving.flags import catalogue
from serving.hardware import HardwareClass
from serving.model_card import ModelFacts
from serving.space import search_space
from tests.fakes.clock import FakeClock
from tests.fakes.records import knob, measured, study, trial
from tests.unit.agent.test_graph_with_rulebook import Rows

NOTHING = SearchSpace(knobs=())
CPU = SearchSpace(knobs=(knob("block_size", (32, 64, 128), 128),))


@pytest.mark.parametrize(
    ("told", "config", "space", "block_tokens"),
    [
        ({"block_size": 528}, {"block_size": 64}, CPU, 528),
        ({}, {"block_size": 64}, CPU, 64),
        (None, {"block_size": 64}, NOTHING, 64),
        (None, {}, CPU, 128),
        (None, {}, NOTHING, BLOCK_TOKENS),
        ({"block_size": 0}, {}, NOTHING, BLOCK_TOKENS),
        ({"block_size": "auto"}, {}, NOTHING, BLOCK_TOKENS),
    ],
    ids=["engine", "engine silent", "config", "hardware", "nobody", "zero", "word"],
)
async def test_the_engine_is_asked_first_then_the_config_then_the_hardware(
    told: dict[str, int | str] | None,
    config: dict[str, int],
    space: SearchSpace,
    block_tokens: int,
) -> None:
    async def resolve(asked: EngineConfig) -> Resolution | None:
        return None if told is None else Resolution(asked.having(told))

    assert await block_tokens_of(EngineConfig.of(config), space, resolve) == block_tokens


async def test_a_refusal_tells_nothing() -> None:
    async def resolve(asked: EngineConfig) -> Refusal:
        return Refusal("No.")

    assert await block_tokens_of(EngineConfig(), CPU, resolve) == 128


@pytest.mark.parametrize(
    ("kind", "block_tokens"), [(HardwareClass.CPU, 128), (HardwareClass.GPU, 16)]
)
async def test_the_catalogue_knows_the_default_of_the_hardware(
    kind: HardwareClass, block_tokens: int
) -> None:
    async def resolve(asked: EngineConfig) -> None:
        return None

    lane = hardware.Hardware(kind=kind)
    space = search_space(catalogue(hardware=kind), ModelFacts(), lane)
    assert await block_tokens_of(EngineConfig(), space, resolve) == block_tokens


class Given:
    """What each trial was given: its purpose, seconds of load and bar; all measure ``tok_s``, and
    requests last as long as ``ttft_ms`` says."""

    def __init__(self, tok_s: dict[int, float], ttft_ms: float = 100.0) -> None:
        self.tok_s = tok_s
        self.ttft_ms = ttft_ms
        self.trials: list[tuple[TrialPurpose, float, Bar | None]] = []
        self.seeds: list[int] = []

    async def rehearse(
        self, trial: Trial, plans_of: PlansOf, slo: SLO, with_quality: bool, bar: Bar | None
    ) -> Trial:
        plans = tuple(plans_of(None))
        self.trials.append((trial.purpose, sum(plan.duration_s for plan in plans), bar))
        self.seeds += [plan.seed for plan in plans]
        tok_s = self.tok_s[int(trial.config.get("max_num_seqs") or 256)]
        run = replace(measured(tok_s, good=10), ttft_ms=(self.ttft_ms,) * 10, osl=(10,) * 10)
        return replace(trial, state=TrialState.MEASURED, measurement=run)


SEATS = {128: 90.0, 256: 100.0, 512: 200.0, 1024: 150.0}


LENGTH = TrialLength(warm_up_s=1.0, measured_s=9.0, screened_s=4.0, min_requests=1, rounds=1)


def rehearsing(given: Given, **changes: object) -> Rehearsals:
    parts: dict[str, Any] = {
        "log": Rows(),
        "planner": Rulebook(),
        "space": SearchSpace(knobs=(knob("max_num_seqs", tuple(SEATS), 256),)),
        "rehearse": given.rehearse,
        "resolve": unresolved,
        "length": LENGTH,
        "fidelity_limit": None,
        "clock": FakeClock(0.0),
        "new_id": iter(map(str, range(100))).__next__,
    }
    return Rehearsals(**parts | changes)


async def test_a_search_is_screened_against_the_best_so_far_and_its_winner_measured_whole() -> None:
    given = Given(SEATS)
    asked = study(objective=Objective.THROUGHPUT, baseline=EngineConfig())
    await rehearsing(given).graph_for(asked).run(asked)
    baseline, *others = given.trials
    assert baseline == (TrialPurpose.BASELINE, 10.0, None)
    searched = [each for each in others if each[0] is TrialPurpose.SEARCH]
    assert [seconds for _, seconds, _ in searched] == [5.0] * 3
    bars = [bar.value for _, _, bar in searched if bar is not None]
    assert bars[0] == pytest.approx(90.0)
    assert bars == sorted(bars) and {round(bar) for bar in bars} <= {90, 135, 180}
    confirmed = [each for each in others if each[0] is not TrialPurpose.SEARCH]
    assert len(confirmed) == 4
    assert {(seconds, bar) for _, seconds, bar in confirmed} == {(10.0, None)}


async def test_where_requests_outlast_the_warm_up_a_short_measurement_is_another_one() -> None:
    """The first requests of a run queue behind each other, and weigh more in a short one."""
    given = Given(SEATS, ttft_ms=900.0)
    asked = study(objective=Objective.THROUGHPUT, baseline=EngineConfig())
    await rehearsing(given).graph_for(asked).run(asked)
    assert {seconds for _, seconds, _ in given.trials} == {10.0}
    assert all(bar for purpose, _, bar in given.trials if purpose is TrialPurpose.SEARCH)


@pytest.mark.parametrize("objective", Objective)
async def test_heavier_loads_are_for_what_explores_and_for_whom_cost_matters(
    objective: Objective,
) -> None:
    given = Given(SEATS)
    length = replace(LENGTH, screened_s=9.0)
    asked = study(objective=objective, baseline=EngineConfig(), load_levels=(1.0, 2.0, 4.0))
    await rehearsing(given, length=length).graph_for(asked).run(asked)
    for purpose, seconds, _ in given.trials:
        whole = purpose.explores or objective is Objective.COST
        assert seconds == (30.0 if whole else 10.0)
    assert {purpose for purpose, _, _ in given.trials} == set(TrialPurpose)
    # A prefix cache that is warm with the load before finds nothing of it in this one.
    assert len(set(given.seeds)) == len(given.seeds)


@pytest.mark.parametrize(("levels", "begins"), [((1.0,), True), ((1.0, 2.0, 4.0), False)])
async def test_a_study_is_reckoned_by_the_loads_that_it_began_with(
    levels: tuple[float, ...], begins: bool
) -> None:
    """Six runs of one load at most are paid; of heavier ones the settings know nothing here."""
    terms = Terms(
        start_s=0.0,
        warm_up_s=1.0,
        measured_s=9.0,
        evaluation_s=0.0,
        searches=4,
        confirmations=2,
        rounds=1,
        attempts=2,
    )
    given = Given(SEATS)
    lane = budget.granted(terms, [6 * terms.run_s])
    asked = study(baseline=EngineConfig(), lane=lane, load_levels=levels)
    await rehearsing(given, terms=terms).graph_for(asked).run(asked)
    assert bool(given.trials) is begins


def test_a_baseline_settles_where_it_does_so_at_each_of_its_loads() -> None:
    quick = replace(measured(100.0), ttft_ms=(100.0,) * 10, osl=(10,) * 10)
    slow = replace(quick, ttft_ms=(1500.0,) * 10)
    for heavier, settled in (((quick,), True), ((quick, slow), False)):
        loaded = replace(quick, heavier=heavier)
        run = trial(1, purpose=TrialPurpose.BASELINE, measurement=loaded)
        assert settles([run], 1.0) is settled


async def test_a_load_that_comes_at_its_own_times_is_neither_screened_nor_raced() -> None:
    """Its beginning may be busier or idler than the whole, by which the baseline is known."""
    given = Given(SEATS)
    length = replace(LENGTH, arrival=Arrival.OPEN)
    asked = study(baseline=EngineConfig())
    await rehearsing(given, length=length).graph_for(asked).run(asked)
    assert len(given.trials) > 3
    assert {(seconds, bar) for _, seconds, bar in given.trials} == {(10.0, None)}


def test_an_unknown_length_of_answers_is_not_taken_for_a_short_one() -> None:
    run = replace(measured(100.0), ttft_ms=(10.0,) * 10, osl=(10,) * 10)
    known = trial(purpose=TrialPurpose.BASELINE, measurement=run)
    assert settles([known], 1.0)
    assert not settles([known], 0.2)
    assert not settles([replace(known, measurement=replace(run, osl=()))], 1.0)
    assert not settles([replace(known, purpose=TrialPurpose.SEARCH)], 1.0)
    assert not settles([], 1.0)
