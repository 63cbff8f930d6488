"""What a prefix cache could at best find in a plan: the yardstick for what engines report.

Pure. It must not know how a plan was made.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from domain.load import BLOCK_TOKENS, LoadPlan


def ideal_hit_rate(plan: LoadPlan, block_tokens: int | None = None) -> float:
    """The share (0–1) of ``plan``'s prompt tokens that an unbounded prefix cache would find.

    Counted as vLLM counts: whole blocks of ``block_tokens``, by default the plan's own, at the
    start of a prompt that an earlier prompt, in the plan's order, began with as well; never the
    whole prompt, since one token at least is computed to answer. 0 for a plan without prompts.
    """
    return shared_of(
        (turn.prompt for session in plan.sessions for turn in session.turns),
        block_tokens or plan.block_tokens,
    )


def shared_of(prompts: Iterable[Sequence[int]], block_tokens: int = BLOCK_TOKENS) -> float:
    """``ideal_hit_rate`` of prompts in the order in which an engine met them."""
    known: set[int] = set()
    hits = total = 0
    for prompt in prompts:
        chain, found, finding = 0, 0, True
        for end in range(block_tokens, len(prompt) + 1, block_tokens):
            chain = hash((chain, tuple(prompt[end - block_tokens : end])))
            if finding and chain in known:
                found = end
            else:
                finding = False
                known.add(chain)
        hits += min(found, (len(prompt) - 1) // block_tokens * block_tokens)
        total += len(prompt)
    return hits / total if total else 0.0
