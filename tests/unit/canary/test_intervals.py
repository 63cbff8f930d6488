"""Intervals cover the truth as often as they say, by simulation with fixed seeds."""

import numpy as np
import pytest

from canary.intervals import (
    Blocks,
    Share,
    histogram_mean_difference_interval,
    histogram_quantile_difference_interval,
    proportion_difference_interval,
    proportion_interval,
    quantile,
    rate_interval,
    rate_ratio,
    rate_ratio_interval,
    run_ratio,
)
from domain.errors import BadInput
from domain.interval import Interval
from domain.traffic import Distribution

SIMULATIONS = 100


def covers(interval: Interval, truth: float) -> bool:
    return interval.low <= truth <= interval.high


def assert_honest(covered: int, simulations: int = SIMULATIONS) -> None:
    assert 0.90 <= covered / simulations <= 0.99


def blocks(generator: np.random.Generator, mean: float, n: int = 20) -> Blocks:
    return Blocks(amounts=tuple(map(float, generator.poisson(mean, size=n))), seconds=(3.0,) * n)


def test_ratio_of_rates_covers_the_truth() -> None:
    generator = np.random.default_rng(1)
    assert_honest(
        sum(
            covers(
                rate_ratio_interval(
                    blocks(generator, 33), blocks(generator, 30), least=1.0, level=0.95, seed=seed
                ),
                1.1,
            )
            for seed in range(SIMULATIONS)
        )
    )


@pytest.mark.parametrize("n", [8, 20])
def test_one_rate_covers_the_truth_with_few_blocks_too(n: int) -> None:
    generator = np.random.default_rng(n)
    assert_honest(
        sum(
            covers(rate_interval(blocks(generator, 30, n), level=0.95, seed=seed), 10.0)
            for seed in range(SIMULATIONS)
        )
    )


@pytest.mark.parametrize(
    ("spread", "n", "least", "most"),
    [
        (0.02, 2, 0.95, 1.0),
        (0.02, 12, 0.95, 0.99),
        (0.05, 2, 0.93, 0.99),
        (0.05, 12, 0.93, 0.98),
        (0.2, 2, 0.80, 0.98),
        (0.2, 4, 0.88, 0.98),
        (0.2, 12, 0.92, 0.98),
    ],
)
def test_the_ratio_of_runs_covers_the_truth(
    spread: float, n: int, least: float, most: float
) -> None:
    """Too careful where engines agree better than is usual, and with two runs an arm too sure
    where they differ by four times as much: what the prior costs."""
    generator = np.random.default_rng(3)

    def arm(mean: float) -> list[float]:
        return list(mean * np.exp(spread * generator.normal(size=n)))

    covered = sum(
        covers(run_ratio(arm(110), arm(100), level=0.95).interval, 1.1) for _ in range(400)
    )
    assert least <= covered / 400 <= most


def test_the_ratio_of_runs_is_worked_out_by_hand() -> None:
    """Two runs an arm, logs 1 and 3 against 0 and 2: mean difference 1; squares 4, with the usual
    spread's 2 x 0.05^2 over 2 + 2 degrees: variance 1.00125; t of four degrees at 95 % 2.776445."""
    ratio = run_ratio([np.e, np.e**3], [1.0, np.e**2], level=0.95)
    half = 2.776445 * 1.00125**0.5
    assert np.log(ratio.estimate) == pytest.approx(1.0)
    assert np.log(ratio.interval.high) == pytest.approx(1 + half)
    assert np.log(ratio.interval.low) == pytest.approx(1 - half)
    assert ratio.interval.n == 4


def test_runs_that_agree_by_chance_are_not_believed_and_wild_ones_stay_numbers() -> None:
    alike = run_ratio([100.0, 100.0], [100.0, 100.0], level=0.99).interval
    assert alike.low < 0.96
    assert alike.high > 1.04
    wild = run_ratio([1e-9, 1e9], [1e-9, 1e9], level=0.9999).interval
    assert 0 < wild.low < wild.high < np.inf


def test_difference_of_histogram_quantiles_covers_the_truth() -> None:
    generator = np.random.default_rng(5)
    edges = tuple(float(edge) for edge in np.geomspace(0.01, 3.0, 40))
    truth = 0.02 * -np.log(0.05)
    covered = 0
    for seed in range(40):
        slow = Distribution.of_values(generator.exponential(0.12, size=500), edges)
        fast = Distribution.of_values(generator.exponential(0.10, size=500), edges)
        interval = histogram_quantile_difference_interval(slow, fast, 0.95, level=0.95, seed=seed)
        covered += covers(interval, truth)
    assert_honest(covered, 40)


@pytest.mark.parametrize(("p", "n"), [(0.02, 400), (0.5, 60), (0.95, 200)])
def test_wilson_covers_the_truth(p: float, n: int) -> None:
    generator = np.random.default_rng(6)
    hits = generator.binomial(n, p, size=SIMULATIONS)
    assert_honest(sum(covers(proportion_interval(int(k), n, level=0.95), p) for k in hits))


