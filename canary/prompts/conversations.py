"""Live traffic of coding agents: many turns, growing prompts, one system prompt. Pure, seeded."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from canary.prompts.tokens import tokens_from
from domain.load import Arrival, LoadPlan, RequestSpec, Session


def agents(
    *,
    seed: int,
    sessions: int,
    turns: int,
    concurrency: int,
    system_tokens: int,
    message_tokens: float = 200.0,
    osl: float = 64.0,
    think_s: float = 2.0,
    duration_s: float = math.inf,
    level: str = "coding agents",
    vocabulary: int = 32_000,
    corpus: Sequence[int] | None = None,
) -> LoadPlan:
    """Live traffic of ``concurrency`` coding agents, ``sessions`` conversations in all.

    Each turn's prompt is the last one, an answer and a new message; all conversations open with
    one system prompt. Lengths of messages and answers and think times are exponential about the
    given means (tokens, seconds), at most four times them. Prompts are runs of ``corpus`` (token
    ids) where there is one. Nothing is warm-up.
    """
    rng = random.Random(seed)
    tokens = tokens_from(rng, vocabulary, corpus)
    system = tokens.take(system_tokens)
    tokens.reserve()

    def about(mean: float) -> float:
        return min(rng.expovariate(1 / mean), 4 * mean) if mean > 0 else 0.0

    def conversation(number: int) -> Session:
        tokens.begin()
        prompt, specs = system, []
        answer = 0
        for _ in range(turns):
            prompt += tokens.take(answer + max(1, round(about(message_tokens))))
            answer = max(1, round(about(osl)))
            specs.append(RequestSpec(prompt=prompt, osl=answer, think_s=about(think_s)))
        return Session(name=f"{seed}-{number}", turns=tuple(specs))

    return LoadPlan(
        level=level,
        arrival=Arrival.CLOSED,
        concurrency=concurrency,
        sessions=tuple(conversation(number) for number in range(sessions)),
        warm_up_s=0.0,
        duration_s=duration_s,
        seed=seed,
    )
