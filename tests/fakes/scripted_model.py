"""A LanguageModel that tests script, reply by reply."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

from domain.language import Answer, NoAnswer, Question, Tokens


class ScriptedModel:
    """Gives the ``replies`` in turn, each a text, an object for JSON, or what to raise; hangs where
    one is ``None``. ``asked`` holds every question; one too many fails the test."""

    def __init__(self, *replies: object, tokens: int = 100) -> None:
        self._replies = list(replies)
        self._tokens = tokens
        self.asked: list[Question] = []

    @property
    def unsaid(self) -> Sequence[object]:
        return self._replies

    async def answer(self, question: Question) -> Answer:
        self.asked.append(question)
        assert self._replies, f"nobody expected to be asked: {question.messages[-1].text}"
        reply = self._replies.pop(0)
        if reply is None:
            await asyncio.Event().wait()
        if isinstance(reply, NoAnswer):
            raise reply
        text = reply if isinstance(reply, str) else json.dumps(reply)
        return Answer(text=text, tokens=Tokens(read=self._tokens, written=0))
