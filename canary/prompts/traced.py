"""A LoadPlan that repeats a trace: exact times and lengths, and its reuse of prefixes. Seeded.

A trace tells which prompts began alike, not what they said, so equal blocks get equal tokens and
all else gets tokens of its own.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from itertools import chain

from canary.prompts.lengths import fitting
from canary.prompts.synthesis import MOST_PROMPT_TOKENS
from canary.prompts.tokens import OPENING, NaturalTokens, Tokens, tokens_from
from canary.traces.prefixes import with_sessions
from domain.errors import BadInput
from domain.load import Arrival, LoadPlan, RequestSpec, Session
from domain.trace import Trace

# A plan without a window ends so long after its last request, that this is sent before.
_LAST_SENT_S = 1.0


def replay(
    trace: Trace,
    *,
    seed: int,
    start_s: float = 0.0,
    window_s: float | None = None,
    speed: float = 1.0,
    warm_up_s: float = 0.0,
    level: str = "trace",
    concurrency: int = 1,
    corpus: Sequence[int] | None = None,
    vocabulary: int = 32_000,
    max_model_len: int | None = None,
) -> LoadPlan:
    """An open plan of the trace's requests in [``start_s``, ``start_s + window_s``).

    Each comes at its own time, ``speed`` times as fast, with its own ISL and OSL; equal block ids
    give equal tokens, so that a prefix cache finds what it would have found in the trace's window.
    ``warm_up_s`` is in the plan's seconds. Each request is a ``Session`` entry of its own under the
    name of its conversation, which the trace tells or its prefixes betray. Where ``max_model_len``
    clips prompts, the level says how many. Prompts are made of ``corpus`` or by chance, as in
    ``synthesise``.

    BadInput for a window without requests or of more prompt tokens than a plan holds, for a speed
    that is none, and for a trace without lengths (give ``synthesise`` its ``arrivals_of``).
    """
    if not 0 < speed < math.inf:
        raise BadInput(f"A trace is replayed at a speed above 0; got {speed}.")
    part = trace.window(start_s) if window_s is None else trace.window(start_s, window_s)
    if not part.requests:
        raise BadInput(
            f"The trace, {trace.length_s:g} s long, has no request from {start_s:g} s on"
            f" for {window_s or math.inf:g} s."
        )
    lengths = [(request.isl, request.osl) for request in part.requests]
    known = [(isl, osl) for isl, osl in lengths if isl is not None and osl is not None]
    if len(known) < len(lengths):
        raise BadInput(
            "The trace does not tell all lengths; synthesise a plan from a traffic shape at its"
            " arrivals instead."
        )
    turns = [fitting(isl, osl, max_model_len or math.inf) for isl, osl in known]
    if (total := sum(turn.isl for turn in turns)) > MOST_PROMPT_TOKENS:
        raise BadInput(
            f"The trace's window holds {total} prompt tokens and a plan at most"
            f" {MOST_PROMPT_TOKENS}; choose one {MOST_PROMPT_TOKENS / total:.2f} times as long."
        )
    if clipped := sum(turn != pair for turn, pair in zip(turns, known, strict=True)):
        level += f", {clipped} of {len(turns)} clipped to {max_model_len} tokens"
    texts = _BlockTexts(random.Random(seed), vocabulary, corpus, part.block_tokens)
    sessions = tuple(
        Session(
            name=f"{seed}-{request.session}",
            turns=(RequestSpec(prompt=texts.prompt(request.blocks, turn.isl), osl=turn.osl),),
            start_s=request.offset_s / speed,
        )
        for request, turn in zip(with_sessions(part).requests, turns, strict=True)
    )
    return LoadPlan(
        level=level,
        arrival=Arrival.OPEN,
        concurrency=concurrency,
        sessions=sessions,
        warm_up_s=warm_up_s,
        duration_s=part.length_s / speed + _LAST_SENT_S if window_s is None else window_s / speed,
        seed=seed,
    )


class _BlockTexts:
    """Gives each block id its tokens when it is first met.

    Of a natural text a block is one stretch, and a prompt's blocks are different stretches as long
    as there are any: text that a prompt repeats would flatter speculative decoding. Where a prompt
    leaves what others share, its first own block opens with tokens by chance.
    """

    def __init__(
        self,
        rng: random.Random,
        vocabulary: int,
        corpus: Sequence[int] | None,
        block_tokens: int,
    ) -> None:
        self._rng = rng
        self._tokens: Tokens = tokens_from(rng, vocabulary, corpus)
        self._size = block_tokens
        self._known: dict[int, tuple[int, ...]] = {}
        self._place: dict[int, int] = {}

    def prompt(self, blocks: Sequence[int], isl: int) -> tuple[int, ...]:
        """``isl`` tokens: those of ``blocks``, then tokens of its own."""
        new = [block for block in blocks if block not in self._known]
        if isinstance(self._tokens, NaturalTokens):
            self._cut(self._tokens, blocks)
        else:
            self._known.update((block, self._tokens.take(self._size)) for block in new)
        found = tuple(chain.from_iterable(map(self._known.__getitem__, blocks)))[:isl]
        if len(found) < isl:
            self._tokens.begin()
            found += self._tokens.take(isl - len(found))
        return found

    def _cut(self, natural: NaturalTokens, blocks: Sequence[int]) -> None:
        """Stretches for the blocks that have none, each the next that this prompt lacks."""
        stretches = max(1, len(natural.text) // self._size) if self._size else 1
        at = self._rng.randrange(stretches)
        used = {self._place[block] for block in blocks if block in self._place}
        opens = True
        for block in blocks:
            if block in self._known:
                opens = True
                continue
            if len(used) >= stretches:
                used.clear()
            while at in used:
                at = (at + 1) % stretches
            used.add(at)
            text = natural.stretch(at * self._size, self._size)
            if opens:
                opening = natural.opening(min(OPENING, self._size))
                text = opening + text[len(opening) :]
            self._known[block], self._place[block] = text, at
            opens = False
