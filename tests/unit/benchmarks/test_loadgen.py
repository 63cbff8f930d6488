"""The parts of the load client's benchmark that need no server: what other tools said."""

from collections import Counter

import pytest

from benchmarks.loadgen import COUNTED_AS, FAULTS_EACH, biases, fault_plan
from benchmarks.rivals import Seen, aiperf_requests, vllm_requests
from benchmarks.truth_server import Fault, Truth


def test_what_vllm_kept_is_read_by_its_own_definition_of_tpot() -> None:
    said = {
        "start_times": [7.0, 8.0, 9.0],
        "ttfts": [0.2, 0.0, 0.3],
        "latencies": [2.18, 0.0, 0.3],
        "output_lens": [100, 0, 1],
        "errors": ["", "refused", ""],
    }
    (seen,) = vllm_requests(said)
    assert seen == pytest.approx(Seen(7.0, 0.2, 0.02))


def test_what_aiperf_kept_is_read_in_seconds() -> None:
    def row(**changes: object) -> dict:
        return {
            "metadata": {"request_start_ns": 7_000_000_000, "was_cancelled": False},
            "metrics": {
                "time_to_first_token": {"value": 200.0},
                "inter_token_latency": {"value": 20.0},
            },
        } | changes

    cancelled = row(metadata={"request_start_ns": 1, "was_cancelled": True})
    (seen,) = aiperf_requests([row(), row(error={"code": 500}), cancelled])
    assert seen == pytest.approx(Seen(7.0, 0.2, 0.02))


def test_a_bias_is_held_against_what_the_server_knows_of_the_same_time() -> None:
    seen = [Seen(100.0, 9.0, 9.0), *(Seen(104.0 + i, 0.21, 0.0202) for i in range(3))]
    truths = [Truth(5.0, 8.0, 8.0), *(Truth(9.0 + i, 0.2, 0.02) for i in range(3))]
    found = biases(seen, truths)
    assert found["requests"] == 3
    assert found["ttft_p50_bias_ms"] == pytest.approx(10.0)
    assert found["tpot_bias_pct"] == pytest.approx(1.0)


def test_every_fault_is_asked_for_as_often_and_has_its_class() -> None:
    asked = Counter(session.name.rpartition("-")[0] for session in fault_plan().sessions)
    assert asked == {fault.value: FAULTS_EACH for fault in Fault}
    assert set(COUNTED_AS) == set(Fault)
