"""Asks an engine for the token ids of a text, as vLLM's ``POST /tokenize`` gives them.

Only an engine knows its tokenizer, and only ids make lengths exact. It must not fail a rehearsal:
where an engine has no such route, prompts are made of ids by chance.
"""

from __future__ import annotations

import logging
from http import HTTPStatus
from pathlib import Path

import httpx

from canary.prompts.corpus import corpus_text
from canary.prompts.tokens import LEAST_CORPUS

_LOG = logging.getLogger(__name__)
_ASK_S = 30.0

# What engines answer that do not know the route, or whose API does not offer it.
_UNKNOWN = {HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.NOT_IMPLEMENTED}
# One request for it all would keep an engine's tokenizer, and its body limit, busy at once.
_MOST_CHARACTERS = 100_000


async def token_ids(
    client: httpx.AsyncClient, url: str, model: str, text: str
) -> tuple[int, ...] | None:
    """The ids of ``text`` in ``model``'s vocabulary, without special tokens.

    ``None`` where the engine at ``url`` does not tell them, or too few to make prompts of; errors
    of the connection are httpx's.
    """
    found: list[int] = []
    for start in range(0, len(text), _MOST_CHARACTERS):
        body = {
            "model": model,
            "prompt": text[start : start + _MOST_CHARACTERS],
            "add_special_tokens": False,
        }
        answer = await client.post(f"{url.rstrip('/')}/tokenize", json=body)
        if answer.status_code in _UNKNOWN:
            return None
        answer.raise_for_status()
        ids = answer.json().get("tokens")
        if not isinstance(ids, list) or not all(type(token) is int for token in ids):
            return None
        found += ids
    return tuple(found) if len(found) >= LEAST_CORPUS else None


class NaturalText:
    """The ids of a text in a model's vocabulary: that of the file ``path``, else Serinus's own.

    Asked once of an engine that answers; BadInput at once where the file cannot be read.
    """

    def __init__(self, model: str, path: Path | None) -> None:
        self._model = model
        self._text = corpus_text(path)
        self._asked = False
        self._ids: tuple[int, ...] | None = None

    async def ids(self, url: str) -> tuple[int, ...] | None:
        """``None`` while no engine answers, and for good where it has no tokenizer to ask."""
        if not self._asked:
            try:
                async with httpx.AsyncClient(timeout=_ASK_S, trust_env=False) as client:
                    self._ids = await token_ids(client, url, self._model, self._text)
                self._asked = True
            except (httpx.HTTPError, ValueError) as error:
                _LOG.warning("No natural text for this rehearsal: %r.", error)
        return self._ids
