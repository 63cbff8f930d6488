"""The shape benchmark runs as it is called by hand, and shows what it is there to show."""

import json
import shutil
import subprocess
import sys

import pytest


def test_a_known_shape_comes_back_through_a_real_prometheus_server():
    if shutil.which("prometheus") is None:
        pytest.skip("no prometheus executable")
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.shape", "1", "600"],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["simulated"] == "demo-hybrid"
    assert found["rate_error_most"] <= 0.03
    assert found["quantiles_within_their_bucket"] == found["quantiles"] == 16
    even, _, bursty, faulty = found["rows"]
    assert even["covered"] == 1
    assert 0.5 < faulty["covered"] < 1
    assert even["dispersion"][1]["told"] < 2 < bursty["dispersion"][1]["low"]
    assert faulty["dispersion"][1]["low"] > 2
