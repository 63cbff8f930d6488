"""However often a step is looked at, its intervals leave out the truth no more than they say."""

import math

import numpy as np
import pytest

from canary.looks import Look
from domain.interval import Interval

FIRST = 50


def test_a_thousand_looks_err_together_no_more_often_than_one() -> None:
    """Means of alike values, looked at with each request from the first look on."""
    walks = np.random.default_rng(1).normal(size=(2000, 5000)).cumsum(axis=1)
    n = np.arange(FIRST, 5001)
    means = walks[:, FIRST - 1 :] / n
    single = 1.96 / np.sqrt(n)
    alone = np.mean(np.any(np.abs(means) > single, axis=1))
    factors = np.array([Look.at(int(k), first=FIRST, level=0.95).factor for k in n])
    together = np.mean(np.any(np.abs(means) > single * factors, axis=1))
    assert alone > 0.3
    assert 0 < together <= 0.05


@pytest.mark.parametrize("n", [50, 60, 200, 5000])
def test_the_level_is_that_of_the_factor(n: int) -> None:
    look = Look.at(n, first=FIRST, level=0.95)
    assert look.single == 0.95 < look.level < 1
    assert 1.5 < look.factor < 2.0
    assert look.level == pytest.approx(math.erf(look.factor * 1.95996 / math.sqrt(2)), rel=1e-6)


def test_fewer_than_the_first_are_taken_for_it() -> None:
    assert Look.at(1, first=FIRST, level=0.95) == Look.at(FIRST, first=FIRST, level=0.95)


def test_an_interval_is_widened_on_each_side_for_itself() -> None:
    look = Look(single=0.95, level=0.999, factor=2.0)
    wide = look.widened(Interval(low=1.0, high=4.0, level=0.95, method="exact", n=9), 2.0)
    assert (wide.low, wide.high, wide.level, wide.n) == (0.0, 6.0, 0.999, 9)
    assert wide.method == "exact, widened for every look"
