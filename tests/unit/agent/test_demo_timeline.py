"""The demo's own figures: what counts where, and that nothing is divided by zero."""

import pytest

from agent.demo.timeline import blocks, figures, goodput_ratio, slices
from domain.load import RequestError, RequestRecord
from domain.slo import SLO

SLICE_S = 2.0
LIMIT = SLO(ttft_ms=500.0)


def record(end_s: float, *, ttft_s: float = 0.1, arm: str = "production", error=None):
    done = error is None
    return RequestRecord(
        session="s",
        turn=0,
        scheduled_s=end_s - 1.0,
        sent_s=end_s - 1.0,
        end_s=end_s,
        isl=10,
        osl=20,
        first_s=end_s - 1.0 + ttft_s if done else None,
        last_s=end_s if done else None,
        error=error,
        arm=arm,
    )


def steady(start_s: float, end_s: float, a_second: int, ttft_s: float) -> list[RequestRecord]:
    times = range(int((end_s - start_s) * a_second))
    return [record(start_s + (i + 0.5) / a_second, ttft_s=ttft_s) for i in times]


def window(seen: list[RequestRecord], start_s: float, seconds: float = 20.0):
    return figures(seen, LIMIT, start_s, start_s + seconds, slice_s=SLICE_S, seed=1)


def test_a_request_counts_where_it_ended_and_good_only_within_the_slo():
    seen = [
        record(0.5),
        record(1.5, ttft_s=0.9),
        record(2.5),
        record(3.0, error=RequestError.HTTP_5XX),
        record(3.5, error=RequestError.CANCELLED),
    ]
    first, second = blocks(seen, LIMIT, 0.0, 2 * SLICE_S, SLICE_S)
    assert (first.requests, first.good, first.failed, first.output_tokens) == (2, 1, 0, 40.0)
    assert (second.requests, second.good, second.failed, second.output_tokens) == (1, 1, 1, 20.0)


def test_a_window_gives_its_rates_inside_their_intervals():
    seen = steady(0.0, 20.0, 10, 0.1)
    found = window(seen, 0.0)
    assert found.n == 200
    assert found.goodput_rps == pytest.approx(10.0)
    assert found.output_tok_s == pytest.approx(200.0)
    assert found.goodput.low <= 10.0 <= found.goodput.high
    assert found.goodput.level == 0.95
    assert (found.ttft_p50_ms, found.failed) == (pytest.approx(100.0), 0)


def test_the_ratio_is_after_over_before():
    seen = [*steady(0.0, 20.0, 5, 0.1), *steady(20.0, 40.0, 15, 0.1)]
    before, after = window(seen, 0.0), window(seen, 20.0)
    found = goodput_ratio(before, after, seed=1)
    assert found.estimate == pytest.approx(3.0)
    assert found.interval.low <= 3.0 <= found.interval.high


def test_a_baseline_without_goodput_gives_a_finite_ratio():
    seen = [*steady(0.0, 20.0, 5, 0.9), *steady(20.0, 40.0, 15, 0.1)]
    before, after = window(seen, 0.0), window(seen, 20.0)
    assert before.goodput_rps == 0.0
    assert goodput_ratio(before, after, seed=1).estimate == pytest.approx(100.0)


def test_too_little_in_a_window_gives_no_figures():
    assert window([], 0.0) is None
    assert window(steady(0.0, 2.0, 5, 0.1), 0.0, 2.0) is None


def test_slices_show_the_observed_share_and_gaps():
    seen = [record(0.5), record(1.0, arm="candidate"), record(1.2), record(1.4)]
    first, empty = slices(seen, LIMIT, 2 * SLICE_S, SLICE_S)
    assert first.candidate_share == 0.25
    assert (empty.candidate_share, empty.ttft_p95_ms, empty.goodput_rps) == (None, None, 0.0)
