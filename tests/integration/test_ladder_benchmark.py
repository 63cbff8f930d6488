"""The ladder benchmark runs as it is called by hand, and shows what it is there to show."""

import json
import subprocess
import sys


def test_the_controllers_own_search_climbs_the_ladder():
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.ladder"], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["simulated"] == "dgx-station-hybrid"
    assert found["ratio"] >= 1.85
    assert abs(found["baseline_tok_s"] / 6058 - 1) <= 0.05
    assert abs(found["best_tok_s"] / 11_840 - 1) <= 0.05
    rates = [step["tok_s"] for step in found["steps"]]
    assert rates == sorted(rates) and len(rates) > 1
    assert (found["drafts_at_256"], found["drafts_at_4"]) == (1, 3)
