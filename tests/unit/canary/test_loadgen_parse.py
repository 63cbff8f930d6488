"""The reader of streamed answers, fed byte by byte, and the lines that plans travel in."""

import json
import math
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from canary.loadgen.answer import Answer
from canary.loadgen.codec import (
    Job,
    closing_line,
    job_lines,
    read_closing,
    read_job,
    read_record,
    record_line,
)
from canary.loadgen.health import health, percentile
from canary.loadgen.options import Budget, Options
from canary.loadgen.request import Endpoint, RequestWriter, check
from canary.loadgen.saturation import Limits
from canary.prompts import agents
from domain.errors import BadInput
from domain.load import (
    Arrival,
    LoadPlan,
    RequestError,
    RequestRecord,
    RequestSpec,
    Session,
    StopCause,
    Stopped,
)
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


def body_of(spec: RequestSpec, options: Options) -> tuple[list[str], dict]:
    """The lines of the head and the body of the request that is written."""
    writer = RequestWriter(Endpoint.parse("http://engine:8001/lane/"), model='a"b', options=options)
    head, body = writer.render(spec, "s").split(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    assert f"content-length: {len(body)}" in lines
    return lines, json.loads(body)


def test_a_url_keeps_its_prefix_in_the_request_line() -> None:
    options = Options(headers={"authorization": "Bearer t"})
    lines, body = body_of(RequestSpec(prompt=(1, 2), osl=3), options)
    assert lines[0] == "POST /lane/v1/completions HTTP/1.1"
    assert {"host: engine:8001", "x-session-id: s", "authorization: Bearer t"} <= set(lines)
    assert body["model"] == 'a"b'


@pytest.mark.parametrize(
    ("spec", "path", "asked"),
    [
        (RequestSpec(prompt=(1, 2), osl=3), "/v1/completions", {"prompt": [1, 2]}),
        (RequestSpec(text="Hi", osl=3), "/v1/completions", {"prompt": "Hi"}),
        (
            RequestSpec(text="Hi", osl=3),
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "Hi"}]},
        ),
    ],
)
def test_each_endpoint_is_asked_in_its_own_words(spec: RequestSpec, path: str, asked: dict) -> None:
    lines, body = body_of(spec, Options(path=path))
    assert lines[0] == f"POST /lane{path} HTTP/1.1"
    assert {name: body.get(name) for name in ("prompt", "messages") if name in body} == asked
    assert (body["max_tokens"], body["min_tokens"], body["ignore_eos"]) == (3, 3, True)


def plan_of(*specs: RequestSpec) -> LoadPlan:
    return LoadPlan(
        level="test",
        arrival=Arrival.CLOSED,
        concurrency=1,
        sessions=tuple(Session(name=f"s{i}", turns=(spec,)) for i, spec in enumerate(specs)),
        warm_up_s=0.0,
        duration_s=1.0,
        seed=1,
    )


