"""The benchmark of verdicts: its simulated pairs are what they are said to be, and are judged."""

import numpy as np
import pytest

from benchmarks.decisions import TARGETS, TRUTHS, Truth, decided, run, tried
from canary.objective import value
from canary.rounds import candidates_turn
from domain.study import Objective
from domain.verdict import Outcome


def test_every_target_is_of_a_truth():
    assert TARGETS.keys() <= TRUTHS.keys()


@pytest.mark.parametrize("truth", [Truth(goodput=1.3), Truth(tail=1.1)])
def test_a_run_differs_from_the_baselines_by_the_truth_alone(truth: Truth):
    candidate, baseline = next(t for t in range(4) if candidates_turn(t)), 1
    ours, theirs = (
        run(truth, 0.0, turn, 4, np.random.default_rng(5)) for turn in (candidate, baseline)
    )
    ratio = value(ours, Objective.GOODPUT) / value(theirs, Objective.GOODPUT)
    assert ratio == pytest.approx(truth.goodput)
    assert ours.ttft_ms[0] / theirs.ttft_ms[0] == pytest.approx(truth.tail)


def test_a_drifting_host_slows_both_arms():
    slowing = Truth(drift=-0.03)
    speeds = [
        value(run(slowing, 0.0, turn, 8, np.random.default_rng(5)), Objective.THROUGHPUT)
        for turn in range(8)
    ]
    assert speeds == sorted(speeds, reverse=True)


def test_what_is_plain_ends_after_one_round_and_what_is_not_after_the_last():
    generator = np.random.default_rng(1)
    plain = decided(Truth(goodput=3.0, tail=0.5), 0.01, 3, generator)
    assert (plain.verdict.outcome, plain.runs) == (Outcome.PASS, 4)
    unclear = decided(Truth(goodput=1.02), 0.2, 3, generator)
    assert (unclear.verdict.outcome, unclear.runs) == (Outcome.INCONCLUSIVE, 12)


def test_a_cell_tells_its_shares_with_their_intervals():
    cell = tried(Truth(goodput=3.0, tail=0.5), 0.01, 1, 10)
    assert cell["pass"]["share"] == 1.0
    low, high = cell["pass"]["interval_95"]
    assert low < 0.8 and high == 1.0
