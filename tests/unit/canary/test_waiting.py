"""What an engine leaves undone never makes it look faster."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from canary.waiting import waits_s
from domain.load import RequestError, RequestRecord

FAILURES = [error for error in RequestError if error is not RequestError.CANCELLED]


def record(e2el_s: float, error: RequestError | None = None, late_s: float = 0.0) -> RequestRecord:
    """A request that ended, one way or another, ``e2el_s`` after it was sent."""
    return RequestRecord(
        session="s",
        turn=0,
        scheduled_s=10.0 - late_s,
        sent_s=10.0,
        end_s=10.0 + e2el_s,
        isl=10,
        osl=10,
        first_s=10.0 + e2el_s / 2,
        last_s=10.0 + e2el_s,
        error=error,
    )


def test_a_completed_request_waits_for_its_last_token_since_it_was_sent_or_due() -> None:
    records = [record(2.0, late_s=3.0), record(4.0)]
    assert waits_s(records, is_open=False) == pytest.approx((2.0, 4.0))
    assert waits_s(records, is_open=True) == pytest.approx((5.0, 4.0))


@pytest.mark.parametrize("error", FAILURES)
def test_a_failed_request_waits_no_less_than_the_longest_that_completed(
    error: RequestError,
) -> None:
    records = [record(2.0), record(4.0), record(0.1, error), record(9.0, error)]
    assert waits_s(records, is_open=False) == pytest.approx((2.0, 4.0, 4.0, 9.0))
    assert waits_s([record(0.5, error)], is_open=False) == pytest.approx((0.5,))


def test_one_that_was_cut_off_counts_only_where_it_was_left_lying() -> None:
    cut_off = RequestError.CANCELLED
    records = [record(4.0), record(3.9, cut_off), record(50.0, cut_off)]
    assert waits_s(records, is_open=False) == pytest.approx((4.0, 0.0, 50.0))


def test_nothing_waits_for_nothing() -> None:
    assert waits_s([], is_open=True) == ()


@given(
    st.lists(st.floats(0.1, 10.0), min_size=2, max_size=20),
    st.sampled_from(FAILURES),
    st.data(),
)
def test_to_fail_any_request_but_the_longest_never_raises_the_speed(
    e2els: list[float], error: RequestError, data: st.DataObject
) -> None:
    done = sorted((record(one) for one in e2els), key=lambda one: one.end_s)
    place = data.draw(st.integers(0, len(done) - 2))
    after_s = data.draw(st.floats(0.0, e2els[0]))
    broken = replace(done[place], error=error, end_s=10.0 + after_s)
    worse = [*done[:place], broken, *done[place + 1 :]]
    before = len(done) / sum(waits_s(done, is_open=False))
    assert (len(done) - 1) / sum(waits_s(worse, is_open=False)) < before
