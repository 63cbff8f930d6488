"""Asking a language model over real HTTP: servers that differ, are busy, lie, hang or never end."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import socket
import threading
from collections.abc import Iterator

import pytest
from pytest_httpserver import HTTPServer
from werkzeug import Request, Response

from agent.language import exchange
from agent.language.dialect import Way
from agent.language.endpoint import Endpoint
from domain.language import Answer, NoAnswer, Silence, Tokens
from tests.fakes.clock import FakeClock
from tests.fakes.language import ChatServer, completion, question, refusal
from tests.fakes.loopback import free_port

KEY = "sk-never-to-be-seen"
HELLO = completion("Hello!")
SINGS = completion('{"canary": "sings"}')


@pytest.fixture(autouse=True)
def key_unseen(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Whatever a test does, also at DEBUG of every library, the key is in no log line."""
    caplog.set_level(logging.DEBUG)
    yield
    assert KEY not in caplog.text


def endpoint(
    url: str, *, way: Way | None = Way.JSON_SCHEMA, timeout_s: float = 5.0, key: str = KEY
) -> Endpoint:
    return Endpoint(
        base_url=url, model="small", api_key=key, clock=FakeClock(), timeout_s=timeout_s, way=way
    )


async def silence(asked: Endpoint) -> NoAnswer:
    with pytest.raises(NoAnswer) as none:
        await asked.answer(question())
    assert KEY not in str(none.value)
    return none.value


async def test_what_is_sent_and_what_comes_of_it(httpserver: HTTPServer) -> None:
    usage = {"prompt_tokens": 12, "completion_tokens": 3}
    server = ChatServer(httpserver, [completion(" text ", usage=usage)])
    answer = await endpoint(server.url).answer(question())
    assert answer == Answer(text="text", tokens=Tokens(read=12, written=3))
    sent = server.body(0)
    assert sent["model"] == "small" and sent["max_tokens"] == 100 and sent["temperature"] == 0
    assert sent["response_format"]["json_schema"]["schema"] == question().schema
    assert "stream" not in sent and "tools" not in sent
    assert server.requests[0].headers["Authorization"] == f"Bearer {KEY}"


@pytest.mark.parametrize("way", list(Way))
async def test_free_text_is_asked_for_without_a_format(httpserver: HTTPServer, way: Way) -> None:
    server = ChatServer(httpserver, [HELLO])
    await endpoint(server.url, way=way).answer(question(schema=None))
    assert "response_format" not in server.body(0)


