"""A rehearsal is graded by what it has in common with production, and never by what is unknown."""

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from canary.allowance import LEAST_REQUESTS, bucket_quantile, quantile
from canary.fidelity import MAIN, compare
from domain.fidelity import Agreement, FidelityRow, Grade, Signal
from domain.study import Block, Measurement
from domain.traffic import Distribution, Latencies, TrafficShape

TOKENS = (50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0)
TTFT_MS = (20.0, 40.0, 60.0, 80.0, 100.0, 250.0, 500.0, 750.0, 1000.0, 2500.0)
TPOT_MS = (10.0, 25.0, 50.0, 75.0, 100.0, 150.0)
N = 600
SECONDS = 60.0


def spread(middle: float, n: int = N) -> list[float]:
    """Values about ``middle``, from half to one and a half of it."""
    draw = Random(n)
    return [middle * draw.uniform(0.5, 1.5) for _ in range(n)]


ISL, OSL = [int(v) for v in spread(600.0)], [int(v) for v in spread(120.0)]
TTFT, TPOT = spread(150.0), spread(30.0)


def live(**changes: Any) -> TrafficShape:
    """Ten requests a second that an engine measured about the values above."""
    ttft = Distribution.of_values(TTFT, TTFT_MS)
    tpot = Distribution.of_values(TPOT, TPOT_MS)
    values: dict[str, Any] = {
        "model": "m",
        "end_s": 1000.0,
        "window_s": SECONDS,
        "requests": float(N),
        "rate_rps": N / SECONDS,
        "running": 38.0,
        "waiting": 2.0,
        "isl": Distribution.of_values(ISL, TOKENS),
        "osl": Distribution.of_values(OSL, TOKENS),
        "latencies": Latencies(ttft_ms=ttft, tpot_ms=tpot),
        "output_tok_s": sum(OSL) / SECONDS,
        "prefix_hit_rate": 0.71,
        "draft_acceptance": 0.8,
    }
    return TrafficShape(**values | changes)


def rehearsed(*, requests: int = N, **changes: Any) -> Measurement:
    """The same from the client's side; ``requests`` of them in the same time."""
    tokens = sum(OSL) * requests / N
    values: dict[str, Any] = {
        "level": "40 streams",
        "seed": 1,
        "requests": requests,
        "failed": 0,
        "blocks": (
            Block(seconds=SECONDS, requests=requests, good=0, failed=0, output_tokens=tokens),
        ),
        "ttft_ms": tuple(TTFT),
        "tpot_ms": tuple(TPOT),
        "isl": tuple(ISL),
        "osl": tuple(OSL),
        "prefix_hit_rate": 0.7,
        "draft_acceptance": 0.8,
        "streams": 40,
    }
    return Measurement(**values | changes)


def row(signal: Signal, shape: TrafficShape, measured: Measurement) -> FidelityRow:
    [found] = [row for row in compare(shape, measured).rows if row.signal is signal]
    return found


def test_a_matching_rehearsal_is_an_a_and_every_figure_is_close() -> None:
    found = compare(live(), rehearsed())
    assert found.grade is Grade.A
    assert {row.signal for row in found.rows} == set(Signal)
    assert found.reasons == ("Close: 14 of 14 figures.",)


