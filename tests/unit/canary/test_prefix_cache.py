"""A prefix cache counts as empty only where the engine says so."""

import httpx
import pytest

from canary.prefix_cache import reset_prefix_cache

URL = "http://127.0.0.1:8201"


@pytest.mark.parametrize(
    ("response", "reset"),
    [
        (httpx.Response(200, json={"success": True}), True),
        (httpx.Response(200), True),  # older versions of vLLM say no more
        (httpx.Response(200, json={"success": False}), False),  # a request still holds blocks
        (httpx.Response(404), False),  # not in development mode
        (httpx.Response(200, text="<html>"), False),
        (httpx.ConnectError("refused"), False),
    ],
    ids=["done", "done silently", "held", "not offered", "no answer of an engine", "gone"],
)
async def test_only_an_engine_that_says_so_has_an_empty_cache(
    response: httpx.Response | Exception, reset: bool
) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        assert (request.method, request.url.path) == ("POST", "/reset_prefix_cache")
        if isinstance(response, Exception):
            raise response
        return response

    assert await reset_prefix_cache(URL, httpx.MockTransport(answer)) is reset
