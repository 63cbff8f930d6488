"""Text becomes the engine's own token ids, or nothing where the engine does not tell them."""

import json
from pathlib import Path

import httpx
import pytest

from canary.tokenization import NaturalText, token_ids
from domain.errors import BadInput, Temporary

TEXT = "words and words " * 20_000


async def asked(handler: httpx.MockTransport) -> tuple[int, ...] | None:
    async with httpx.AsyncClient(transport=handler) as client:
        return await token_ids(client, "http://engine/", "m", TEXT)


async def test_all_of_the_text_is_asked_for_in_its_order_without_special_tokens() -> None:
    got: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        assert request.url.path == "/tokenize"
        assert (body["model"], body["add_special_tokens"]) == ("m", False)
        got.append(body["prompt"])
        return httpx.Response(200, json={"count": 800, "tokens": [len(got)] * 800})

    assert (
        await asked(httpx.MockTransport(answer))
        == (1,) * 800 + (2,) * 800 + (3,) * 800 + (4,) * 800
    )
    assert "".join(got) == TEXT


@pytest.mark.parametrize(
    "answer",
    [
        httpx.Response(404, json={"detail": "Not Found"}),
        httpx.Response(405),
        httpx.Response(200, json={"count": 3}),
        httpx.Response(200, json={"tokens": ["a", "b"]}),
        httpx.Response(200, json=[5, 6, 7]),
        httpx.Response(200, text="no JSON"),
        httpx.Response(400, json={"error": "no tokenizer"}),
        httpx.Response(501),
    ],
)
async def test_an_engine_that_does_not_tell_is_no_error(answer: httpx.Response) -> None:
    assert await asked(httpx.MockTransport(lambda _: answer)) is None


@pytest.mark.parametrize("status", [408, 429, 500, 503])
async def test_an_engine_in_trouble_is_asked_again_later(status: int) -> None:
    with pytest.raises(Temporary, match=rf"the token ids of the corpus \(HTTP {status}\)"):
        await asked(httpx.MockTransport(lambda _: httpx.Response(status)))


async def test_an_engine_that_cannot_be_reached_is_asked_again_later() -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    with pytest.raises(Temporary, match="ConnectError"):
        await asked(httpx.MockTransport(refuse))


def test_a_text_that_is_missing_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"The corpus .* cannot be read"):
        NaturalText("m", tmp_path / "none.txt")


def test_a_text_that_is_too_short_in_any_vocabulary_is_refused_at_once(tmp_path: Path) -> None:
    short = tmp_path / "short.txt"
    short.write_text("ä" * 500, encoding="utf-8")
    said = r"has 1000 bytes, and prompts are cut from 1024 tokens at least; give a text of some"
    with pytest.raises(BadInput, match=said):
        NaturalText("m", short)
