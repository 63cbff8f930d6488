"""What a histogram's buckets tell of a quantile, and what they leave open."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from domain.traffic import Distribution

BOUNDS = (10.0, 20.0, 50.0, 100.0)


@given(
    st.lists(st.integers(1, 200).map(float), min_size=1, max_size=60),
    st.floats(0.01, 1.0),
)
@settings(deadline=None)
def test_a_quantile_of_the_values_lies_within_the_bounds(values: list[float], q: float):
    found = Distribution.of_values(values, BOUNDS)
    # The least value that at least this share of all values does not exceed, in the sum's own
    # arithmetic, so that a share that falls between two values falls there in both.
    true = next(v for v in sorted(values) if sum(x <= v for x in values) >= q * found.n)
    bounds, guess = found.quantile_bounds(q), found.quantile(q)
    assert bounds is not None
    assert guess is not None
    assert bounds.low < true <= bounds.high
    assert bounds.low <= guess <= bounds.high
    assert {bounds.low, bounds.high} <= {0.0, *BOUNDS, math.inf}


def test_buckets_that_differ_only_inside_leave_the_same_open():
    low, high = (Distribution.of_values([v] * 9, BOUNDS) for v in (21.0, 50.0))
    assert low.quantile_bounds(0.5) == high.quantile_bounds(0.5) == (20, 50)
    assert low.quantile(0.5) == high.quantile(0.5) == 35
    assert (low.mean, high.mean) == (21, 50), "the mean is exact"


def test_above_the_last_bound_nothing_bounds_a_value():
    found = Distribution.of_values([5.0, 500.0, 600.0], BOUNDS)
    assert found.quantile_bounds(0.9) == (100, math.inf)
    assert found.quantile(0.9) == 100


@pytest.mark.parametrize("q", [0.0, 0.5, 1.0])
def test_an_empty_histogram_has_no_quantile(q: float):
    empty = Distribution.of_values([], BOUNDS)
    assert (empty.quantile(q), empty.quantile_bounds(q), empty.mean) == (None, None, None)


@pytest.mark.parametrize(
    ("values", "longest"),
    [([], None), ([5.0], 10.0), ([5.0, 30.0], 50.0), ([30.0, 500.0], 100.0)],
)
def test_the_longest_lies_below_the_bound_of_its_bucket(values: list[float], longest: float | None):
    assert Distribution.of_values(values, BOUNDS).longest == longest