def test_a_chat_endpoint_is_sent_no_token_ids() -> None:
    plan = plan_of(RequestSpec(text="Hi", osl=3), RequestSpec(prompt=(1,), osl=3))
    with pytest.raises(BadInput, match="takes text and no token ids"):
        check(plan, Options(path="/v1/chat/completions"))
    check(plan, Options())


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Options(request_timeout_s=0), "timeout"),
        (lambda: Options(headers={"x": "1\r\nhost: elsewhere"}), "line break"),
        (lambda: Options(session_header="x\ny"), "line break"),
        (lambda: Budget(requests=-1), "-1 requests"),
        (lambda: Budget(tokens=-1), "-1 tokens"),
        (lambda: Budget(seconds=0), "0 seconds"),
        (lambda: Limits(under_way=0), "0 requests under way"),
        (lambda: Limits(growing_s=0), "0 s"),
    ],
)
def test_bad_options_are_refused_with_a_sentence(make: Callable[[], object], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        make()


def test_a_job_and_a_result_survive_the_way() -> None:
    plan = agents(seed=2, sessions=3, turns=2, concurrency=2, system_tokens=40)
    text = Session(name="t", turns=(RequestSpec(text="Hi", text_isl=9, osl=2),))
    plan = replace(plan, sessions=(*plan.sessions, text, plan.sessions[0]))
    options = Options(
        request_timeout_s=9.0,
        headers={"authorization": "Bearer t"},
        records_path=Path("records.jsonl"),
        budget=Budget(tokens=7, seconds=3.0),
        saturation=Limits(under_way=5),
    )
    job = Job(plan=plan, url="http://x:1", model="m", options=options)
    lines = iter([*job_lines(job), b"more"])
    assert read_job(lines) == job
    assert next(lines) == b"more"
    assert plan.duration_s == math.inf
    result = simulate(plan, EngineBehaviour(fail_every=2))
    stopped = Stopped(cause=StopCause.BUDGET, sentence="Spent.")
    for each in (result, replace(result, arrival=Arrival.OPEN, stopped=stopped)):
        told = [record_line(record) for record in each.records]
        assert read_closing(closing_line(each), map(read_record, told)) == each


def test_a_line_of_a_request_holds_nothing_that_was_said() -> None:
    plan = plan_of(
        RequestSpec(text="The secret plan", text_isl=3, osl=2),
        RequestSpec(prompt=(31_337, 31_338), osl=2),
    )
    for told in simulate(plan, EngineBehaviour()).records:
        line = record_line(told)
        assert set(json.loads(line)) == {field.name for field in fields(RequestRecord)}
        assert "secret" not in line
        assert "31337" not in line


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
    ("lags_s", "loop_lag_s", "cpu_s", "fault"),
    [
        ([0.001] * 100, 0.002, 5.0, None),
        ([0.001] * 99 + [0.4], 0.002, 5.0, None),
        ([0.001] * 90 + [0.4] * 10, 0.002, 5.0, "sent 400 ms late"),
        ([0.001] * 100, 0.06, 5.0, "loop woke 60 ms late"),
        ([0.001] * 100, 0.002, 9.5, "used 95% of its core"),
    ],
)
def test_an_unfit_client_says_why(
    lags_s: list[float], loop_lag_s: float, cpu_s: float, fault: str | None
) -> None:
    records = [record(10.0, lag_s) for lag_s in lags_s]
    judged = health(records, warm_up_s=5.0, loop_lags_s=[loop_lag_s], cpu_s=cpu_s, wall_s=10.0)
    assert judged.loop_lag_ms == loop_lag_s * 1000
    assert (fault in (judged.fault or "")) if fault else judged.fault is None


@pytest.mark.parametrize(("first_s", "fit"), [(0.2, False), (1.1, False), (4.0, True)])
def test_lateness_is_measured_by_how_long_an_answer_takes(first_s: float, fit: bool) -> None:
    late = record(10.0, 0.1)
    first = replace(late, first_s=late.sent_s + first_s, last_s=late.sent_s + first_s)
    waking = replace(first, scheduled_s=first.sent_s)
    for records, loop_lag_s in (([first] * 100, 0.0), ([waking] * 100, 0.1)):
        judged = health(records, warm_up_s=5.0, loop_lags_s=[loop_lag_s], cpu_s=1.0, wall_s=10.0)
        assert (judged.fault is None) is fit


def test_sends_in_the_warm_up_and_to_a_dead_engine_are_no_fault_of_the_client() -> None:
    records = [record(1.0, 0.9), record(10.0, 3.0, RequestError.CONNECT)]
    judged = health(records, warm_up_s=5.0, loop_lags_s=[], cpu_s=0.0, wall_s=10.0)
    assert (judged.send_lag_ms, judged.fault) == (0.0, None)


def test_a_percentile_is_one_of_the_values() -> None:
    assert percentile([], 99) == 0.0
    assert percentile([3.0, 1.0, 2.0], 50) == 2.0
    assert percentile(range(1, 101), 99) == 99
