"""The simulated engine as a real process: its command line, its API, its faults, its end."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from canary.prefix_cache import reset_prefix_cache
from serving.simulator import profile
from tests.fakes.loopback import free_port

DEADLINE_S = 15.0
SOURCE = Path(profile.__file__).parent / "profiles" / "demo-hybrid.toml"
DRAFTING = [
    "--async-scheduling",
    "--speculative-config",
    '{"method":"mtp","num_speculative_tokens":3}',
]


class Engine:
    """A running process and a client for it."""

    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self.process = process
        self.client = httpx.Client(base_url=url, timeout=DEADLINE_S, trust_env=False)

    def until(self, true: Callable[[], bool]) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not true():
            assert time.monotonic() < deadline, "not so before the deadline"
            time.sleep(0.02)

    def status(self) -> int:
        try:
            return self.client.get("/health").status_code
        except httpx.TransportError:
            return 0

    def complete(self, **fields: Any) -> httpx.Response:
        return self.client.post("/v1/completions", json={"model": "demo", **fields})

    def stream(self, **fields: Any) -> Any:
        body = {"model": "demo", "stream": True, "ignore_eos": True, **fields}
        return self.client.stream("POST", "/v1/completions", json=body)

    def value(self, name: str, **labels: str) -> float:
        """A sample of /metrics; 0 where there is none."""
        families = text_string_to_metric_families(self.client.get("/metrics").text)
        samples = (sample for family in families for sample in family.samples)
        return sum(
            s.value for s in samples if s.name == name and labels.items() <= s.labels.items()
        )

    def ended(self) -> str:
        """Wait for the process to end by itself; what it logged."""
        _, log = self.process.communicate(timeout=DEADLINE_S)
        return log


def profile_of(folder: Path, start_s: float) -> str:
    path = folder / f"start-{start_s}.toml"
    path.write_text(SOURCE.read_text().replace("start_s = 1.5", f"start_s = {start_s}"))
    return str(path)


def launch(*argv: str, **env: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "serving.simulator", "serve", *argv],
        env={**os.environ, **env},
        stderr=subprocess.PIPE,
        text=True,
    )


@contextmanager
def engine(model: str, *flags: str, **env: str) -> Iterator[Engine]:
    """An engine on a free port; killed at the end, whatever happened to it."""
    port = free_port()
    own = ("--host", "127.0.0.1", "--port", str(port), "--served-model-name", "demo")
    process = launch(model, *own, *flags, **env)
    running = Engine(process, f"http://127.0.0.1:{port}")
    try:
        yield running
    finally:
        running.client.close()
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """One healthy engine with three drafts, shared by the tests that do not break it."""
    model = profile_of(tmp_path_factory.mktemp("profiles"), 0.1)
    with engine(model, *DRAFTING, OMP_NUM_THREADS="1") as running:
        running.until(lambda: running.status() == 200)
        yield running


def events(response: httpx.Response) -> list[dict[str, Any]]:
    """The JSON of each event; the last line must be the end mark."""
    lines = [line.removeprefix("data: ") for line in response.iter_lines() if line]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


def test_it_is_503_until_started_and_says_that_it_is_a_simulation(tmp_path: Path) -> None:
    with engine(profile_of(tmp_path, 1.0), "--max-num-seqs", "64") as running:
        running.until(lambda: running.status() != 0)
        assert running.status() == 503
        assert running.complete(prompt="Hi").status_code == 503
        running.until(lambda: running.status() == 200)
        answer = running.client.get("/version")
        assert answer.json() == {"version": "0.32.0", "simulated": True}
        assert answer.headers["x-simulated"] == "true"
        running.process.terminate()
        log = running.ended()
        assert "SIMULATION" in log
        assert "max_num_seqs=64" in log


def test_it_tells_the_token_ids_of_a_text(served: Engine) -> None:
    body = {"model": "demo", "prompt": "A text, of words.", "add_special_tokens": False}
    told = served.client.post("/tokenize", json=body).json()
    assert told["count"] == len(told["tokens"]) == 6
    used = served.complete(prompt="A text, of words.", max_tokens=1).json()["usage"]
    assert used["prompt_tokens"] == told["count"]
    assert served.client.post("/tokenize", json={"model": "demo"}).status_code == 400


def test_models_names_the_served_model_and_its_length(served: Engine) -> None:
    [card] = served.client.get("/v1/models").json()["data"]
    assert (card["id"], card["max_model_len"]) == ("demo", 8192)


def test_a_stream_counts_its_tokens_and_may_carry_several_in_a_chunk(served: Engine) -> None:
    with served.stream(
        prompt=list(range(50)), max_tokens=60, stream_options={"include_usage": True}
    ) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["x-simulated"] == "true"
        *chunks, last = events(answer)
    texts = [chunk["choices"][0]["text"] for chunk in chunks]
    assert len("".join(texts).split()) == 60
    assert len(texts) < 60
    assert last["choices"] == []
    assert last["usage"] == {"prompt_tokens": 50, "completion_tokens": 60, "total_tokens": 110}
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert reasons == [None] * (len(chunks) - 1) + ["length"]


def test_chat_streams_a_role_and_then_its_words(served: Engine) -> None:
    body = {
        "model": "demo",
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Compute 2 + 2."}]}],
        "stream": True,
        "max_completion_tokens": 50,
    }
    with served.client.stream("POST", "/v1/chat/completions", json=body) as answer:
        first, *chunks = events(answer)
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    text = "".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks)
    assert text.endswith("Answer: 4")
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


def test_a_whole_answer_is_the_same_as_the_streamed_one(served: Engine) -> None:
    whole = served.complete(prompt="Tell me more", max_tokens=20).json()
    with served.stream(prompt="Tell me more", max_tokens=20) as answer:
        streamed = "".join(chunk["choices"][0]["text"] for chunk in events(answer))
    assert whole["choices"][0]["text"] == streamed
    assert whole["usage"]["completion_tokens"] == 20


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"prompt": "Hi", "model": "nobody"}, 404),
        ({"prompt": []}, 400),
        ({"prompt": {"a": 1}}, 400),
        ({"prompt": "Hi", "max_tokens": 0}, 400),
        ({"prompt": [1] * 8000, "max_tokens": 500}, 400),
    ],
)
def test_a_bad_request_gets_vllms_error_body(
    served: Engine, fields: dict[str, Any], status: int
) -> None:
    answer = served.complete(**fields)
    assert answer.status_code == status
    assert answer.json()["error"]["code"] == status
    assert answer.json()["error"]["message"]


def test_a_client_that_leaves_aborts_its_request(served: Engine) -> None:
    ended = {"finished_reason": "abort", "model_name": "demo", "engine": "0"}
    before = served.value("vllm:request_success_total", **ended)
    with served.stream(prompt=[1, 2, 3], max_tokens=5000) as answer:
        lines = answer.iter_lines()
        assert next(lines).startswith("data: ")
        assert served.value("vllm:num_requests_running") == 1
    served.until(lambda: served.value("vllm:num_requests_running") == 0)
    assert served.value("vllm:request_success_total", **ended) == before + 1


def test_a_repeated_prompt_hits_the_cache_until_it_is_reset(served: Engine) -> None:
    prompt = list(range(70_000, 70_100))

    def hits() -> float:
        before = served.value("vllm:prefix_cache_hits_total")
        served.complete(prompt=prompt, max_tokens=1)
        return served.value("vllm:prefix_cache_hits_total") - before

    assert [hits(), hits()] == [0, 96]
    assert asyncio.run(reset_prefix_cache(str(served.client.base_url)))
    assert hits() == 0


def test_metrics_have_vllms_names_labels_and_buckets(served: Engine) -> None:
    served.complete(prompt=list(range(40)), max_tokens=30, ignore_eos=True)
    families = {
        f.name: f for f in text_string_to_metric_families(served.client.get("/metrics").text)
    }
    for name in ("prompt_tokens", "generation_tokens", "num_preemptions", "spec_decode_num_drafts"):
        [sample] = [s for s in families[f"vllm:{name}"].samples if s.name.endswith("_total")]
        assert sample.labels == {"engine": "0", "model_name": "demo"}
    assert served.value("vllm:spec_decode_num_draft_tokens_total") == 3 * served.value(
        "vllm:spec_decode_num_drafts_total"
    )
    by_position = [
        served.value("vllm:spec_decode_num_accepted_tokens_per_pos_total", position=str(i))
        for i in range(3)
    ]
    assert sum(by_position) == served.value("vllm:spec_decode_num_accepted_tokens_total") > 0
    assert by_position == sorted(by_position, reverse=True)
    bounds = {
        name: [s.labels["le"] for s in families[f"vllm:{name}"].samples if "le" in s.labels]
        for name in ("time_to_first_token_seconds", "inter_token_latency_seconds")
    }
    assert bounds["time_to_first_token_seconds"][:4] == ["0.001", "0.005", "0.01", "0.02"]
    assert bounds["time_to_first_token_seconds"][-3:] == ["640.0", "2560.0", "+Inf"]
    assert bounds["inter_token_latency_seconds"][:3] == ["0.01", "0.025", "0.05"]
    assert served.value("vllm:iteration_tokens_total_sum") > 0


def test_a_hung_engine_is_healthy_and_silent_until_the_fault_is_lifted(served: Engine) -> None:
    assert served.client.post("/simulator/fault", json={"fault": "hang_mid_stream"}).is_success
    with served.stream(prompt=[7, 8, 9], max_tokens=40) as answer:
        lines = answer.iter_lines()
        assert next(lines).startswith("data: ")
        generated = served.value("vllm:generation_tokens_total")
        assert served.status() == 200
        assert served.value("vllm:num_requests_running") == 1
        assert served.value("vllm:generation_tokens_total") == generated
        assert served.client.post("/simulator/fault", json={"fault": None}).is_success
        assert [line for line in lines if line][-1] == "data: [DONE]"


def test_a_refusing_engine_answers_500_after_the_given_requests(served: Engine) -> None:
    served.client.post("/simulator/fault", json={"fault": "http_500:1"})
    statuses = [served.complete(prompt="Hi", max_tokens=1).status_code for _ in range(3)]
    served.client.post("/simulator/fault", json={"fault": None})
    assert statuses == [200, 500, 500]
    assert served.complete(prompt="Hi", max_tokens=1).status_code == 200


def test_an_engine_may_call_itself_healthy_long_before_it_answers(tmp_path: Path) -> None:
    fault = "healthy_while_cold"
    with engine(profile_of(tmp_path, 3600.0), SERINUS_SIMULATOR_FAULT=fault) as cold:
        cold.until(lambda: cold.status() == 200)
        assert cold.complete(prompt="x", max_tokens=1).status_code == 503


@pytest.mark.parametrize(
    "body", [{"fault": "flood"}, {"fault": "oom_at_start"}, {"fault": "healthy_while_cold"}, {}, []]
)
def test_an_unknown_fault_is_refused(served: Engine, body: Any) -> None:
    assert served.client.post("/simulator/fault", json=body).status_code == 400


@pytest.mark.parametrize(
    ("fault", "line"),
    [
        ("oom_under_load", "torch.OutOfMemoryError: CUDA out of memory"),
        ("die_under_load", "EngineDeadError"),
    ],
)
def test_an_engine_that_breaks_cuts_its_streams_and_exits(
    tmp_path: Path, fault: str, line: str
) -> None:
    with engine(profile_of(tmp_path, 0.1)) as running, ExitStack() as streams:
        running.until(lambda: running.status() == 200)
        answer = streams.enter_context(running.stream(prompt=[1], max_tokens=4000))
        lines = answer.iter_lines()
        assert next(lines).startswith("data: ")
        running.client.post("/simulator/fault", json={"fault": fault})
        with pytest.raises(httpx.TransportError):
            running.complete(prompt="one too many", max_tokens=1)
        with pytest.raises(httpx.RemoteProtocolError):
            list(lines)
        assert line in running.ended()
        assert running.process.returncode == 1


@pytest.mark.parametrize(
    ("flags", "fault", "line"),
    [
        ([], "start_failure", "RuntimeError: Engine core initialization failed"),
        ([], "oom_at_start", "torch.OutOfMemoryError: CUDA out of memory"),
        (["--gpu-memory-utilization", "0.99"], "", "torch.OutOfMemoryError: CUDA out of memory"),
    ],
)
def test_an_engine_that_cannot_start_says_why_and_exits(
    tmp_path: Path, flags: list[str], fault: str, line: str
) -> None:
    with engine(profile_of(tmp_path, 0.1), *flags, SERINUS_SIMULATOR_FAULT=fault) as running:
        assert line in running.ended()
        assert running.process.returncode == 1


def test_sigterm_ends_at_once_and_cuts_what_is_running(tmp_path: Path) -> None:
    with engine(profile_of(tmp_path, 0.1)) as running:
        running.until(lambda: running.status() == 200)
        with running.stream(prompt=[1], max_tokens=8000) as answer:
            lines = answer.iter_lines()
            assert next(lines).startswith("data: ")
            running.process.send_signal(signal.SIGTERM)
            with pytest.raises(httpx.RemoteProtocolError):
                list(lines)
        running.ended()
        assert running.process.returncode == 0


def test_what_the_command_line_gets_wrong_is_one_sentence() -> None:
    for argv, words in (
        (("demo-hybrid", "--max-seqs", "3"), "--max-seqs is not a flag that Serinus knows"),
        (("nothing",), "There is no simulator profile nothing"),
    ):
        process = launch(*argv)
        _, log = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 2
        assert words in log


def test_a_taken_port_is_said_and_ends_the_process() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        process = launch("demo-hybrid", "--port", str(taken.getsockname()[1]))
        _, log = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 1
    assert "Address already in use" in log