@pytest.mark.parametrize(
    ("measured", "signal", "said"),
    [
        (
            rehearsed(prefix_hit_rate=0.02),
            Signal.PREFIX_HIT_RATE,
            "Far off: prefix hit rate 0.02 against 0.71 live.",
        ),
        (rehearsed(isl=tuple(2 * v for v in ISL)), Signal.ISL_MEAN, "Far off: mean ISL 1,"),
        (rehearsed(osl=tuple(v // 3 for v in OSL)), Signal.OSL_MEAN, "Far off: mean OSL 39."),
        (rehearsed(requests=N // 2), Signal.RATE, "request rate 5.00/s against 10.0/s live"),
        (rehearsed(requests=N // 2), Signal.OUTPUT, "output 600 tokens/s against 1,199"),
        (rehearsed(draft_acceptance=0.3), Signal.DRAFT_ACCEPTANCE, "draft acceptance 0.30"),
        (rehearsed(ttft_ms=tuple(spread(900.0))), Signal.TTFT_P50, "TTFT p50 9"),
        (rehearsed(tpot_ms=tuple(spread(120.0))), Signal.TPOT_P50, "TPOT p50 1"),
    ],
)
def test_a_main_figure_that_is_far_off_is_a_d_and_named(
    measured: Measurement, signal: Signal, said: str
) -> None:
    found = compare(live(), measured)
    assert found.grade is Grade.D
    assert signal in {row.signal for row in found.of(Agreement.FAR)}
    assert said in found.reasons[0]


@pytest.mark.parametrize(
    ("measured", "grade", "beside"),
    [
        (rehearsed(prefix_hit_rate=0.55), Grade.B, Agreement.OFF),
        (rehearsed(prefix_hit_rate=None), Grade.B, Agreement.UNKNOWN),
        # A tail lowers the grade and refuses nothing.
        (rehearsed(ttft_ms=(*TTFT[:540], *[4000.0] * 60)), Grade.C, Agreement.FAR),
        (
            rehearsed(
                prefix_hit_rate=0.55,
                draft_acceptance=0.65,
                osl=tuple(int(v * 1.15) for v in OSL),
            ),
            Grade.C,
            Agreement.OFF,
        ),
        (
            rehearsed(isl=(), osl=(), ttft_ms=(), tpot_ms=()),
            Grade.B,
            Agreement.UNKNOWN,
        ),
    ],
    ids=["one off", "one unknown", "a tail far", "three off", "half unknown"],
)
def test_what_is_off_or_unknown_lowers_the_grade_and_does_not_fail(
    measured: Measurement, grade: Grade, beside: Agreement
) -> None:
    found = compare(live(), measured)
    assert found.grade is grade
    assert found.of(beside)


@pytest.mark.parametrize("signal", sorted(MAIN, key=lambda signal: signal.value))
def test_no_signal_that_live_traffic_lacks_makes_a_d(signal: Signal) -> None:
    nothing = Distribution(bounds=TOKENS, counts=(0.0,) * len(TOKENS), total=0.0)
    lacking: dict[Signal, dict[str, Any]] = {
        Signal.RATE: {"requests": 0.0},
        Signal.OUTPUT: {"output_tok_s": None},
        Signal.ISL_MEAN: {"isl": nothing},
        Signal.OSL_MEAN: {"osl": nothing},
        Signal.PREFIX_HIT_RATE: {"prefix_hit_rate": None},
        Signal.DRAFT_ACCEPTANCE: {"draft_acceptance": None},
        Signal.TTFT_P50: {"latencies": Latencies()},
        Signal.TPOT_P50: {"latencies": Latencies()},
    }
    shape = live(**lacking[signal])
    assert row(signal, shape, rehearsed()).agreement is Agreement.UNKNOWN
    assert compare(shape, rehearsed()).grade in (Grade.B, Grade.C)


@pytest.mark.parametrize("hit_rate", [None, 0.02])
def test_where_most_that_matters_is_unknown_there_is_no_grade(hit_rate: float | None) -> None:
    """Missing data is a hold, also beside a figure that is far off: no limit lets it through."""
    few = LEAST_REQUESTS - 1
    measured = rehearsed(
        requests=few,
        isl=tuple(ISL[:few]),
        osl=tuple(OSL[:few]),
        ttft_ms=tuple(TTFT[:few]),
        tpot_ms=tuple(TPOT[:few]),
        prefix_hit_rate=hit_rate,
    )
    found = compare(live(), measured)
    assert found.grade is Grade.UNKNOWN
    assert not any(found.grade.meets(limit) for limit in Grade)


def test_no_traffic_at_all_has_no_grade_and_says_what_is_not_known() -> None:
    nothing = Distribution(bounds=(), counts=(), total=0.0)
    idle = TrafficShape(
        model="m",
        end_s=0.0,
        window_s=SECONDS,
        requests=0.0,
        rate_rps=0.0,
        running=0.0,
        waiting=0.0,
        isl=nothing,
        osl=nothing,
        latencies=Latencies(),
    )
    found = compare(idle, rehearsed(draft_acceptance=None))
    assert found.grade is Grade.UNKNOWN
    assert len(found.of(Agreement.UNKNOWN)) == len(found.rows) == 13
    assert found.reasons[0].startswith("Not known, or on too few requests: mean ISL, ")


def test_speculation_that_neither_side_has_is_no_gap() -> None:
    found = compare(live(draft_acceptance=None), rehearsed(draft_acceptance=None))
    assert found.grade is Grade.A
    assert Signal.DRAFT_ACCEPTANCE not in {row.signal for row in found.rows}


def test_too_few_requests_tell_nothing() -> None:
    few = LEAST_REQUESTS - 1
    changes = {"isl": (9,) * few, "ttft_ms": (9000.0,) * few, "prefix_hit_rate": 0.02}
    measured = rehearsed(requests=few, **changes)
    for signal in (Signal.ISL_MEAN, Signal.TTFT_P50, Signal.RATE):
        assert row(signal, live(), measured).agreement is Agreement.UNKNOWN
    # Even they can tell that nothing at all was found in the cache.
    assert row(Signal.PREFIX_HIT_RATE, live(), measured).agreement is Agreement.FAR


def test_a_live_quantile_is_as_open_as_its_bucket() -> None:
    """150 ms lie between 100 and 250: any of them may be the truth."""
    for ttft_ms, agreement in ((105.0, Agreement.CLOSE), (245.0, Agreement.CLOSE)):
        measured = rehearsed(ttft_ms=(ttft_ms,) * N)
        assert row(Signal.TTFT_P50, live(), measured).agreement is agreement
    found = row(Signal.TTFT_P50, live(), rehearsed(ttft_ms=(150.0,) * N))
    assert found.low == pytest.approx(80.0)  # 100 / 1.25
    assert found.high == pytest.approx(312.5)  # 250 * 1.25
    assert found.difference == pytest.approx(150.0 - found.live if found.live else 0.0)


@pytest.mark.parametrize(
    ("ttft_ms", "agreement"),
    [(320.0, Agreement.CLOSE), (550.0, Agreement.OFF), (600.0, Agreement.FAR)],
)
def test_a_live_time_without_its_buckets_is_as_open_as_the_widest_leave_it(
    ttft_ms: float, agreement: Agreement
) -> None:
    shape = live(latencies=Latencies(ttft_p50_ms=150.0))
    measured = rehearsed(ttft_ms=(ttft_ms,) * N)
    assert row(Signal.TTFT_P50, shape, measured).agreement is agreement


@pytest.mark.parametrize(
    ("concurrency", "streams", "agreement"),
    [
        (0.4, 1, Agreement.CLOSE),
        (0.4, None, Agreement.FAR),
        (40.0, 40, Agreement.FAR),
        # More streams than production has requests are no rounding.
        (16.0, 40, Agreement.FAR),
        (0.4, 2, Agreement.CLOSE),
    ],
)
def test_a_closed_load_of_whole_streams_may_be_as_much_faster(
    concurrency: float, streams: int | None, agreement: Agreement
) -> None:
    """Less than one request at once cannot be kept under way: one is, 2.5 times as many."""
    shape = live(running=concurrency, waiting=0.0, output_tok_s=None)
    measured = rehearsed(requests=int(2.5 * N), streams=streams)
    assert row(Signal.RATE, shape, measured).agreement is agreement


@pytest.mark.parametrize(
    ("planned", "possible", "agreement"),
    [(0.7, 0.5, Agreement.CLOSE), (0.7, 0.7, Agreement.FAR), (0.0, 0.0, Agreement.FAR)],
)
def test_a_hit_rate_is_excused_by_what_the_empty_cache_cost_and_by_no_more(
    planned: float, possible: float, agreement: Agreement
) -> None:
    measured = rehearsed(prefix_hit_rate=0.45, planned_hit_rate=planned, possible_hit_rate=possible)
    shape = live(prefix_hit_rate=0.71)
    assert row(Signal.PREFIX_HIT_RATE, shape, measured).agreement is agreement


def overloaded(**changes: Any) -> TrafficShape:
    """Fifteen requests a second came and ten ended, so that 300 more wait at the end."""
    return live(**{"rate_rps": 15.0, "running": 40.0, "waiting": 200.0} | changes)


SLOW = rehearsed(ttft_ms=tuple(spread(20_000.0)))


def test_the_ttft_of_a_growing_queue_is_left_out_with_its_reason_and_nothing_else_is() -> None:
    found = compare(overloaded(), SLOW)
    assert found.grade is Grade.A
    assert {row.signal for row in found.of(Agreement.LEFT_OUT)} == {
        Signal.TTFT_P50,
        Signal.TTFT_P95,
    }
    [left_out, close] = found.reasons
    assert left_out.startswith("Left out: TTFT p50 20,375 ms against 160 ms live; ")
    assert left_out.endswith(
        "about 300 more requests came than ended while 200 waited, so live TTFT tells how old that "
        "queue is, which no rehearsal repeats."
    )
    assert close == "Close: 12 of 14 figures."
    without_prefixes = replace(SLOW, prefix_hit_rate=0.02)
    assert compare(overloaded(), without_prefixes).grade is Grade.D


@pytest.mark.parametrize(
    "shape",
    [
        overloaded(rate_rps=N / SECONDS),
        overloaded(rate_rps=10.5),
        overloaded(waiting=8.0),
        overloaded(rejected=300.0),
    ],
    ids=["long and steady", "by chance", "more run, few wait", "turned away"],
)
def test_the_ttft_of_a_queue_that_does_not_grow_counts(shape: TrafficShape) -> None:
    assert compare(shape, SLOW).grade is Grade.D
    assert not compare(shape, SLOW).of(Agreement.LEFT_OUT)


def test_what_is_left_out_is_not_among_what_must_be_known() -> None:
    """Three of seven that matter are unknown; of the six that count, that is not most."""
    shape = overloaded(draft_acceptance=None, prefix_hit_rate=None)
    measured = replace(SLOW, isl=(), osl=(), draft_acceptance=None)
    assert compare(shape, measured).grade is Grade.B
    assert compare(shape, replace(measured, tpot_ms=())).grade is Grade.UNKNOWN


def test_failed_requests_are_not_among_the_finished_ones() -> None:
    measured = replace(rehearsed(), failed=N // 2)
    assert row(Signal.RATE, live(), measured).rehearsed == pytest.approx(5.0)


@given(
    values=st.lists(st.floats(0.1, 1999.0), min_size=1, max_size=300),
    q=st.sampled_from([0.5, 0.95]),
)
def test_buckets_leave_a_quantile_at_least_as_open_as_the_values_do(
    values: list[float], q: float
) -> None:
    known, coarse = quantile(values, q), bucket_quantile(Distribution.of_values(values, TOKENS), q)
    assert known is not None and coarse is not None
    assert coarse.low <= known.value <= coarse.high
    assert known.low <= known.value <= known.high


def test_grades_meet_limits_from_a_down() -> None:
    assert [grade.meets(Grade.C) for grade in Grade] == [True, True, True, False, False]
