"""When a study is wanted, and when traffic is left alone."""

from dataclasses import replace

import pytest

from agent.triggers import Sensitivity, slo_breach, wanted, watched
from domain.slo import SLO
from domain.study import Trigger
from domain.traffic import TrafficShape
from tests.fakes.shapes import shape

SLO_1S = SLO(ttft_ms=1000.0, tpot_ms=60.0)
LEVEL = Sensitivity(min_requests=100, drift_distance=1.0, drift_windows=2)


def asked(live: TrafficShape, tuned_for: TrafficShape | None, windows: int = 1):
    """What is wanted after so many windows of this shape."""
    watch = None
    for number in range(1, windows + 1):
        seen = replace(live, end_s=1000.0 + 120.0 * number)
        watch = watched(watch, seen, tuned_for, LEVEL)
    return wanted(live, tuned_for, SLO_1S, LEVEL, watch)


def test_first_traffic_and_breach_and_drift_each_ask_for_a_study():
    assert asked(shape(), None).trigger is Trigger.FIRST
    slow = shape(ttft_p95_ms=4000.0)
    assert asked(slow, None).trigger is Trigger.SLO_BREACH
    assert "4000 ms" in asked(slow, None).reason
    busy = shape(running=98.0)
    assert asked(busy, shape(), windows=3) is None
    assert asked(busy, shape(), windows=4).trigger is Trigger.DRIFT


def test_a_breach_of_changed_traffic_waits_for_a_second_window_and_not_for_a_whole_run():
    slow = shape(running=98.0, ttft_p95_ms=4000.0)
    assert asked(slow, shape()) is None, "one window may be a burst"
    assert asked(slow, shape(), windows=2).trigger is Trigger.SLO_BREACH
    assert asked(shape(running=98.0), shape(), windows=2) is None


def test_a_breach_does_not_silence_a_drift_that_was_declared():
    """It stays declared a little below its limit, and is no less wanted while the SLO is broken."""
    watch = None
    for number in range(1, 5):
        seen = replace(shape(running=98.0), end_s=1000.0 + 120.0 * number)
        watch = watched(watch, seen, shape(), LEVEL)
    near = shape(running=55.0, ttft_p95_ms=4000.0)
    found = wanted(near, shape(), SLO_1S, LEVEL, watch)
    assert found.trigger is Trigger.SLO_BREACH
    assert "4000 ms" in found.reason
    assert "The number in the engine rose" in found.reason


def test_tuned_traffic_is_left_alone_even_while_it_breaches():
    assert asked(shape(), shape(running=26.0), windows=9) is None
    assert asked(shape(ttft_p95_ms=4000.0), shape()) is None


def test_too_little_traffic_asks_for_nothing_and_is_no_evidence_of_drift():
    few = shape(requests=99.0, running=98.0, ttft_p95_ms=9000.0)
    assert asked(few, None) is None
    assert asked(few, shape(), windows=9) is None
    assert watched(None, few, shape(), LEVEL) is None


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"requests": 2000.0}, "Demand rose 4.0-fold"),
        ({"requests": 125.0}, "Demand fell 4.0-fold"),
        ({"running": 200.0}, "The number in the engine rose 6.3-fold"),
        ({"isl": 1900.0}, "Mean ISL rose 4.2-fold"),
        ({"osl": 50.0}, "OSL of 100% of the requests changed"),
        ({"prefix_hit_rate": 0.93}, "The prefix hit rate went from 0.50 to 0.93"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_reason_says_what_moved_and_how_far(changed, said):
    reason = asked(shape(**changed), shape(), windows=6).reason
    assert reason.startswith(f"{said} for ")
    assert "noise unknown after 0 windows without change" in reason


def test_unknown_latency_is_no_breach():
    assert slo_breach(shape(ttft_p95_ms=None), SLO(ttft_ms=1.0)) is None