def test_newcombe_covers_the_truth() -> None:
    generator = np.random.default_rng(7)
    ours = generator.binomial(200, 0.08, size=SIMULATIONS)
    theirs = generator.binomial(300, 0.05, size=SIMULATIONS)
    assert_honest(
        sum(
            covers(proportion_difference_interval(int(a), 200, int(b), 300, level=0.95), 0.03)
            for a, b in zip(ours, theirs, strict=True)
        )
    )


def test_newcombe_gives_the_published_example() -> None:
    """Newcombe 1998, table II (a): 56 of 70 against 48 of 80 gives 0.0524 to 0.3339."""
    interval = proportion_difference_interval(56, 70, 48, 80, level=0.95)
    assert (interval.low, interval.high) == pytest.approx((0.0524, 0.3339), abs=5e-5)


def test_a_rate_times_a_share_covers_the_truth_where_requests_end_in_waves() -> None:
    """All streams of one length end together: counted by their end, goodput would be a lottery."""
    generator = np.random.default_rng(9)

    def waves() -> Blocks:
        tries = tuple(48.0 if i % 4 == 0 else 0.0 for i in range(20))
        return Blocks(
            amounts=tuple(map(float, generator.normal(1000, 30, size=20))),
            seconds=(3.0,) * 20,
            share=Share(tuple(float(generator.binomial(int(n), 0.9)) for n in tries), tries),
        )

    intervals = [
        rate_ratio_interval(waves(), waves(), least=1.0, level=0.95, seed=seed)
        for seed in range(SIMULATIONS)
    ]
    assert sum(covers(interval, 1.0) for interval in intervals) / SIMULATIONS >= 0.90
    assert np.mean([interval.high - interval.low for interval in intervals]) < 0.2


def test_zero_rates_divide_by_no_zero() -> None:
    nothing = Blocks(amounts=(0.0,) * 20, seconds=(3.0,) * 20)
    few = Blocks(amounts=(1.0,) + (0.0,) * 19, seconds=(3.0,) * 20)
    many = Blocks(amounts=(30.0,) * 20, seconds=(3.0,) * 20)
    least = 3 / 60
    assert rate_ratio(nothing, nothing, least=least) == 1.0
    assert rate_ratio(few, nothing, least=least) == 1.0
    assert rate_ratio(many, nothing, least=least) == pytest.approx(200.0)
    assert rate_ratio_interval(few, nothing, least=least, level=0.95, seed=1).low == 1.0
    assert rate_ratio_interval(many, nothing, least=least, level=0.95, seed=1).low > 100
    assert rate_ratio_interval(nothing, many, least=least, level=0.95, seed=1).high < 0.01
    assert proportion_interval(0, 0, level=0.95).high == 1.0


def test_same_seed_same_interval_and_higher_level_wider() -> None:
    generator = np.random.default_rng(8)
    ours, theirs = blocks(generator, 33), blocks(generator, 30)
    once = rate_ratio_interval(ours, theirs, least=1.0, level=0.95, seed=7)
    assert once == rate_ratio_interval(ours, theirs, least=1.0, level=0.95, seed=7)
    wide = rate_ratio_interval(ours, theirs, least=1.0, level=0.99, seed=7)
    assert wide.low < once.low < once.high < wide.high


def test_quantile_is_a_value_that_was_seen() -> None:
    assert quantile([1.0, 2.0, 3.0, 4.0], 0.5) == 2.0
    assert quantile([5.0], 0.95) == 5.0


def test_draws_of_blocks_without_any_seconds_are_no_division_by_zero() -> None:
    """Nobody waited in most blocks, as in a short run of long answers."""
    rare = Blocks(amounts=(0.0,) * 19 + (8.0,), seconds=(0.0,) * 19 + (16.0,))
    found = rate_interval(rare, level=0.95, seed=1)
    assert (found.low, found.high) == (0.5, 0.5)
    ratio = rate_ratio_interval(rare, rare, least=0.1, level=0.95, seed=1)
    assert (ratio.low, ratio.high) == (1.0, 1.0)


def test_the_interval_of_a_difference_of_means_holds_it_as_often_as_it_says() -> None:
    """Also where a part of the values lies beyond the last bound."""
    generator = np.random.default_rng(3)
    bounds = (0.5, 1.0, 2.0)
    covered = 0
    for _ in range(SIMULATIONS):
        ours, theirs = (
            Distribution.of_values(generator.exponential(mean, size=300), bounds)
            for mean in (1.2, 1.0)
        )
        found = histogram_mean_difference_interval(ours, theirs, level=0.95)
        covered += covers(found, 0.2)
    assert_honest(covered)


def test_a_mean_of_nothing_has_no_interval() -> None:
    empty = Distribution.of_values([], (1.0,))
    with pytest.raises(BadInput):
        histogram_mean_difference_interval(empty, empty, level=0.95)
