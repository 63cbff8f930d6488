"""A rehearsal of a trace repeats a stretch of it that is like live traffic and that can be sent."""

import re
from itertools import accumulate

import pytest

from canary.prompts import arrivals_of, replay, stretch_like, synthesise
from domain.errors import BadInput
from domain.trace import Trace, TracedRequest
from tests.fakes.records import shape

LENGTH_S = 10.0
LIVE = shape(rate_rps=4.0)
"""Four requests a second of 500 tokens and as many of answer."""


def traffic(*hours: tuple[float, int], each_s: float = 100.0) -> Trace:
    """Stretches of ``each_s``, each with its requests a second and tokens."""
    requests = []
    for begun_s, (rate_rps, tokens) in zip(
        accumulate([each_s] * len(hours), initial=0.0), hours, strict=False
    ):
        for number in range(round(each_s * rate_rps)):
            at_s = begun_s + number / rate_rps
            requests.append(TracedRequest(offset_s=at_s, isl=tokens, osl=tokens))
    return Trace(requests=tuple(requests))


def found(trace: Trace, seed: int = 1, warm_up_s: float = 0.0) -> float:
    return stretch_like(trace, LIVE, seed=seed, length_s=LENGTH_S, warm_up_s=warm_up_s)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("hours", "like"),
    [
        ([(4.0, 100), (4.0, 500), (4.0, 2000)], 1),
        ([(20.0, 500), (1.0, 500), (4.0, 500)], 2),
        ([(4.0, 500), (8.0, 1000)], 0),
    ],
    ids=["lengths", "rate", "both"],
)
def test_it_is_nearest_to_the_live_rate_and_lengths(
    hours: list[tuple[float, int]], like: int, seed: int
) -> None:
    start_s = found(traffic(*hours), seed)
    assert like * 100.0 - LENGTH_S / 2 <= start_s <= (like + 1) * 100.0 - LENGTH_S / 2


def test_one_seed_gives_one_stretch() -> None:
    trace = traffic((4.0, 500), (4.0, 600))
    assert found(trace) == found(trace)
    assert len({found(trace, seed) for seed in range(5)}) > 1


@pytest.mark.parametrize("seed", range(5))
def test_hours_of_silence_and_what_no_plan_can_hold_are_passed_over(seed: int) -> None:
    busy = [TracedRequest(offset_s=n / 4, isl=1_000_000, osl=500) for n in range(400)]
    late = [TracedRequest(offset_s=90_000.0 + n / 9, isl=90, osl=9) for n in range(400)]
    trace = Trace(requests=(*busy, *late))
    start_s = found(trace, seed)
    assert start_s >= 90_000.0
    assert replay(trace, seed=1, start_s=start_s, window_s=LENGTH_S).sessions


def test_the_last_request_is_not_lost_to_the_end_of_the_trace() -> None:
    assert found(Trace(requests=(TracedRequest(offset_s=5000.0, isl=9, osl=9),))) < 5000.0


def test_of_a_trace_without_lengths_the_rate_decides_and_the_shapes_lengths_must_fit() -> None:
    log = tuple(
        TracedRequest(offset_s=request.offset_s, isl=None, osl=None)
        for request in traffic((3000.0, 1), (6.0, 1)).requests
    )
    start_s = found(Trace(requests=log))
    assert start_s >= 100.0 - LENGTH_S / 2
    coming = arrivals_of(Trace(requests=log), start_s=start_s, window_s=LENGTH_S)
    plan = synthesise(
        LIVE,
        level="log",
        concurrency=1,
        warm_up_s=0.0,
        duration_s=LENGTH_S,
        seed=1,
        arrivals=coming,
    )
    assert len(plan.sessions) == len(coming)


@pytest.mark.parametrize(
    ("trace", "warm_up_s", "said"),
    [
        (Trace(requests=()), 0.0, "which has 0 requests, has one after its first 0 s; give"),
        (traffic((4.0, 9), each_s=3.0), 5.0, "which has 12 requests, has one after its first 5 s"),
        (traffic((4.0, 400_000)), 0.0, " has 16000000 prompt tokens, and a plan holds 8000000;"),
    ],
    ids=["empty", "over before the warm-up", "too much"],
)
def test_where_nothing_can_be_sent_one_sentence_says_why(
    trace: Trace, warm_up_s: float, said: str
) -> None:
    with pytest.raises(BadInput, match=re.escape(said)):
        found(trace, warm_up_s=warm_up_s)
