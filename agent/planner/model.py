"""A planner that asks a language model over the OpenAI API, and another planner when that fails.

The model proposes values; code checks them. It is given no tool, one question and at most one
repair. What a server says is never logged or noted as it came, and the key never at all.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

import openai
from openai.types.chat import ChatCompletionMessageParam

from agent.planner.answer import FAULT_CHARACTERS, Checked, Unusable, check, content_of
from agent.planner.briefing import Briefing, brief, cleaned
from domain.engine import SearchSpace
from domain.ports import Planner, Proposals
from domain.study import Study, Trial

log = logging.getLogger(__name__)

REPAIR_CHARACTERS = 4000
"""Most characters of an unusable answer that are sent back with what was wrong."""


class _Unreachable(Exception):
    """The endpoint gave no answer; the text names the cause without the server's words."""


class ModelPlanner:
    """Proposes what ``model`` at ``base_url`` answers, checked, else what ``fallback`` proposes.

    ``timeout_s`` bounds each of the at most two requests as a whole, ``max_tokens`` its answer. A
    connection lives as long as the request.
    """

    def __init__(
        self,
        *,
        base_url: str,
        model: str,
        api_key: str,
        fallback: Planner,
        timeout_s: float = 30,
        max_tokens: int = 1024,
    ) -> None:
        self._base_url = base_url
        self._model = model
        self._api_key = api_key
        self._fallback = fallback
        self._timeout_s = timeout_s
        self._max_tokens = max_tokens
        self._author = f"model {cleaned(model, 80)}"

    async def propose(
        self, study: Study, space: SearchSpace, trials: Sequence[Trial], limit: int
    ) -> Proposals:
        try:
            checked = await self._ask(study, space, trials, limit)
        except (Unusable, _Unreachable) as fault:
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
        messages: list[ChatCompletionMessageParam] = [
            {"role": "system", "content": briefing.system},
            {"role": "user", "content": briefing.user},
        ]
        content = ""
        try:
            content = content_of(await self._complete(briefing, messages))
            return check(content, study, space, trials, self._author)
        except Unusable as fault:
            if content:
                messages.append({"role": "assistant", "content": content[:REPAIR_CHARACTERS]})
            repair = f"That cannot be used. {fault} Answer again with the JSON object alone."
            messages.append({"role": "user", "content": repair})
        content = content_of(await self._complete(briefing, messages))
        return check(content, study, space, trials, self._author)

    async def _complete(
        self, briefing: Briefing, messages: Sequence[ChatCompletionMessageParam]
    ) -> str:
        """The body of the response."""
        try:
            async with (
                asyncio.timeout(self._timeout_s),
                openai.AsyncOpenAI(
                    base_url=self._base_url,
                    api_key=self._api_key,
                    timeout=self._timeout_s,
                    max_retries=0,
                ) as client,
            ):
                response = await client.chat.completions.with_raw_response.create(
                    model=self._model,
                    messages=messages,
                    max_tokens=self._max_tokens,
                    temperature=0,
                    response_format={
                        "type": "json_schema",
                        "json_schema": {
                            "name": "proposals",
                            "strict": True,
                            "schema": briefing.schema,
                        },
                    },
                )
                return response.text
        except (TimeoutError, openai.APITimeoutError):
            raise _Unreachable(f"It gave no answer within {self._timeout_s:g} s.") from None
        except openai.APIStatusError as error:
            raise _Unreachable(f"It answered with HTTP status {error.status_code}.") from None
        except Exception as error:  # the client lets errors of its transport through as they are
            raise _Unreachable(f"It could not be asked ({type(error).__name__}).") from None
