"""When a study is wanted, and when traffic is left alone."""

from agent.triggers import Sensitivity, slo_breach, wanted
from domain.slo import SLO
from domain.study import Trigger
from tests.fakes.shapes import shape

SLO_1S = SLO(ttft_ms=1000.0, tpot_ms=60.0)
LEVEL = Sensitivity(min_requests=100, drift_distance=1.0)


def test_first_traffic_and_breach_and_drift_each_ask_for_a_study():
    assert wanted(shape(), None, SLO_1S, LEVEL).trigger is Trigger.FIRST
    slow = shape(ttft_p95_ms=4000.0)
    assert wanted(slow, None, SLO_1S, LEVEL).trigger is Trigger.SLO_BREACH
    assert "4000 ms" in wanted(slow, None, SLO_1S, LEVEL).reason
    busy = shape(running=80.0)
    assert wanted(busy, shape(), SLO_1S, LEVEL).trigger is Trigger.DRIFT


def test_tuned_traffic_is_left_alone_even_while_it_breaches():
    assert wanted(shape(), shape(running=26.0), SLO_1S, LEVEL) is None
    assert wanted(shape(ttft_p95_ms=4000.0), shape(), SLO_1S, LEVEL) is None


def test_too_little_traffic_asks_for_nothing():
    assert wanted(shape(requests=99.0, ttft_p95_ms=9000.0), None, SLO_1S, LEVEL) is None


def test_unknown_latency_is_no_breach():
    assert slo_breach(shape(ttft_p95_ms=None), SLO(ttft_ms=1.0)) is None
