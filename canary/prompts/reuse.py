"""How the prompts of a plan share their beginnings, fitted to a live hit rate. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from canary.prompts.lengths import Turn
from canary.prompts.tokens import Tokens
from domain.load import BLOCK_TOKENS

# Sessions that are enough to fit the reuse of prefixes on.
_FIT_SESSIONS = 512


class Reuse(NamedTuple):
    """How prompts share prefixes: the system prompt's tokens, the share of history a turn keeps."""

    system: int
    keep: float

    def shared(self, isl: int, before: int) -> int:
        """Tokens a prompt of ``isl`` has in common with its session's last one of ``before``.

        One token at least is always new: an engine must compute something to answer.
        """
        return min(isl - 1, max(self.system, int(self.keep * before)))


def fit(
    sessions: Sequence[Sequence[Turn]], hit_rate: float, block_tokens: int = BLOCK_TOKENS
) -> Reuse:
    """The reuse that gives ``hit_rate``, by bisection along one line from none to all.

    Up to 1 the history kept grows, and with it a system prompt of the length of a short prompt;
    from 1 to 2 all history is kept and the system prompt grows to the longest prompt's length. What
    large blocks then find too much is taken from the history again.
    """
    sessions = sessions[:_FIT_SESSIONS]
    prompts = sorted(turn.isl for turns in sessions for turn in turns)
    if hit_rate <= 0 or not prompts:
        return Reuse(0, 0.0)
    short, long = prompts[len(prompts) // 10], prompts[-1]

    def at(x: float) -> Reuse:
        kept, grown = min(x, 1.0), max(x - 1.0, 0.0)
        return Reuse(round(short * kept + (long - short) * grown), kept)

    def enough(reuse: Reuse) -> bool:
        return _hit_rate(sessions, reuse, block_tokens) >= hit_rate

    found = at(_least(lambda x: enough(at(x)), 2.0))
    # A system prompt that fills one more large block is found at once in all prompts.
    return found._replace(keep=_least(lambda keep: enough(found._replace(keep=keep)), found.keep))


def _least(enough: Callable[[float], bool], most: float) -> float:
    """The least number up to ``most`` that is enough; ``most`` where none is."""
    low, high = 0.0, most
    for _ in range(24):
        middle = (low + high) / 2
        if enough(middle):
            high = middle
        else:
            low = middle
    return high


def grow(
    turns: Sequence[Turn], reuse: Reuse, system: tuple[int, ...], tokens: Tokens
) -> Iterator[tuple[int, ...]]:
    """The prompts of one session, each beginning with what it shares."""
    tokens.begin()
    prompt: tuple[int, ...] = ()
    for turn in turns:
        shared = reuse.shared(turn.isl, len(prompt))
        source = prompt if len(prompt) >= shared else system
        prompt = source[:shared] + tokens.take(turn.isl - shared)
        yield prompt


def _hit_rate(sessions: Sequence[Sequence[Turn]], reuse: Reuse, block_tokens: int) -> float:
    """The share of prompt tokens in whole blocks that an earlier prompt began with."""
    hits = total = before = 0
    for turns in sessions:
        before = 0
        for turn in turns:
            hits += reuse.shared(turn.isl, before) // block_tokens * block_tokens
            total += turn.isl
            before = turn.isl
    return hits / total
