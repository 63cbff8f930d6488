"""Reads one streamed HTTP response as its bytes arrive, without I/O and without a clock.

This runs once for every token of every stream, so it stays light: a chunk is searched, not parsed;
only usage and error objects are decoded. It must not count tokens by chunks: one chunk may carry
several tokens and another none, so counts come from ``usage`` alone.
"""

from __future__ import annotations

import json
import re

import httptools

from domain.load import RequestError

ARM_HEADER = b"x-serinus-arm"

# A field that carries generated text and is not empty. Quotes inside a JSON string are escaped, so
# what a model writes can never look like a field.
_TOKEN = re.compile(rb'"(?:text|content|reasoning|reasoning_content|arguments|name)"\s*:\s*"[^"]')
_USAGE = re.compile(rb'"usage"\s*:\s*\{')
_ERROR = re.compile(rb'"error"\s*:\s*[{"]')


class Answer:
    """What one response said. Stamps are those given to ``feed``; ``None`` until it happened.

    ``first_s`` and ``last_s`` are the first and last chunk that carried a token, ``end_s`` is when
    the response was over, however it ended.
    """

    def __init__(self) -> None:
        self.first_s: float | None = None
        self.last_s: float | None = None
        self.end_s: float | None = None
        self.arm: str | None = None
        self.prompt_tokens: int | None = None
        self.completion_tokens: int | None = None
        self.keep_alive = False
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)
        self._now_s = 0.0
        self._status = 0
        self._rest = b""
        self._said_anything = False
        self._events = 0
        self._done = False
        self._fault: RequestError | None = None

    def feed(self, data: bytes, now_s: float) -> None:
        """Take bytes that were read at ``now_s``."""
        if self._parser is None:
            return
        self._now_s = now_s
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError:
            raise
        except httptools.HttpParserError:
            self.fail(RequestError.MALFORMED, now_s)
        if self.end_s is not None:
            self._parser = None  # the parser holds this object: let both go at once

    def lose(self, now_s: float) -> None:
        """The connection was closed by the other side at ``now_s``."""
        if self._done or self._status >= 400:
            self._end(now_s)
        else:
            self.fail(RequestError.DISCONNECTED, now_s)

    def fail(self, error: RequestError, now_s: float) -> None:
        """Give up at ``now_s``; a response that is over already stays as it is."""
        if self.end_s is None:
            self._fault = self._fault or error
            self._end(now_s)

    @property
    def error(self) -> RequestError | None:
        """How the response failed, ``None`` for a complete one; asked once it is over."""
        if self._fault is not None:
            return self._fault
        if self._status >= 400:
            return _class_of(self._status)
        if self._status != 200 or (self._said_anything and not self._events):
            return RequestError.MALFORMED
        if self.first_s is None:
            return RequestError.EMPTY
        return None if self.completion_tokens else RequestError.MALFORMED

    def _end(self, now_s: float) -> None:
        if self.end_s is None:
            self.end_s = now_s

    # What httptools calls.

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == ARM_HEADER:
            self.arm = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        if self._parser is not None:
            self._status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        if self._status != 200:
            return
        self._said_anything = True
        lines = (self._rest + body).split(b"\n")
        self._rest = lines.pop()
        for line in lines:
            if line.startswith(b"data:"):
                self._event(line[5:].strip())

    def on_message_complete(self) -> None:
        if self._rest.strip():
            self._fault = self._fault or RequestError.MALFORMED
        self.keep_alive = self._parser is not None and self._parser.should_keep_alive()
        self._end(self._now_s)

    def _event(self, data: bytes) -> None:
        self._events += 1
        if _TOKEN.search(data):
            self.last_s = self._now_s
            if self.first_s is None:
                self.first_s = self._now_s
        if data == b"[DONE]":
            self._done = True
        elif not data.endswith(b"}"):
            self._fault = self._fault or RequestError.MALFORMED
        elif _USAGE.search(data) or _ERROR.search(data):
            self._rare(data)

    def _rare(self, data: bytes) -> None:
        """A chunk with the token counts, or with an error that came after the status line."""
        try:
            chunk = json.loads(data)
            if error := chunk.get("error"):
                code = error.get("code") if isinstance(error, dict) else None
                self._fault = self._fault or _class_of(code if isinstance(code, int) else 500)
            if usage := chunk.get("usage"):
                self.prompt_tokens = int(usage["prompt_tokens"])
                self.completion_tokens = int(usage["completion_tokens"])
        except (ValueError, KeyError, TypeError, AttributeError):
            self._fault = self._fault or RequestError.MALFORMED


def _class_of(status: int) -> RequestError:
    if status == 429:
        return RequestError.HTTP_429
    return RequestError.HTTP_4XX if 400 <= status < 500 else RequestError.HTTP_5XX
