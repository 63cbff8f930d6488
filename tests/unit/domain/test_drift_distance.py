"""How far two shapes lie apart: laws of the distance, and what each component sees."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from domain.drift import Component, Lengths, Window, distance
from domain.drift.distance import apart
from domain.traffic import Distribution, TrafficShape
from tests.fakes.shapes import shape

GRID = (100.0, 200.0, 500.0, 1000.0, 2000.0)
lengths = st.lists(st.floats(1.0, 4000.0), min_size=1, max_size=40)
positive = st.floats(0.01, 1e4)
shares = st.none() | st.floats(0.0, 1.0)


@st.composite
def any_shape(draw: st.DrawFn) -> TrafficShape:
    return replace(
        shape(),
        rate_rps=draw(positive),
        running=draw(positive),
        isl=Distribution.of_values(draw(lengths), GRID),
        osl=Distribution.of_values(draw(lengths), GRID),
        prefix_hit_rate=draw(shares),
        draft_acceptance=draw(shares),
    )


@settings(deadline=None)
@given(any_shape(), any_shape())
def test_the_distance_is_symmetric_and_none_from_itself(one: TrafficShape, other: TrafficShape):
    assert distance(one, other).value == pytest.approx(distance(other, one).value)
    assert distance(one, one).value == 0.0
    assert distance(one, other).value >= 0.0


@settings(deadline=None)
@given(any_shape(), st.floats(1.0, 50.0), st.floats(1.0, 50.0))
def test_the_further_the_demand_the_further_the_shape(one: TrafficShape, a: float, b: float):
    near, far = sorted((a, b))
    distances = [distance(one, replace(one, rate_rps=one.rate_rps * f)).value for f in (near, far)]
    assert distances[0] <= distances[1]
    assert distances[1] == pytest.approx(math.log2(far))


@pytest.mark.parametrize(
    ("other", "component", "value"),
    [
        (replace(shape(), rate_rps=2 * shape().rate_rps), Component.DEMAND, 1.0),
        (shape(running=126.0), Component.CONCURRENCY, 2.0),
        (shape(isl=1800.0), Component.ISL, 2.0),
        (shape(osl=120.0), Component.OSL, math.log2(150 / 120)),
        (shape(prefix_hit_rate=0.75), Component.HIT_RATE, 1.0),
        (shape(prefix_hit_rate=0.0), Component.HIT_RATE, 1.0),
    ],
)
def test_the_component_that_moved_most_is_named(other, component, value):
    found = distance(shape(), other)
    assert found.component is component
    assert found.value == pytest.approx(value)


def test_accepted_drafts_count_by_points():
    one, other = (replace(shape(), draft_acceptance=share) for share in (0.8, 0.5))
    assert distance(one, other) == (pytest.approx(0.6), Component.ACCEPTANCE)


def test_what_one_side_does_not_know_is_left_out():
    bare = replace(shape(), prefix_hit_rate=None, isl=Distribution(bounds=(), counts=(), total=0.0))
    assert distance(bare, shape()).value == 0.0
    assert apart(Component.ISL, Window.of(bare), Window.of(shape())) is None


def test_no_demand_at_all_is_far_and_not_infinite():
    assert 5 < distance(replace(shape(), rate_rps=0.0), shape()).value < 30


def histogram(values: list[float], bounds: tuple[float, ...] = GRID) -> Lengths:
    found = Lengths.of(Distribution.of_values(values, bounds))
    assert found is not None
    return found


@settings(deadline=None)
@given(lengths, lengths)
def test_the_gap_of_lengths_is_the_one_of_the_whole_histograms(one, other):
    whole = [Distribution.of_values(values, GRID).cumulative() for values in (one, other)]
    expected = max(abs(a - b) for a, b in zip(*whole, strict=True))
    assert histogram(one).gap(histogram(other)) == pytest.approx(expected, abs=2e-5)


def test_histograms_of_different_bounds_are_compared():
    values = [150.0] * 50 + [700.0] * 50
    coarse, fine = histogram(values, (200.0, 1000.0)), histogram(values)
    assert coarse.gap(fine) <= 0.25
    assert coarse.gap(histogram([150.0] * 100)) == pytest.approx(0.5)


def test_lengths_beyond_the_last_bound_tell_no_more_than_that():
    assert histogram([5000.0] * 9).gap(histogram([5000.0] * 9, (100.0,))) == 0.0
    assert histogram([5000.0] * 9).gap(histogram([50.0] * 9)) == 1.0
