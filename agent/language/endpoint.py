"""A language model behind any server that speaks the OpenAI API: vLLM, llama.cpp or a hosted one.

Nothing is streamed. What a server says is passed on as an answer's text alone, and the key never,
also where an answer repeats it.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import NamedTuple

from agent.language import probe
from agent.language.completion import answer_in
from agent.language.counting import most
from agent.language.dialect import Dialect, Way, mended, parameters
from agent.language.exchange import (
    Failed,
    Late,
    Oversized,
    Status,
    Unconnected,
    completion,
)
from agent.language.probe import Heard
from domain.language import Answer, NoAnswer, Question, Silence, Tokens
from domain.ports import Clock

ATTEMPTS = 3
"""Most requests for one question to a server that is busy."""

MENDS = 4
"""Most requests for one question to a server that wants to be asked otherwise."""

PAUSE_S = 1.0
"""Between two attempts, where the server does not say."""

MOST_PAUSE_S = 10.0
"""A server that asks for a longer pause is not asked again for this question."""

SECRET_CHARACTERS = 12
"""A key this long is a secret; a shorter one is a word that a local server wants to see."""

_BUSY = (429, 503)
_REFUSALS = (400, 415, 422, 500, 501)
_NOTHING = Tokens(read=0, written=0)


class _Heard(NamedTuple):
    answer: Answer
    dialect: Dialect


class Endpoint:
    """``model`` at ``base_url``. ``timeout_s`` bounds each answer as a whole, with all attempts.

    Which way of asking for JSON the server honours is found out by ``probe``, or else before the
    first answer, within its time; ``way`` settles it. Tokens that went into that are told with the
    next answer. Safe to call concurrently.
    """

    def __init__(
        self,
        *,
        base_url: str,
        model: str,
        api_key: str,
        clock: Clock,
        timeout_s: float = 60.0,
        way: Way | None = None,
    ) -> None:
        self._base_url = base_url
        self._model = model
        self._api_key = api_key
        self._clock = clock
        self._timeout_s = timeout_s
        self._dialect = None if way is None else Dialect(way=way)
        self._owed = _NOTHING
        self._probing = asyncio.Lock()

    async def answer(self, question: Question) -> Answer:
        try:
            async with asyncio.timeout(self._timeout_s):
                dialect = await self._known()
                heard = await self._asked(dialect, question)
        except (TimeoutError, Failed) as failed:
            asked = not isinstance(failed, Unconnected | Status)
            spent = most(question) if asked else _NOTHING
            raise self._silence(failed, spent + self._taken()) from None
        except NoAnswer as none:
            none.tokens = (none.tokens or most(question)) + self._taken()
            raise
        self._dialect = heard.dialect
        return Answer(
            text=self._without_key(heard.answer.text), tokens=heard.answer.tokens + self._taken()
        )

    async def probe(self) -> Way:
        """Ask, once, which way of asking for JSON is honoured; NoAnswer where it cannot be told."""
        try:
            async with asyncio.timeout(self._timeout_s):
                return (await self._known()).way
        except (TimeoutError, Failed) as failed:
            raise self._silence(failed, _NOTHING) from None

    async def _known(self) -> Dialect:
        async with self._probing:
            if self._dialect is None:
                self._dialect = await self._probed()
            return self._dialect

    async def _probed(self) -> Dialect:
        heard: list[Heard] = []
        fault: Exception | None = None
        dialect = Dialect()
        while isinstance(step := probe.following(heard), probe.Tiny):
            asked = replace(dialect, way=step.way)
            try:
                given = await self._asked(asked, step.question, loosened=False)
            except Status as status:
                if status.status not in _REFUSALS:
                    raise
                heard.append(Heard.REJECTED)
                fault = status
            except NoAnswer as none:
                self._owed += none.tokens or _NOTHING
                malformed = none.silence is Silence.MALFORMED
                heard.append(Heard.REJECTED if malformed else probe.heard_in(step.way, None))
                fault = none
            else:
                self._owed += given.answer.tokens
                dialect = given.dialect
                heard.append(probe.heard_in(step.way, given.answer.text))
        if step is None:
            assert fault is not None, "the last question was rejected"
            raise fault
        return replace(dialect, way=step)

    async def _asked(
        self, dialect: Dialect, question: Question, *, loosened: bool = True
    ) -> _Heard:
        """The answer, and the dialect that it was given to; another way of asking for JSON is tried
        where ``loosened``. Raises Failed and NoAnswer."""
        for _ in range(MENDS):
            try:
                body = await self._patient(dialect, question)
            except Status as status:
                other = mended(dialect, status.refusal) if status.status in _REFUSALS else None
                if other is None or (other.way is not dialect.way and not loosened):
                    raise
                dialect = other
            else:
                return _Heard(answer_in(body, question), dialect)
        raise Failed("It refuses every way of asking.")

    async def _patient(self, dialect: Dialect, question: Question) -> bytes:
        """The body of a response; asked again where that is worth it."""
        asked = {"model": self._model, **parameters(dialect, question)}
        unheard = False
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return await completion(self._base_url, self._api_key, self._timeout_s, asked)
            except Status as status:
                pause_s = PAUSE_S if status.retry_after_s is None else status.retry_after_s
                if status.status not in _BUSY or attempt == ATTEMPTS or pause_s > MOST_PAUSE_S:
                    raise
            except Unconnected:
                if unheard:
                    raise
                unheard, pause_s = True, PAUSE_S
            await self._clock.sleep(pause_s)
        raise AssertionError("the last attempt returns or raises")

    def _taken(self) -> Tokens:
        owed, self._owed = self._owed, _NOTHING
        return owed

    def _without_key(self, text: str) -> str:
        if len(self._api_key) < SECRET_CHARACTERS:
            return text
        return text.replace(self._api_key, "…")

    def _silence(self, failed: Exception, spent: Tokens) -> NoAnswer:
        match failed:
            case TimeoutError() | Late():
                why = f"It gave no answer within {self._timeout_s:g} s."
                return NoAnswer(Silence.SLOW, why, spent)
            case Oversized():
                return NoAnswer(Silence.MALFORMED, str(failed), spent)
            case _:
                return NoAnswer(Silence.UNREACHABLE, str(failed), spent)
