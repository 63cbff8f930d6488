"""The reader of streamed answers, fed byte by byte, and the lines that plans travel in."""

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from canary.loadgen.answer import Answer
from canary.loadgen.codec import Job, job_lines, read_job, read_result, result_lines
from canary.loadgen.health import health, percentile
from canary.loadgen.request import Endpoint, RequestWriter
from canary.prompts import agents
from domain.load import RequestError, RequestRecord, RequestSpec
from tests.fakes.loadgen import EngineBehaviour, simulate


def event(value: object) -> bytes:
    return b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\r\n\r\n"


USAGE = event({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}})
DONE = b"data: [DONE]\n\n"


def response(*events: bytes, status: str = "200 OK", extra: str = "") -> bytes:
    head = f"HTTP/1.1 {status}\r\n{extra}Transfer-Encoding: chunked\r\n\r\n".encode()
    return head + b"".join(b"%x\r\n%b\r\n" % (len(e), e) for e in events) + b"0\r\n\r\n"


def text(value: str | None) -> bytes:
    return event({"id": "1", "choices": [{"index": 0, "text": value}], "usage": None})


def delta(**fields: object) -> bytes:
    return event({"choices": [{"index": 0, "delta": fields}]})


def read(data: bytes) -> Answer:
    """Fed whole at second 1."""
    answer = Answer()
    answer.feed(data, 1.0)
    return answer


def test_stamps_are_those_of_the_chunks_that_carry_tokens() -> None:
    answer = Answer()
    stream = response(text(""), text("a"), text("b"), text(""), USAGE, DONE)
    position, stamps = 0, {}
    for second, mark in enumerate((b'"text":""', b'"a"', b'"b"', b'"text":""', b"[DONE]")):
        end = stream.index(b"\r\n\r\n", stream.index(mark, position)) + 4
        end = len(stream) if mark == b"[DONE]" else end
        answer.feed(stream[position:end], float(second))
        position, stamps[mark] = end, second
    assert (answer.first_s, answer.last_s, answer.end_s) == (1.0, 2.0, 4.0)
    assert (answer.prompt_tokens, answer.completion_tokens) == (3, 2)
    assert answer.error is None
    assert answer.keep_alive


@given(cuts=st.lists(st.integers(0, 700), max_size=30))
def test_it_does_not_matter_how_the_bytes_are_cut(cuts: list[int]) -> None:
    stream = response(text('a"text":"'), text("ü"), USAGE, DONE, extra="X-Serinus-Arm: b\r\n")
    answer, before = Answer(), 0
    for cut in [*sorted(cuts), len(stream)]:
        answer.feed(stream[before:cut], 1.0)
        before = max(before, min(cut, len(stream)))
    assert answer.error is None
    assert (answer.first_s, answer.completion_tokens, answer.arm) == (1.0, 2, "b")


@pytest.mark.parametrize(
    "chunk",
    [
        text("x"),
        text('"'),
        text(" "),
        delta(content="x"),
        delta(reasoning="x"),
        delta(reasoning_content="x"),
        delta(tool_calls=[{"index": 0, "function": {"name": "f", "arguments": ""}}]),
        delta(tool_calls=[{"index": 0, "function": {"arguments": "{"}}]),
        b'data: {"choices": [{"text":  "spaced"}]}\n\n',
    ],
)
def test_what_counts_as_a_token(chunk: bytes) -> None:
    assert read(response(chunk, USAGE, DONE)).error is None


@pytest.mark.parametrize(
    "chunk",
    [
        text(""),
        text(None),
        delta(role="assistant", content=""),
        delta(content=None),
        b": a comment\n\n",
        b"event: ping\n\n",
    ],
)
def test_what_does_not_count_as_a_token(chunk: bytes) -> None:
    assert read(response(chunk, USAGE, DONE)).error is RequestError.EMPTY


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (response(text("a"), DONE), RequestError.MALFORMED),
        (response(DONE), RequestError.EMPTY),
        (response(), RequestError.EMPTY),
        (response(b'{"object":"text_completion"}'), RequestError.MALFORMED),
        (response(text("a"), b'data: {"choi\n\n', USAGE, DONE), RequestError.MALFORMED),
        (response(text("a"), USAGE, b'data: {"choi'), RequestError.MALFORMED),
        (response(text("a"), b'data: {"usage":{"x":1}}\n\n', DONE), RequestError.MALFORMED),
        (response(text("a"), b'data: {"usage":{]}\n\n', DONE), RequestError.MALFORMED),
        (response(text("a"), event({"error": {"code": 500}}), DONE), RequestError.HTTP_5XX),
        (response(text("a"), event({"error": {"code": 429}}), DONE), RequestError.HTTP_429),
        (response(event({"error": "overloaded"}), DONE), RequestError.HTTP_5XX),
        (response(status="404 Not Found"), RequestError.HTTP_4XX),
        (response(status="429 Too Many Requests"), RequestError.HTTP_429),
        (response(status="502 Bad Gateway"), RequestError.HTTP_5XX),
        (b"not http at all\r\n\r\n", RequestError.MALFORMED),
    ],
)
def test_bad_answers_have_their_class(data: bytes, error: RequestError) -> None:
    answer = read(data)
    assert answer.end_s == 1.0
    assert answer.error is error


