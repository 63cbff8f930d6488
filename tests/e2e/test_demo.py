"""The demo as a user runs it: nothing fails for a client, and goodput rises by half at least."""

import os
import re
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

REPORT = "report.html"


@pytest.fixture(scope="module")
def demo(tmp_path_factory) -> subprocess.CompletedProcess[str]:
    folder = tmp_path_factory.mktemp("demo")
    command = [sys.executable, "-m", "agent.cli", "demo", "--report", str(folder / REPORT)]
    # Everything that the demo starts inherits where temporary files go: by that it is found.
    marked = {**os.environ, "TMPDIR": str(folder)}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=500, cwd=folder, env=marked
    )
    done.args = folder
    return done


def number(pattern: str, text: str) -> float:
    found = re.search(pattern, text)
    assert found, f"{pattern!r} is not in: {text[-2000:]}"
    return float(found[1])


def test_better_config_is_promoted_without_a_failed_request(demo):
    assert demo.returncode == 0, demo.stdout[-3000:] + demo.stderr[-3000:]
    said = " ".join(demo.stdout.split())
    assert "SIMULATED" in said
    assert number(r"answered or failed, (\d+) failed", said) == 0
    assert number(r"Configs rehearsed on the canary lane: (\d+)", said) >= 6
    assert number(r"after / before: [\d.]+ \(95 % interval ([\d.]+) to", said) >= 1.5


def test_report_stands_alone_and_says_what_is_simulated(demo):
    page = (Path(demo.args) / REPORT).read_text(encoding="utf-8")
    assert "SIMULATED ENGINES" in page
    assert page.count("<svg") == 4
    assert page.count("95 % interval") >= 5
    assert not re.search(r"(src|href)=", page), "the report fetches something"
    for step in (5, 25, 50, 100):
        assert f"weight to {step} %" in page


def test_nothing_is_left_running(demo):
    folder = str(demo.args)
    left = [
        process.info["cmdline"]
        for process in psutil.process_iter(["cmdline", "environ"])
        if (process.info["environ"] or {}).get("TMPDIR") == folder
        or folder in " ".join(process.info["cmdline"] or ())
    ]
    assert left == []
