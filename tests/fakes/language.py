"""Language models for tests: one that follows a script, and a chat server that does."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

from pytest_httpserver import HTTPServer
from werkzeug import Request, Response

from domain.language import Answer, Message, NoAnswer, Question, Silence, Speaker, Tokens

Reply: TypeAlias = dict[str, Any] | Response | Callable[[], Response]


class Scripted:
    """``domain.ports.LanguageModel``: says the next of ``lines``, a text or an object for JSON, or
    falls silent as it tells; one that is ``None`` never comes. Each answer costs 100 tokens."""

    def __init__(self, lines: Iterable[object]) -> None:
        self.unsaid = list(lines)
        self.questions: list[Question] = []

    async def answer(self, question: Question) -> Answer:
        self.questions.append(question)
        if not self.unsaid:
            raise NoAnswer(Silence.UNREACHABLE, "The script is at its end.")
        line = self.unsaid.pop(0)
        if line is None:
            await asyncio.Event().wait()
        if isinstance(line, NoAnswer):
            raise line
        text = line if isinstance(line, str) else json.dumps(line)
        return Answer(text=text, tokens=Tokens(read=90, written=10))


class ChatServer:
    """Answers chat completions one after another, the last one again and again, and keeps the
    requests."""

    def __init__(self, http: HTTPServer, replies: Sequence[Reply]) -> None:
        self.url = http.url_for("/v1")
        self.requests: list[Request] = []
        left = list(replies)

        def handle(request: Request) -> Response:
            self.requests.append(request)
            given = left.pop(0) if len(left) > 1 else left[0]
            if isinstance(given, dict):
                return Response(json.dumps(given), content_type="application/json")
            return given if isinstance(given, Response) else given()

        http.expect_request("/v1/chat/completions", method="POST").respond_with_handler(handle)

    def body(self, index: int) -> dict[str, Any]:
        body: dict[str, Any] = json.loads(self.requests[index].get_data())
        return body


def completion(
    content: object,
    finish: str = "stop",
    usage: object = None,
    **message: object,
) -> dict[str, Any]:
    """The body of a chat completion."""
    whole = {"role": "assistant", "content": content, **message}
    return {
        "id": "c1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "finish_reason": finish, "message": whole}],
        "usage": usage,
    }


def refusal(text: str, status: int = 400, **headers: str) -> Response:
    """An error as an OpenAI-compatible server words it."""
    body = json.dumps({"error": {"message": text, "type": "invalid_request_error"}})
    return Response(body, status=status, content_type="application/json", headers=headers)


def question(text: str = "Which?", **changes: Any) -> Question:
    values: dict[str, Any] = {
        "purpose": "test",
        "messages": (Message(Speaker.USER, text),),
        "schema": {"type": "object", "properties": {}},
        "max_tokens": 100,
    }
    return Question(**values | changes)
