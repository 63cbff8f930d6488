"""The ids of a natural text, asked of an engine that answers at some time, or never."""

from pathlib import Path

import pytest
from pytest_httpserver import HTTPServer
from werkzeug import Request, Response

from canary.prompts.tokens import LEAST_CORPUS
from canary.tokenization import NaturalText
from domain.errors import BadInput, Temporary

IDS = tuple(range(LEAST_CORPUS))
WORDS = "some words" * 200


def text(tmp_path: Path) -> NaturalText:
    (tmp_path / "corpus.txt").write_text(WORDS, encoding="utf-8")
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
    with pytest.raises(Temporary, match="HTTP 503"):
        await natural.ids(url)
    assert [await natural.ids(url) for _ in range(2)] == [IDS, IDS]
    assert asked == [{"model": "m", "prompt": WORDS, "add_special_tokens": False}] * 2


async def test_an_engine_without_a_tokenizer_is_asked_once(
    tmp_path: Path, httpserver: HTTPServer, caplog: pytest.LogCaptureFixture
) -> None:
    httpserver.expect_ordered_request("/tokenize").respond_with_data("no such route", status=404)
    url, natural = httpserver.url_for("").rstrip("/"), text(tmp_path)
    assert [await natural.ids(url) for _ in range(2)] == [None, None]
    assert len(httpserver.log) == 1
    assert caplog.text.count("prompts are made of ids by chance") == 1


async def test_a_text_of_too_few_tokens_is_refused_with_the_number_that_is_needed(
    tmp_path: Path, httpserver: HTTPServer
) -> None:
    httpserver.expect_request("/tokenize").respond_with_json({"tokens": [7] * 900})
    url, natural = httpserver.url_for("").rstrip("/"), text(tmp_path)
    for _ in range(2):
        with pytest.raises(BadInput, match="makes 900 tokens of m, and prompts are cut from 1024"):
            await natural.ids(url)
    assert len(httpserver.log) == 1
