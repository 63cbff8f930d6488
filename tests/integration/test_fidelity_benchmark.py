"""The fidelity benchmark runs as it is called by hand, and shows what it is there to show."""

import json
import subprocess
import sys


def test_a_matching_plan_is_told_from_one_with_the_prefixes_removed():
    command = [sys.executable, "-m", "benchmarks.fidelity", "--seeds", "3"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["simulated"], found["n"]) == ("demo-hybrid", 3)
    assert found["matching_grades"]["D"] == 0
    assert found["removed_grades"] == {"A": 0, "B": 0, "C": 0, "D": 3, "unknown": 0}
    assert found["removed_not_refused"]["interval_95"][1] < 1
