"""One request to a server and the body of its response, through the `openai` client.

No body is read beyond ``MOST_BYTES``, also one that is an error's, compressed or endless, and no
redirect is followed: what is asked goes to the address that was named and nowhere else. Nothing
that a server says gets into an error of this module's, nor into a log.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any, cast

import httpx2
import openai

MOST_BYTES = 4_000_000
"""Far more than the longest answer that is asked for, thoughts included."""

REFUSAL_CHARACTERS = 4000
"""Most of a refusal that is looked through for the names of parameters."""


class Failed(Exception):
    """There is no response; the text says why, in words of our own."""


class Late(Failed):
    """No byte of it came within the time."""


class Unconnected(Failed):
    """Nothing listens there, so nothing was asked."""


class Oversized(Failed):
    """There is one, longer than is read."""


class Status(Failed):
    """A status other than success. ``refusal`` is the server's own text, to be shown to nobody;
    ``retry_after_s`` is how long it asks to wait, ``None`` where it does not say."""

    def __init__(self, status: int, refusal: str, retry_after_s: float | None) -> None:
        super().__init__(f"It answered with HTTP status {status}.")
        self.status = status
        self.refusal = refusal
        self.retry_after_s = retry_after_s


async def completion(
    base_url: str, api_key: str, timeout_s: float, parameters: Mapping[str, Any]
) -> bytes:
    """The body of a chat completion; Failed where there is none.

    ``timeout_s`` bounds each wait for bytes; whoever asks bounds the whole. A connection lives as
    long as the request.
    """
    try:
        async with _client(base_url, api_key, timeout_s) as client:
            create = cast(Any, client.chat.completions.with_raw_response.create)
            unsigned = {} if api_key else {"Authorization": openai.Omit()}
            response = await create(**parameters, extra_headers=unsigned)
            return cast(bytes, response.content)
    except openai.APITimeoutError:
        raise Late("It gave no answer in time.") from None
    except openai.APIStatusError as error:
        raise Status(
            error.status_code,
            error.response.text[:REFUSAL_CHARACTERS],
            _seconds(error.response.headers.get("retry-after")),
        ) from None
    except Failed:
        raise
    except Exception as error:  # the client lets errors of its transport through as they are
        what = f"It could not be asked ({type(error).__name__})."
        unheard = isinstance(error.__cause__, httpx2.ConnectError)
        raise (Unconnected if unheard else Failed)(what) from None


def _client(base_url: str, api_key: str, timeout_s: float) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(
        base_url=base_url,
        api_key=api_key or "none",  # the client refuses to work without one
        timeout=timeout_s,
        max_retries=0,
        http_client=openai.DefaultAsyncHttpx2Client(
            timeout=timeout_s,
            follow_redirects=False,
            headers={"Accept-Encoding": "identity"},
            event_hooks={"response": [_bound]},
        ),
    )


class _Bounded(httpx2.AsyncByteStream):
    """A body that ends with Oversized where it is longer than is read."""

    def __init__(self, stream: httpx2.AsyncByteStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        read = 0
        async for chunk in self._stream:
            read += len(chunk)
            if read > MOST_BYTES:
                raise Oversized("Its answer is longer than is read.")
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()


async def _bound(response: httpx2.Response) -> None:
    if response.headers.get("content-encoding", "identity").lower() != "identity":
        # A few bytes could unpack to any number.
        raise Oversized("Its answer is compressed, which was not asked for.")
    response.stream = _Bounded(cast(httpx2.AsyncByteStream, response.stream))


def _seconds(retry_after: str | None) -> float | None:
    """The header in seconds; a date, which needs both clocks to agree, says nothing."""
    try:
        waited = float(retry_after or "")
    except ValueError:
        return None
    return waited if 0 <= waited < float("inf") else None
