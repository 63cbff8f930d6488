"""Writes the bytes of a request: plain HTTP/1.1 to a server of the OpenAI completions API.

It must not decide when anything is sent. The answer's length is forced (``min_tokens`` and
``ignore_eos``), since a load test that lets the model stop early measures another load.
"""

from __future__ import annotations

import json
from typing import NamedTuple
from urllib.parse import urlsplit

from canary.loadgen.options import Options
from domain.errors import BadInput
from domain.load import LoadPlan, RequestSpec

_JSON = json.JSONEncoder(separators=(",", ":"))


class Endpoint(NamedTuple):
    """Where an engine listens."""

    host: str
    port: int
    prefix: str

    @classmethod
    def parse(cls, url: str) -> Endpoint:
        """Read ``http://host:port``; anything else raises BadInput."""
        try:
            parts = urlsplit(url)
            port = parts.port or 80
        except ValueError as error:
            raise BadInput(f"The engine's URL {url!r} cannot be read: {error}.") from error
        if parts.scheme != "http" or not parts.hostname:
            raise BadInput(f"The engine's URL must be like http://127.0.0.1:8000; got {url!r}.")
        return cls(parts.hostname, port, parts.path.rstrip("/"))


def check(plan: LoadPlan, options: Options) -> None:
    """Raise BadInput where the endpoint of ``options`` cannot be sent the plan's prompts."""
    if options.chat and any(turn.text is None for s in plan.sessions for turn in s.turns):
        raise BadInput(
            f"{options.path} takes text and no token ids: give each request of the plan a text, or"
            " send the plan to /v1/completions."
        )


class RequestWriter:
    """Renders the requests of one run; what they have in common is written once."""

    def __init__(self, endpoint: Endpoint, *, model: str, options: Options) -> None:
        lines = [
            f"POST {endpoint.prefix}{options.path} HTTP/1.1",
            f"host: {endpoint.host}:{endpoint.port}",
            "content-type: application/json",
            "accept: text/event-stream",
            *(f"{name}: {value}" for name, value in options.headers.items()),
            f"{options.session_header}: ",
        ]
        self._head = "\r\n".join(lines).encode("latin-1")
        self._model = model
        self._chat = options.chat

    def render(self, spec: RequestSpec, session: str) -> bytes:
        body = _JSON.encode(
            {
                "model": self._model,
                **self._asking(spec),
                "max_tokens": spec.osl,
                "min_tokens": spec.osl,
                "ignore_eos": True,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
        ).encode()
        tail = f"{session}\r\ncontent-length: {len(body)}\r\n\r\n".encode("latin-1")
        return self._head + tail + body

    def _asking(self, spec: RequestSpec) -> dict[str, object]:
        if self._chat:
            return {"messages": [{"role": "user", "content": spec.text}]}
        return {"prompt": spec.prompt if spec.text is None else spec.text}
