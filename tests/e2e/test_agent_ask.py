"""`serinus agent ask` as a person types it: a real Prometheus, and a language model or none."""

import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pytest_httpserver import HTTPServer
from typer.testing import CliRunner, Result
from werkzeug import Request, Response

from agent.cli import app
from domain.errors import BadInput
from tests.fakes.fleet_history import write_history
from tests.fakes.prometheus import PrometheusServer
from tests.fakes.running_serinus import RunningSerinus

QUESTION = "Why is TTFT high in the last 2 minutes?"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[PrometheusServer]:
    binary = shutil.which("prometheus")
    if binary is None:
        pytest.skip("no prometheus executable")
    (home := tmp_path / "prometheus").mkdir()
    server = PrometheusServer(binary, home)
    write_history(server, end_s=time.time(), length_s=600.0)
    yield server
    server.stop()


@pytest.fixture
def ask(tmp_path: Path, server: PrometheusServer) -> Callable[..., Result]:
    serinus = RunningSerinus(
        tmp_path,
        served_model_name="m",
        window_s=60.0,
        scrape_interval_s=20.0,  # samples are written once, and must be fresh until they are read
        metrics="prometheus",
        prometheus_url=server.url,
    )

    def run(question: str, *words: str, **changes: Any) -> Result:
        config = serinus.write("changed.toml", **changes)
        return CliRunner().invoke(app, ["agent", "ask", question, "--config", str(config), *words])

    return run


def model(httpserver: HTTPServer, *replies: object) -> dict[str, str]:
    """The settings of a language model that honours a schema, and gives these replies in turn."""
    left = [{"canary": "sings"}, *replies]

    def answer(request: Request) -> Response:
        content = left.pop(0)
        message = {"role": "assistant", "content": json.dumps(content)}
        body = {
            "id": "c1",
            "object": "chat.completion",
            "created": 1,
            "model": "small",
            "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
            "usage": {"prompt_tokens": 900, "completion_tokens": 40, "total_tokens": 940},
        }
        return Response(json.dumps(body), 200, content_type="application/json")

    httpserver.expect_request("/v1/chat/completions").respond_with_handler(answer)
    return {
        "model_base_url": httpserver.url_for("/v1"),
        "model_name": "small",
        "model_api_key": "sk-hush",
    }


def test_without_a_model_the_rules_answer_and_say_so(ask: Callable[..., Result]):
    told, written = ask(QUESTION), ask(QUESTION, "--json")
    assert told.exit_code == written.exit_code == 0, told.output
    assert "UTC ('last 2 minutes'), compared with" in told.output
    assert "Nothing is wrong" in told.output
    assert "- ttft_p95_now: " in told.output
    assert "increase(vllm:time_to_first_token_seconds_bucket" in told.output
    assert told.output.rstrip().endswith(
        "No language model is set (model_base_url and model_name)."
    )
    document = json.loads(written.output)
    assert (document["cause"], document["author"]) == ("healthy", "rules")
    assert document["window"]["end_s"] - document["window"]["start_s"] == pytest.approx(120)
    assert {number["name"] for number in document["numbers"]} >= {"ttft_p95_now", "demand_now"}


def test_a_model_reads_prometheus_and_answers_with_figures_that_were_read(
    ask: Callable[..., Result], httpserver: HTTPServer
):
    look = {
        "tool": "promql",
        "arguments": {
            "expression": "sum(vllm:num_requests_running)",
            "minutes_ago": 0,
            "minutes": 2,
        },
        "answer": "",
    }
    words = {"tool": "none", "arguments": {}, "answer": "{r1_s1_last} run, which is calm."}
    document = json.loads(ask(QUESTION, "--json", **model(httpserver, look, words)).output)
    assert document["answer"] == "3 requests run, which is calm."
    assert document["author"] == "model small"
    [number] = document["numbers"]
    assert number["source"].startswith("last of sum (vllm:num_requests_running)")
    assert document["readings"][0]["fault"] == ""
    assert "sk-hush" not in json.dumps(document)


def test_a_model_that_makes_figures_up_is_replaced_by_the_rules(
    ask: Callable[..., Result], httpserver: HTTPServer
):
    lie = {"tool": "none", "arguments": {}, "answer": "TTFT is 31337 ms."}
    told = ask(QUESTION, **model(httpserver, lie, lie))
    assert told.exit_code == 0
    assert "Nothing is wrong" in told.output
    assert "The language model was not followed: the number '31337' was not read, twice." in (
        told.output
    )


def test_a_model_that_is_down_is_told(ask: Callable[..., Result]):
    nowhere = {"model_base_url": "http://127.0.0.1:9/v1", "model_name": "small"}
    told = ask(QUESTION, **nowhere)
    assert told.exit_code == 0
    assert "Nothing is wrong" in told.output
    assert "The language model was not followed: it gave no answer" in told.output


def test_it_may_be_asked_from_a_machine_without_the_engines_gpus(ask: Callable[..., Result]):
    gpus = {"production_gpu_ids": ["0"], "canary_gpu_ids": ["1"], "gpus": "separate"}
    told = ask(QUESTION, executable="/nowhere/vllm", model="/nowhere/model", **gpus)
    assert told.exit_code == 0, told.exception
    assert "Nothing is wrong" in told.output


def test_a_server_without_these_engines_says_nothing_of_traffic(ask: Callable[..., Result]):
    told = ask(QUESTION, served_model_name="another", metric_labels={"cluster": "none"})
    assert told.exit_code == 0
    assert "whether there is traffic is not known" in told.output


@pytest.mark.parametrize(
    ("question", "changes", "fault"),
    [
        ("", {}, "Ask a question of 1 to 500 characters"),
        ("x" * 501, {}, "Ask a question of 1 to 500 characters"),
        ("since 25:00", {}, "is no time of day"),
        (QUESTION, {"metrics": "scrape"}, "set metrics to prometheus or grafana"),
    ],
)
def test_what_cannot_be_asked_is_one_sentence(
    ask: Callable[..., Result], question: str, changes: dict[str, Any], fault: str
):
    refused = ask(question, **changes)
    assert isinstance(refused.exception, BadInput)
    assert fault in str(refused.exception)
