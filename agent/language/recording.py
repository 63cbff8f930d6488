"""What was asked and answered, as one line of JSON each, for tests and benchmarks to hold fixed.

A line holds the question's messages, a digest of its schema, and the answer or why there was none:
neither the key nor the address is known here. Lines are written for their owner alone.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from pathlib import Path
from typing import Any

from domain.errors import BadInput
from domain.language import Answer, NoAnswer, Question
from domain.ports import LanguageModel

log = logging.getLogger(__name__)


def asked(question: Question) -> dict[str, Any]:
    """The question as a line holds it; the study that pays for it is not part of it."""
    return {
        "purpose": question.purpose,
        "messages": [[message.speaker.value, message.text] for message in question.messages],
        "schema": "" if question.schema is None else digest(question.schema),
        "max_tokens": question.max_tokens,
    }


def digest(schema: object) -> str:
    """The same for schemas that differ in the order of their keys alone."""
    canonical = json.dumps(schema, sort_keys=True, separators=(",", ":"), default=dict)
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


class Recorder:
    """Answers what ``inner`` answers, and appends each answer to the file at ``path``; one that
    cannot be written there is answered all the same. BadInput where the file cannot be opened."""

    def __init__(self, inner: LanguageModel, path: Path) -> None:
        self._inner = inner
        self._path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._append("")
        except OSError as error:
            why = error.strerror or "it cannot be used"
            raise BadInput(
                f"The recording {path} cannot be written ({why}); set model_recording to another "
                "file, or leave it out."
            ) from None

    async def answer(self, question: Question) -> Answer:
        try:
            answer = await self._inner.answer(question)
        except NoAnswer as none:
            self._keep(asked(question) | {"silence": none.silence.value, "why": str(none)})
            raise
        tokens = [answer.tokens.read, answer.tokens.written]
        self._keep(asked(question) | {"answer": answer.text, "tokens": tokens})
        return answer

    def _keep(self, line: dict[str, Any]) -> None:
        try:
            self._append(json.dumps(line) + "\n")
        except OSError as error:
            log.warning("An answer was not recorded: %s.", error.strerror or "the disk refuses")

    def _append(self, text: str) -> None:
        handle = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
