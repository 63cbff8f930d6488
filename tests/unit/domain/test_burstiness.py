"""The index of dispersion: 1 for Poisson at every scale, and never from gaps or from too little."""

import math
import random
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from domain.burstiness import LEAST, burstiness


def poisson(rng: random.Random, n: int, rate: float) -> list[float]:
    counts, at = [0.0] * n, rng.expovariate(rate)
    while at < n:
        counts[int(at)] += 1
        at += rng.expovariate(rate)
    return counts


@pytest.mark.parametrize("rate", [0.5, 8.0])
def test_a_poisson_stream_has_one_at_every_scale(rate: float):
    rng = random.Random(5)
    rows = [burstiness(poisson(rng, 320, rate), 5.0) for _ in range(60)]
    for scale, length_s in enumerate((5.0, 20.0, 80.0)):
        at_scale = [row[scale] for row in rows]
        assert {one.scale_s for one in at_scale} == {length_s}
        assert {one.interval.n for one in at_scale} == {320 * 5 / length_s}
        assert fmean(one.dispersion for one in at_scale) == pytest.approx(1, abs=0.1)
        inside = sum(one.interval.low <= 1 <= one.interval.high for one in at_scale)
        assert inside >= 0.9 * 60


def test_the_interval_holds_for_bursts_too():
    """Each step has none or many: the variance over the mean of such counts is known."""
    rng = random.Random(9)
    busy, many = 0.2, 10.0
    true = many * (1 - busy)
    rows = [
        burstiness([many if rng.random() < busy else 0.0 for _ in range(60)], 5.0, (1,))
        for _ in range(100)
    ]
    assert sum(low.interval.low <= true <= low.interval.high for (low,) in rows) >= 90
    assert all(one.interval.low > 1.5 for (one,) in rows)


def test_a_burst_is_seen_at_its_scale():
    """Forty in one step of four, always: bursts of a step, an even stream over four."""
    short, long = burstiness([40.0, 0.0, 0.0, 0.0] * 12, 5.0, (1, 4))
    assert short.dispersion == pytest.approx(40 * 0.75 * 48 / 47)
    assert (long.dispersion, long.interval.low, long.interval.high) == (0, 0, 0)
    assert str(short) == "31 over 5 s"


def test_no_interval_reaches_over_a_gap():
    counts: list[float | None] = [1.0, 1.0, 1.0, None] * 8
    (one,) = burstiness(counts, 5.0, (1, 4))
    assert (one.scale_s, one.interval.n) == (5.0, 24)


@pytest.mark.parametrize("counts", [[], [3.0] * (LEAST - 1), [0.0] * 100, [None] * 100])
def test_too_little_and_nothing_have_no_burstiness(counts: list[float | None]):
    assert burstiness(counts, 5.0) == ()


@given(st.lists(st.none() | st.integers(0, 1000).map(float), max_size=100))
@settings(deadline=None)
def test_the_index_lies_in_its_interval(counts: list[float | None]):
    for one in burstiness(counts, 5.0):
        assert 0 <= one.interval.low <= one.dispersion <= one.interval.high < math.inf
        assert one.interval.n * one.scale_s <= len(counts) * 5.0
