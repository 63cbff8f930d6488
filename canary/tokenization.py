"""Asks an engine for the token ids of a text, as vLLM's ``POST /tokenize`` gives them.

Only an engine knows its tokenizer, and only ids make lengths exact. Where an engine has no such
route, prompts are made of ids by chance, in all trials of a study; one that fails to answer is not
taken for such, or that one trial would have another load than the others.
"""

from __future__ import annotations

import logging
from http import HTTPStatus
from pathlib import Path

import httpx

from canary.prompts.corpus import corpus_text
from canary.prompts.tokens import LEAST_CORPUS
from domain.errors import BadInput, Temporary

_LOG = logging.getLogger(__name__)
_ASK_S = 30.0

# What engines answer that do not know the route, or whose API does not offer it.
_UNKNOWN = {HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.NOT_IMPLEMENTED}
_LATER = {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS}
# One request for it all would keep an engine's tokenizer, and its body limit, busy at once.
_MOST_CHARACTERS = 100_000


async def token_ids(
    client: httpx.AsyncClient, url: str, model: str, text: str
) -> tuple[int, ...] | None:
    """The ids of ``text`` in ``model``'s vocabulary, without special tokens.

    ``None`` where the engine at ``url`` does not tell them; Temporary where it may do so later.
    """
    found: list[int] = []
    for start in range(0, len(text), _MOST_CHARACTERS):
        body = {
            "model": model,
            "prompt": text[start : start + _MOST_CHARACTERS],
            "add_special_tokens": False,
        }
        try:
            answer = await client.post(f"{url.rstrip('/')}/tokenize", json=body)
        except httpx.HTTPError as error:
            raise _unanswered(repr(error)) from error
        failed = answer.is_server_error and answer.status_code not in _UNKNOWN
        if failed or answer.status_code in _LATER:
            raise _unanswered(f"HTTP {answer.status_code}")
        ids = _told(answer)
        if ids is None:
            return None
        found += ids
    return tuple(found)


def _unanswered(why: str) -> Temporary:
    return Temporary(f"The engine did not tell the token ids of the corpus ({why}).")


def _told(answer: httpx.Response) -> list[int] | None:
    """The ids in an answer; ``None`` where there are none."""
    try:
        body = answer.json() if answer.is_success else None
    except ValueError:
        body = None
    ids = body.get("tokens") if isinstance(body, dict) else None
    if isinstance(ids, list) and all(type(token) is int for token in ids):
        return ids
    return None


class NaturalText:
    """The ids of a text in a model's vocabulary: that of the file ``path``, else Serinus's own.

    Asked once of an engine that answers; BadInput at once where the file cannot be read or is too
    short, and from the first engine on where it makes too few tokens in the model's vocabulary.
    """

    def __init__(self, model: str, path: Path | None) -> None:
        self._model = model
        self._path = path
        self._text = corpus_text(path)
        self._asked = False
        self._ids: tuple[int, ...] | None = None

    async def ids(self, url: str) -> tuple[int, ...] | None:
        """``None`` for good where the engine has no tokenizer to ask; Temporary while it does not
        answer."""
        if not self._asked:
            async with httpx.AsyncClient(timeout=_ASK_S, trust_env=False) as client:
                self._ids = await token_ids(client, url, self._model, self._text)
            self._asked = True
            if self._ids is None:
                _LOG.warning(
                    "The engine tells no token ids, so prompts are made of ids by chance: "
                    "speculative decoding looks worse than it is."
                )
        if self._ids is not None and len(self._ids) < LEAST_CORPUS:
            raise BadInput(
                f"The corpus {self._path or 'of Serinus itself'} makes {len(self._ids)} tokens of"
                f" {self._model}, and prompts are cut from {LEAST_CORPUS} at least; give a longer"
                " text."
            )
        return self._ids
