"""Variables that switch LangSmith's tracing on send nothing of a study away."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pytest_httpserver import HTTPServer

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("variable", ["LANGSMITH_TRACING", "LANGCHAIN_TRACING_V2"])
@pytest.mark.parametrize(("graph", "sent"), [("bare", True), ("study", False)])
def test_a_study_sends_no_traces(
    httpserver: HTTPServer, variable: str, graph: str, sent: bool
) -> None:
    httpserver.expect_request("/info").respond_with_json({})
    httpserver.expect_request("/runs/batch").respond_with_json({})
    httpserver.expect_request("/runs/multipart").respond_with_json({})
    environment = {
        **os.environ,
        variable: "true",
        "LANGSMITH_ENDPOINT": httpserver.url_for("").rstrip("/"),
        "LANGSMITH_API_KEY": "lsv2-none",
    }
    ran = subprocess.run(
        [sys.executable, "-m", "tests.fakes.traced_study", graph],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ("stopped" in ran.stdout) is (graph == "study")
    posted = [request for request, _ in httpserver.log if request.method == "POST"]
    assert bool(posted) is sent