async def test_without_a_key_none_is_sent_whatever_the_environment_holds(
    httpserver: HTTPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    server = ChatServer(httpserver, [HELLO])
    await endpoint(server.url, key="").answer(question())
    assert "Authorization" not in server.requests[0].headers


async def test_an_answer_that_repeats_the_key_is_passed_on_without_it(
    httpserver: HTTPServer,
) -> None:
    server = ChatServer(httpserver, [completion(f"Your key is {KEY}.")])
    assert (await endpoint(server.url).answer(question())).text == "Your key is …."


@pytest.mark.parametrize("status", [429, 503])
async def test_a_busy_server_is_asked_again_after_the_pause_that_it_asks_for(
    httpserver: HTTPServer, status: int
) -> None:
    busy = refusal("busy", status, **{"Retry-After": "7"})
    server = ChatServer(httpserver, [busy, HELLO])
    clock = FakeClock()
    asked = Endpoint(base_url=server.url, model="m", api_key=KEY, clock=clock, way=Way.PROMPT)
    assert (await asked.answer(question())).text == "Hello!"
    assert clock.now() == 7.0 and len(server.requests) == 2


@pytest.mark.parametrize(
    ("busy", "requests"),
    [
        (refusal("busy", 429), 3),
        (refusal("busy", 503, **{"Retry-After": "0"}), 3),
        (refusal("busy", 429, **{"Retry-After": "3600"}), 1),
        (refusal("busy", 429, **{"Retry-After": "inf"}), 3),
        (refusal("busy", 429, **{"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}), 3),
    ],
    ids=["no pause", "at once", "an hour", "for ever", "a date"],
)
async def test_a_server_that_stays_busy_is_left(
    httpserver: HTTPServer, busy: Response, requests: int
) -> None:
    server = ChatServer(httpserver, [busy])
    none = await silence(endpoint(server.url))
    assert none.silence is Silence.UNREACHABLE and "HTTP status" in str(none)
    assert none.tokens == Tokens(read=0, written=0)
    assert len(server.requests) == requests


@pytest.mark.parametrize("status", [400, 401, 403, 404, 500])
async def test_what_a_server_refuses_is_not_asked_again_and_its_words_are_not_repeated(
    httpserver: HTTPServer, status: int
) -> None:
    server = ChatServer(httpserver, [refusal(f"Incorrect API key provided: {KEY}", status)])
    none = await silence(endpoint(server.url))
    assert none.silence is Silence.UNREACHABLE
    assert str(none) == f"It answered with HTTP status {status}."
    assert len(server.requests) == 1


async def test_a_redirect_is_not_followed(httpserver: HTTPServer) -> None:
    elsewhere = httpserver.url_for("/elsewhere")
    server = ChatServer(httpserver, [Response(status=307, headers={"Location": elsewhere})])
    assert "HTTP status 307" in str(await silence(endpoint(server.url)))
    assert [request.path for request, _ in httpserver.log] == ["/v1/chat/completions"]


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (completion("half", "length"), Silence.CUT_OFF),
        (completion(None, refusal="No."), Silence.REFUSED),
        (completion("", "content_filter"), Silence.REFUSED),
        (completion(None), Silence.EMPTY),
        (completion([{"type": "text"}]), Silence.MALFORMED),
        (Response("<html>busy</html>", content_type="text/html"), Silence.MALFORMED),
        (Response("", content_type="application/json"), Silence.MALFORMED),
        (Response("[" * 100_000, content_type="application/json"), Silence.MALFORMED),
        (Response(b"\xff\xfe", content_type="application/json"), Silence.MALFORMED),
    ],
)
async def test_a_body_without_a_whole_answer(
    httpserver: HTTPServer, reply: dict[str, object] | Response, expected: Silence
) -> None:
    server = ChatServer(httpserver, [reply])
    none = await silence(endpoint(server.url))
    assert none.silence is expected
    assert none.tokens is not None and none.tokens.total > 0
    assert len(server.requests) == 1


async def test_a_model_that_reasons_is_heard_wherever_its_server_puts_the_text(
    httpserver: HTTPServer,
) -> None:
    replies = [
        completion("<think>Let me {see}.</think>\n{}"),
        completion(None, reasoning_content="{}"),
        completion("", reasoning="{}"),
        completion("{}", reasoning_content="Let me see."),
    ]
    server = ChatServer(httpserver, replies)
    asked = endpoint(server.url)
    assert [(await asked.answer(question())).text for _ in replies] == ["{}"] * 4


@pytest.mark.parametrize("status", [200, 400])
async def test_a_body_without_an_end_fills_no_memory(
    httpserver: HTTPServer, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "MOST_BYTES", 100_000)  # what is true of it is true of more
    ended, sent = threading.Event(), 0

    def endless() -> Response:
        def chunks() -> Iterator[bytes]:
            nonlocal sent
            try:
                while True:
                    sent += 10_000
                    yield b" " * 10_000
            finally:
                ended.set()

        return Response(chunks(), status=status, content_type="application/json")

    server = ChatServer(httpserver, [endless])
    none = await silence(endpoint(server.url, timeout_s=60.0))
    assert none.silence is Silence.MALFORMED and "longer than is read" in str(none)
    assert await asyncio.to_thread(ended.wait, 30.0)
    assert sent < 50_000_000


async def test_a_compressed_body_is_not_unpacked(httpserver: HTTPServer) -> None:
    body = gzip.compress(json.dumps(HELLO).encode())
    packed = Response(body, headers={"Content-Encoding": "gzip"})
    server = ChatServer(httpserver, [packed])
    assert (await silence(endpoint(server.url))).silence is Silence.MALFORMED
    assert server.requests[0].headers["Accept-Encoding"] == "identity"


@pytest.mark.parametrize("trickles", [False, True])
async def test_no_answer_takes_longer_than_the_deadline(
    httpserver: HTTPServer, trickles: bool
) -> None:
    released = threading.Event()

    def slow(request: Request) -> Response:
        def spaces() -> Iterator[bytes]:
            while not released.wait(0.05):
                yield b" "

        if trickles:
            return Response(spaces(), content_type="application/json")
        released.wait(30)
        return Response("{}")

    httpserver.expect_request("/v1/chat/completions").respond_with_handler(slow)
    try:
        none = await silence(endpoint(httpserver.url_for("/v1"), timeout_s=0.3))
    finally:
        released.set()
    assert none.silence is Silence.SLOW and "within 0.3 s" in str(none)
    assert none.tokens is not None and none.tokens.written == 100


async def test_the_deadline_holds_over_all_attempts(httpserver: HTTPServer) -> None:
    class StuckClock(FakeClock):
        async def sleep(self, seconds: float) -> None:
            await asyncio.Event().wait()

    server = ChatServer(httpserver, [refusal("busy", 503)])
    asked = Endpoint(
        base_url=server.url,
        model="m",
        api_key="",
        clock=StuckClock(),
        timeout_s=0.5,
        way=Way.PROMPT,
    )
    assert (await silence(asked)).silence is Silence.SLOW


async def test_a_connection_that_is_refused_is_tried_once_more() -> None:
    clock = FakeClock()
    url = f"http://127.0.0.1:{free_port()}/v1"
    asked = Endpoint(base_url=url, model="m", api_key=KEY, clock=clock, way=Way.PROMPT)
    none = await silence(asked)
    assert none.silence is Silence.UNREACHABLE and "could not be asked" in str(none)
    assert none.tokens == Tokens(read=0, written=0)
    assert clock.now() == 1.0


async def test_an_address_that_is_none_is_no_crash() -> None:
    assert (await silence(endpoint("http://127.0.0.1:99999/v1"))).silence is Silence.UNREACHABLE


async def test_a_connection_that_breaks_may_have_cost_what_was_asked_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=lambda: listening.accept()[0].close(), daemon=True).start()
        none = await silence(endpoint(f"http://127.0.0.1:{listening.getsockname()[1]}/v1"))
    assert none.silence is Silence.UNREACHABLE
    assert none.tokens is not None and none.tokens.written == 100


async def test_a_server_that_wants_other_parameters_gets_them_and_is_remembered(
    httpserver: HTTPServer,
) -> None:
    server = ChatServer(
        httpserver,
        [
            refusal("Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead."),
            refusal("Unsupported value: 'temperature' does not support 0 with this model."),
            refusal("response_format of type json_schema is not supported"),
            HELLO,
        ],
    )
    asked = endpoint(server.url)
    assert (await asked.answer(question())).text == "Hello!"
    await asked.answer(question())
    for sent in (server.body(3), server.body(4)):
        assert sent["max_completion_tokens"] == 100 and "max_tokens" not in sent
        assert "temperature" not in sent and sent["response_format"] == {"type": "json_object"}
    assert len(server.requests) == 5


async def test_a_prompt_that_is_too_long_is_not_asked_for_ever(httpserver: HTTPServer) -> None:
    words = "'max_tokens' or 'max_completion_tokens' is too large: 100."
    server = ChatServer(httpserver, [refusal(words)])
    assert "HTTP status 400" in str(await silence(endpoint(server.url)))
    assert len(server.requests) == 2


@pytest.mark.parametrize(
    ("replies", "way", "requests"),
    [
        ([SINGS], Way.JSON_SCHEMA, 1),
        ([HELLO, completion('{"text": "x"}')], Way.JSON_OBJECT, 2),
        ([HELLO, HELLO, HELLO], Way.PROMPT, 3),
        ([refusal("unknown"), refusal("unknown"), HELLO], Way.PROMPT, 3),
        (
            [completion("Hel", "length"), refusal("no", 500), completion("H", "length")],
            Way.PROMPT,
            3,
        ),
        ([refusal("use max_completion_tokens"), SINGS], Way.JSON_SCHEMA, 2),
    ],
    ids=["schema", "object", "ignored", "rejected", "rambling", "other parameters"],
)
async def test_how_a_server_honours_json_is_found_by_at_most_three_tiny_questions(
    httpserver: HTTPServer, replies: list[dict[str, object] | Response], way: Way, requests: int
) -> None:
    server = ChatServer(httpserver, replies)
    asked = endpoint(server.url, way=None)
    assert await asked.probe() is way
    assert await asked.probe() is way
    assert len(server.requests) == requests
    assert all(len(request.get_data()) < 1000 for request in server.requests)


@pytest.mark.parametrize(
    "reply",
    [
        refusal("no such model", 404),
        refusal("unknown", 400),
        refusal("who?", 401),
        Response("<html>", content_type="text/html"),
    ],
)
async def test_a_server_that_takes_no_question_is_probed_again_at_the_first_use(
    httpserver: HTTPServer, reply: Response
) -> None:
    failing = ChatServer(httpserver, [reply])
    asked = endpoint(failing.url, way=None)
    with pytest.raises(NoAnswer):
        await asked.probe()
    await silence(asked)
    httpserver.clear_all_handlers()
    server = ChatServer(httpserver, [SINGS, completion("text")])
    assert (await asked.answer(question())).text == "text"
    assert len(server.requests) == 2


async def test_what_a_probe_cost_is_told_with_the_next_answer_and_once(
    httpserver: HTTPServer,
) -> None:
    usage = {"prompt_tokens": 10, "completion_tokens": 5}
    server = ChatServer(
        httpserver, [completion('{"canary": "sings"}', usage=usage), completion("x", usage=usage)]
    )
    asked = endpoint(server.url, way=None)
    await asked.probe()
    told = [(await asked.answer(question())).tokens.total for _ in range(2)]
    assert told == [30, 15]


async def test_several_questions_at_once_probe_once(httpserver: HTTPServer) -> None:
    server = ChatServer(httpserver, [SINGS, HELLO])
    asked = endpoint(server.url, way=None)
    answers = await asyncio.gather(*(asked.answer(question()) for _ in range(3)))
    assert [answer.text for answer in answers] == ["Hello!"] * 3
    assert len(server.requests) == 4
