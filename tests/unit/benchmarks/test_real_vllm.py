"""The parts of the benchmark on real engines that need none: its grid and its yardsticks."""

from itertools import combinations
from statistics import mean

import pytest

from benchmarks.real_lane import STREAMS, Run
from benchmarks.real_vllm import expected_best, grid, measured, ratio, shapes
from canary.prompts import synthesise
from domain.engine import EngineConfig
from domain.study import Failure, FailureKind
from domain.verdict import Outcome, Verdict


def test_the_grid_holds_every_combination_once_and_vllms_defaults():
    configs = grid("0-1")
    assert len(configs) == len(set(configs)) == 32
    assert EngineConfig() in configs
    bound = EngineConfig.of({"dtype": "float32", "VLLM_CPU_OMP_THREADS_BIND": "0-1"})
    assert bound in configs


def test_what_random_search_finds_on_average_is_the_mean_over_all_draws():
    values = [3.0, 1.0, 4.0, 1.5, 9.0, 2.6]
    for draws in range(1, len(values) + 1):
        every = mean(max(drawn) for drawn in combinations(values, draws))
        assert expected_best(values, draws) == pytest.approx(every)


@pytest.mark.parametrize(("name", "shared"), [("independent", 0), ("448 of 512 shared", 448)])
def test_the_prompts_of_a_shape_are_as_long_and_as_shared_as_it_says(name, shared):
    plan = synthesise(
        shapes()[name], level="16", concurrency=STREAMS, warm_up_s=1.0, duration_s=10.0, seed=1
    )
    turns = [turn for session in plan.sessions for turn in session.turns]
    assert {turn.osl for turn in turns} == set(range(16, 49))
    if shared:
        assert {turn.isl for turn in turns} == {512}
        assert len({turn.prompt[: shared - 16] for turn in turns}) == 1
    else:
        assert 128 <= min(t.isl for t in turns) < 160 and 480 < max(t.isl for t in turns) <= 512
        assert len({turn.prompt[:16] for turn in turns}) == len(turns)


def test_no_ratio_is_claimed_where_an_arm_was_not_measured():
    failed = Run(Failure(kind=FailureKind.DIED, sentence="It died."), engine_s=40.0)
    assert measured([failed]) == []
    assert ratio(None) is None
    lacking = Verdict(outcome=Outcome.INCONCLUSIVE, reason="The candidate has 0 runs.")
    assert ratio(lacking) is None
