"""What language models may cost: tokens for each study and for each day, held to by code.

A question is counted before it is asked, at the most that it can cost, and set to what it did cost
once that is known. So a controller that is killed meanwhile forgets nothing, and what several
processes ask at once stays within the bound together.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from agent.language.counting import most
from agent.store import Store
from domain.errors import SerinusError
from domain.language import Answer, NoAnswer, Question, Silence, Tokens
from domain.ports import Clock, LanguageModel

log = logging.getLogger(__name__)

DAY_S = 86_400.0
_NOTHING = Tokens(read=0, written=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Of a million tokens each, in a currency of your own; 0 for both where nobody named them."""

    read: float = 0.0
    written: float = 0.0

    def told(self, tokens: Tokens) -> str:
        """The tokens in words, with their price where there is one."""
        amount = f"{tokens.total:,} tokens"
        if not self.read and not self.written:
            return amount
        cost = (tokens.read * self.read + tokens.written * self.written) / 1e6
        return f"{amount} ({cost:.4f} by your prices)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Most tokens for one study, and in 24 hours for all that is asked; 0 sets no bound."""

    study: int = 0
    day: int = 0


class Budgeted:
    """Answers what ``inner`` answers, within the bounds over what the store holds as spent.

    Not fenced by the lease: what was spent was spent, whoever asked.
    """

    def __init__(
        self, inner: LanguageModel, *, store: Store, bounds: Bounds, prices: Prices, clock: Clock
    ) -> None:
        self._inner = inner
        self._store = store
        self._bounds = bounds
        self._prices = prices
        self._clock = clock

    async def answer(self, question: Question) -> Answer:
        row = self._begun(question)
        try:
            answer = await self._inner.answer(question)
        except NoAnswer as none:
            if none.tokens is not None:
                self._settled(row, question, none.tokens)
            raise
        self._settled(row, question, answer.tokens)
        return answer

    def _begun(self, question: Question) -> int:
        """The row that counts the question; NoAnswer where it could pass a bound."""
        now = self._clock.now()
        needed = most(question)
        try:
            with self._store.work() as uow:
                spending = uow.language_spending
                spending.lock()
                study = spending.of(question.subject) if question.subject else _NOTHING
                day = spending.since(now - DAY_S)
                for spent, bound, whose in (
                    (study, self._bounds.study, "this study"),
                    (day, self._bounds.day, "the last 24 hours"),
                ):
                    if bound and spent.total + needed.total > bound:
                        raise NoAnswer(
                            Silence.OVER_BUDGET,
                            f"Of the {bound:,} tokens that {whose} may cost, "
                            f"{self._prices.told(spent)} are spent, and this question may need "
                            f"{needed.total:,}.",
                            _NOTHING,
                        )
                row = spending.begin(
                    now, subject=question.subject, purpose=question.purpose, most=needed
                )
                uow.commit()
        except NoAnswer:
            raise
        except SerinusError as error:
            raise NoAnswer(
                Silence.OVER_BUDGET, f"It cannot be told what was spent: {error}", _NOTHING
            ) from None
        return row

    def _settled(self, row: int, question: Question, tokens: Tokens) -> None:
        """Put what it cost in the place of the most; where that fails, the most stands."""
        try:
            with self._store.work() as uow:
                uow.language_spending.settle(row, tokens)
                spent = uow.language_spending.of(question.subject) if question.subject else tokens
                uow.commit()
        except SerinusError as error:
            log.warning("What a question to the language model cost was not kept: %s", error)
            return
        log.info(
            "A question to the language model (%s) cost %s; its study so far %s.",
            question.purpose,
            self._prices.told(tokens),
            self._prices.told(spent),
        )
