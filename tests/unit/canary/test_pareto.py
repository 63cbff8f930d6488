"""The Pareto front holds what nothing beats, and something on it beats all the rest."""

from hypothesis import given
from hypothesis import strategies as st

from canary.pareto import Point, on_front

TAILS = st.one_of(st.none(), st.integers(1, 4).map(float))
POINTS = st.lists(st.builds(Point, st.integers(0, 4).map(float), TAILS, TAILS), max_size=8)


def beats(one: Point, other: Point) -> bool:
    """Spelled out anew: as good in all three, better in one."""
    worst = float("inf")
    pairs = [
        (-one.rate, -other.rate),
        (one.ttft_p95_ms or worst, other.ttft_p95_ms or worst),
        (one.tpot_p95_ms or worst, other.tpot_p95_ms or worst),
    ]
    return all(a <= b for a, b in pairs) and any(a < b for a, b in pairs)


def test_a_trade_off_keeps_both_and_drops_what_loses_everywhere() -> None:
    fast = Point(rate=900.0, ttft_p95_ms=800.0, tpot_p95_ms=40.0)
    prompt = Point(rate=500.0, ttft_p95_ms=200.0, tpot_p95_ms=20.0)
    worse = Point(rate=450.0, ttft_p95_ms=250.0, tpot_p95_ms=20.0)
    assert on_front([fast, prompt, worse]) == (True, True, False)


def test_equals_are_both_kept() -> None:
    point = Point(rate=1.0, ttft_p95_ms=1.0, tpot_p95_ms=None)
    assert on_front([point, point]) == (True, True)


def test_an_unknown_tail_counts_as_the_worst() -> None:
    known, unknown = Point(5.0, 100.0, 20.0), Point(5.0, 100.0, None)
    assert on_front([known, unknown]) == (True, False)
    assert on_front([known, Point(6.0, 100.0, None)]) == (True, True)


def test_without_points_there_is_no_front() -> None:
    assert on_front([]) == ()


@given(POINTS)
def test_what_is_off_the_front_is_beaten_by_what_is_on_it(points: list[Point]) -> None:
    kept = [point for point, on in zip(points, on_front(points), strict=True) if on]
    assert bool(kept) == bool(points)
    for point, on in zip(points, on_front(points), strict=True):
        assert on != any(beats(other, point) for other in kept)
