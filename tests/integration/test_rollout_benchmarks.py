"""The benchmarks of rollouts and gateways run, and tell good from bad, on a short course."""

import pytest

from benchmarks import gateway
from benchmarks.rollouts import BAD, GOOD, rolled_out
from domain.rollout import Phase


@pytest.mark.parametrize("name", ["alike", "a fifth faster"])
def test_a_good_candidate_comes_to_the_end_of_its_steps(name: str) -> None:
    ended = rolled_out(name, GOOD[name], seed=1)
    assert (ended.phase, ended.step) == (Phase.CONVERTING, 3)


@pytest.mark.parametrize("name", ["30 points more errors", "twice the TTFT"])
def test_a_bad_one_goes_back_at_its_first_step(name: str) -> None:
    ended = rolled_out(name, BAD[name], seed=1)
    assert (ended.phase, ended.step) == (Phase.ROLLING_BACK, 0)


async def test_both_gateways_are_measured_beside_none(monkeypatch: pytest.MonkeyPatch) -> None:
    short = {"STREAMS": (4,), "TOKENS": 110, "OPEN_STREAMS": 8, "OPEN_TOKENS": 60, "STEP_S": 0.2}
    for name, value in {**short, "FLIPS": 4}.items():
        monkeypatch.setattr(gateway, name, value)
    names = list(gateway.GATEWAYS)
    found = await gateway.measured(names)
    assert list(found["gateways"]) == names == ["haproxy", "envoy"]
    assert found["direct"]["4"]["transit_p50_ms"] > 0
    for one in found["gateways"].values():
        assert one["streams"]["4"]["cpu_s_a_100k_chunks"] > 0
        assert one["shift"]["open_streams"] == 8
        assert one["shift"]["lost_streams"] == one["shift"]["failed_requests"] == 0
        assert one["control"]["next_request_by_the_old_weight"] == 0
