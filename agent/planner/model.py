"""A planner that asks a language model, and another planner when that fails.

The model proposes values; code checks them. It is given no tool, one question and at most one
repair. What a server says is never logged or noted as it came.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from agent.planner.answer import FAULT_CHARACTERS, Checked, Unusable, check
from agent.planner.briefing import brief
from domain.engine import SearchSpace
from domain.language import Message, NoAnswer, Question, Silence, Speaker
from domain.outside import cleaned
from domain.ports import LanguageModel, Planner, Proposals
from domain.study import Study, Trial

log = logging.getLogger(__name__)

REPAIR_CHARACTERS = 4000
"""Most characters of an unusable answer that are sent back with what was wrong."""

PURPOSE = "propose"

_MENDABLE = {Silence.REFUSED, Silence.CUT_OFF, Silence.EMPTY, Silence.MALFORMED}


class ModelPlanner:
    """Proposes what ``language`` answers, checked, else what ``fallback`` proposes.

    ``name`` is the model's, for the author of its proposals; ``max_tokens`` bounds each of the at
    most two answers.
    """

    def __init__(
        self, *, language: LanguageModel, name: str, fallback: Planner, max_tokens: int = 1024
    ) -> None:
        self._language = language
        self._fallback = fallback
        self._max_tokens = max_tokens
        self._author = f"model {cleaned(name, 80)}"

    async def propose(
        self, study: Study, space: SearchSpace, trials: Sequence[Trial], limit: int
    ) -> Proposals:
        try:
            checked = await self._ask(study, space, trials, limit)
        except (Unusable, NoAnswer) as fault:
            note = f"The language model was not followed: {fault}"
            log.warning("%s", note)
            instead = await self._fallback.propose(study, space, trials, limit)
            return instead._replace(note=" ".join(filter(None, (note, instead.note))))
        note = ""
        if checked.dropped:
            dropped = cleaned(" ".join(checked.dropped), FAULT_CHARACTERS)
            note = f"Of the language model's answer was dropped: {dropped}"
        return Proposals(self._author, checked.proposals[: max(limit, 0)], note)

    async def _ask(
        self, study: Study, space: SearchSpace, trials: Sequence[Trial], limit: int
    ) -> Checked:
        """One question, and one more with what was wrong where the answer cannot be used."""
        briefing = brief(study, space, trials, limit)
        messages = [
            Message(Speaker.SYSTEM, briefing.system),
            Message(Speaker.USER, briefing.user),
        ]

        async def said() -> str:
            question = Question(
                purpose=PURPOSE,
                messages=tuple(messages),
                schema=briefing.schema,
                max_tokens=self._max_tokens,
                subject=study.id,
            )
            return (await self._language.answer(question)).text

        content = ""
        try:
            content = await said()
            return check(content, study, space, trials, self._author)
        except NoAnswer as none:
            if none.silence not in _MENDABLE:
                raise
            fault = str(none)
        except Unusable as unusable:
            messages.append(Message(Speaker.ASSISTANT, content[:REPAIR_CHARACTERS]))
            fault = str(unusable)
        repair = f"That cannot be used. {fault} Answer again with the JSON object alone."
        messages.append(Message(Speaker.USER, repair))
        return check(await said(), study, space, trials, self._author)
