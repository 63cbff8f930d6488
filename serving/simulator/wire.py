"""The OpenAI API as vLLM speaks it: what a request asks, and the JSON of its answer. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import Enum
from typing import Any, NamedTuple

from domain.errors import BadInput
from serving.simulator import answers
from serving.simulator.scheduler import Finish

DONE = b"data: [DONE]\n\n"
_DEFAULT_TOKENS = {"completion": 16, "chat": 256}


class Endpoint(Enum):
    COMPLETION = "completion"
    CHAT = "chat"


class Asked(NamedTuple):
    """One request; ``text`` is empty for a prompt of token ids."""

    endpoint: Endpoint
    model: str
    prompt: tuple[int, ...]
    text: str
    max_tokens: int
    ignore_eos: bool
    stream: bool
    include_usage: bool


class Usage(NamedTuple):
    """Tokens of one answered request."""

    isl: int
    osl: int

    def json(self) -> dict[str, int]:
        return {
            "prompt_tokens": self.isl,
            "total_tokens": self.isl + self.osl,
            "completion_tokens": self.osl,
        }


def asked(endpoint: Endpoint, body: bytes) -> Asked:
    """Read a request's body; BadInput in one sentence for one that cannot be served."""
    try:
        fields = json.loads(body)
    except ValueError:
        fields = None
    if not isinstance(fields, dict):
        raise BadInput("The request's body must be a JSON object.")
    text, prompt = _prompt(endpoint, fields)
    if not prompt:
        raise BadInput("The prompt must hold at least one token.")
    limit = fields.get("max_completion_tokens") or fields.get("max_tokens")
    if limit is None:
        limit = _DEFAULT_TOKENS[endpoint.value]
    if type(limit) is not int or limit < 1:
        raise BadInput(f"max_tokens must be a whole number above 0; got {limit!r}.")
    options = fields.get("stream_options")
    return Asked(
        endpoint=endpoint,
        model=str(fields.get("model") or ""),
        prompt=prompt,
        text=text,
        max_tokens=limit,
        ignore_eos=fields.get("ignore_eos") is True,
        stream=fields.get("stream") is True,
        include_usage=isinstance(options, Mapping) and options.get("include_usage") is True,
    )


class _Prompt(NamedTuple):
    text: str
    tokens: tuple[int, ...]


def _prompt(endpoint: Endpoint, fields: Mapping[str, Any]) -> _Prompt:
    if endpoint is Endpoint.CHAT:
        messages = fields.get("messages")
        if not isinstance(messages, list) or not all(isinstance(m, Mapping) for m in messages):
            raise BadInput("messages must be a list of objects.")
        text = "\n".join(f"{m.get('role')}: {_content(m.get('content'))}" for m in messages)
        return _Prompt(text, answers.tokens(text))
    prompt = fields.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, str):
        return _Prompt(prompt, answers.tokens(prompt))
    if isinstance(prompt, list) and all(type(token) is int for token in prompt):
        return _Prompt("", tuple(prompt))
    raise BadInput("prompt must be one text or one list of token ids.")


def _content(content: Any) -> str:
    """A message's text; of a list of parts, the text parts."""
    if isinstance(content, list):
        return " ".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))
    return str(content or "")


def error(status: int, kind: str, message: str) -> dict[str, Any]:
    """vLLM's error body."""
    return {"error": {"message": message, "type": kind, "param": None, "code": status}}


class Frames:
    """The server-sent events of one answer. Text must not need escaping in JSON."""

    def __init__(self, request_id: str, created_s: int, model: str, endpoint: Endpoint) -> None:
        self._chat = endpoint is Endpoint.CHAT
        kind = "chat.completion.chunk" if self._chat else "text_completion"
        head = {"id": request_id, "object": kind, "created": created_s, "model": model}
        self._head = f"data: {json.dumps(head)[:-1]}, "

    def opening(self) -> bytes:
        """What a chat stream begins with; empty for a completion."""
        delta = '"delta": {"role": "assistant", "content": ""}'
        return self._frame(delta, None) if self._chat else b""

    def tokens(self, text: str, finish: Finish | None) -> bytes:
        piece = f'"delta": {{"content": "{text}"}}' if self._chat else f'"text": "{text}"'
        return self._frame(piece, finish)

    def _frame(self, piece: str, finish: Finish | None) -> bytes:
        reason = f'"{finish.value}"' if finish else "null"
        choice = f'{{"index": 0, {piece}, "logprobs": null, "finish_reason": {reason}}}'
        return f'{self._head}"choices": [{choice}]}}\n\n'.encode()

    def usage(self, usage: Usage) -> bytes:
        return f'{self._head}"choices": [], "usage": {json.dumps(usage.json())}}}\n\n'.encode()


def whole(
    request_id: str, created_s: int, asked: Asked, text: str, finish: Finish, usage: Usage
) -> dict[str, Any]:
    """The body of an answer that is not streamed."""
    chat = asked.endpoint is Endpoint.CHAT
    piece = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
    return {
        "id": request_id,
        "object": "chat.completion" if chat else "text_completion",
        "created": created_s,
        "model": asked.model,
        "choices": [{"index": 0, **piece, "logprobs": None, "finish_reason": finish.value}],
        "usage": usage.json(),
    }
