"""The ids of a natural text, asked of an engine that answers at some time, or never."""

from pathlib import Path

from pytest_httpserver import HTTPServer
from werkzeug import Request, Response

from canary.prompts.tokens import LEAST_CORPUS
from canary.tokenization import NaturalText

IDS = tuple(range(LEAST_CORPUS))


def text(tmp_path: Path) -> NaturalText:
    (tmp_path / "corpus.txt").write_text("some words", encoding="utf-8")
    return NaturalText("m", tmp_path / "corpus.txt")


async def test_it_is_asked_again_until_an_engine_answers_and_then_no_more(
    tmp_path: Path, httpserver: HTTPServer
) -> None:
    asked: list[object] = []

    def answer(request: Request) -> Response:
        asked.append(request.json)
        if len(asked) == 1:
            return Response(status=503)
        return Response(f'{{"tokens": {list(IDS)}}}', content_type="application/json")

    httpserver.expect_request("/tokenize", method="POST").respond_with_handler(answer)
    url, natural = httpserver.url_for("").rstrip("/"), text(tmp_path)
    assert await natural.ids(url) is None
    assert [await natural.ids(url) for _ in range(2)] == [IDS, IDS]
    assert asked == [{"model": "m", "prompt": "some words", "add_special_tokens": False}] * 2


async def test_an_engine_without_a_tokenizer_is_asked_once(
    tmp_path: Path, httpserver: HTTPServer
) -> None:
    httpserver.expect_ordered_request("/tokenize").respond_with_data("no such route", status=404)
    url, natural = httpserver.url_for("").rstrip("/"), text(tmp_path)
    assert [await natural.ids(url) for _ in range(2)] == [None, None]
    assert len(httpserver.log) == 1