def test_a_lost_connection_is_a_failure_unless_all_was_said() -> None:
    whole = response(text("a"), USAGE, DONE)
    cut = Answer()
    cut.feed(whole[:120], 1.0)
    cut.lose(2.0)
    assert (cut.error, cut.end_s) == (RequestError.DISCONNECTED, 2.0)
    said = Answer()
    said.feed(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + text("a") + USAGE + DONE, 1.0)
    said.lose(2.0)
    assert (said.error, said.keep_alive) == (None, False)


def test_an_answer_that_is_over_stays_as_it_is() -> None:
    answer = read(response(text("a"), USAGE, DONE))
    answer.fail(RequestError.TIMEOUT, 2.0)
    answer.lose(3.0)
    answer.feed(b"HTTP/1.1 500 Oh\r\n\r\n", 4.0)
    assert (answer.error, answer.end_s) == (None, 1.0)


def test_a_url_keeps_its_prefix_in_the_request_line() -> None:
    writer = RequestWriter(
        Endpoint.parse("http://engine:8001/lane/"),
        path="/v1/completions",
        model='a"b',
        session_header="x-session-id",
        headers={"authorization": "Bearer t"},
    )
    head, body = writer.render(RequestSpec(prompt=(1, 2), osl=3), "s").split(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    assert lines[0] == "POST /lane/v1/completions HTTP/1.1"
    assert {"host: engine:8001", "x-session-id: s", "authorization: Bearer t"} <= set(lines)
    assert f"content-length: {len(body)}" in lines
    assert json.loads(body)["model"] == 'a"b'


def test_a_job_and_a_result_survive_the_way() -> None:
    plan = agents(seed=2, sessions=3, turns=2, concurrency=2, system_tokens=40)
    job = Job(
        plan=plan,
        url="http://x:1",
        model="m",
        path="/v1/completions",
        request_timeout_s=9.0,
        session_header="x-session-id",
        headers={"authorization": "Bearer t"},
        records_path=None,
    )
    lines = iter([*job_lines(job), b"more"])
    assert read_job(lines) == job
    assert next(lines) == b"more"
    assert plan.duration_s == math.inf
    result = simulate(plan, EngineBehaviour(fail_every=2))
    assert read_result(result_lines(result)) == result


def record(sent_s: float, lag_s: float, error: RequestError | None = None) -> RequestRecord:
    return RequestRecord(
        session="s",
        turn=0,
        scheduled_s=sent_s - lag_s,
        sent_s=sent_s,
        end_s=sent_s + 1,
        isl=1,
        osl=1,
        error=error,
    )


@pytest.mark.parametrize(
    ("lags_s", "cpu_s", "fault"),
    [
        ([0.001] * 100, 5.0, None),
        ([0.001] * 99 + [0.4], 5.0, None),
        ([0.001] * 90 + [0.4] * 10, 5.0, "sent 400 ms late"),
        ([0.001] * 100, 9.5, "used 95% of its core"),
    ],
)
def test_an_unfit_client_says_why(lags_s: list[float], cpu_s: float, fault: str | None) -> None:
    records = [record(10.0, lag_s) for lag_s in lags_s]
    judged = health(records, warm_up_s=5.0, loop_lags_s=[0.002], cpu_s=cpu_s, wall_s=10.0)
    assert judged.loop_lag_ms == 2.0
    assert (fault in (judged.fault or "")) if fault else judged.fault is None


@pytest.mark.parametrize(("first_s", "fit"), [(0.2, False), (1.1, False), (4.0, True)])
def test_a_late_send_is_measured_by_how_long_an_answer_takes(first_s: float, fit: bool) -> None:
    late = record(10.0, 0.1)
    first = replace(late, first_s=late.sent_s + first_s, last_s=late.sent_s + first_s)
    judged = health([first] * 100, warm_up_s=5.0, loop_lags_s=[], cpu_s=1.0, wall_s=10.0)
    assert (judged.fault is None) is fit


def test_sends_in_the_warm_up_and_to_a_dead_engine_are_no_fault_of_the_client() -> None:
    records = [record(1.0, 0.9), record(10.0, 3.0, RequestError.CONNECT)]
    judged = health(records, warm_up_s=5.0, loop_lags_s=[], cpu_s=0.0, wall_s=10.0)
    assert (judged.send_lag_ms, judged.fault) == (0.0, None)


def test_a_percentile_is_one_of_the_values() -> None:
    assert percentile([], 99) == 0.0
    assert percentile([3.0, 1.0, 2.0], 50) == 2.0
    assert percentile(range(1, 101), 99) == 99
