"""Turns what traffic looks like into the concrete requests of a load test: pure, and seeded.

Two promises make a rehearsal honest. Lengths follow the live distributions, so the engine does the
same work; and every token of a plan comes from its seed, so a fresh seed can never be flattered by
a prefix cache that an earlier plan has warmed. It must not send anything and must not read a clock.

The prompts are token ids, not natural text: speculative decoding accepts drafts at another rate on
them than on live traffic, which is why measurements carry the acceptance rate.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from canary.prompts.caching import BLOCK_TOKENS, ideal_hit_rate
from domain.errors import BadInput
from domain.load import Arrival, LoadPlan, RequestSpec, Session
from domain.traffic import Distribution, TrafficShape

__all__ = ["agents", "ideal_hit_rate", "synthesise"]

# Special tokens of common vocabularies have low ids; text that is cut off by one is not a load.
FIRST_TOKEN = 256
# A plan is a tuple and cannot grow, so it holds what no engine of today could use up: a stream that
# answers in 20 ms and a token each millisecond, one engine that gives 50,000 tokens a second, and
# at most 8 million prompt tokens (64 MB). A plan that runs out all the same ends its run early.
LEAST_TTFT_S = 0.02
LEAST_TPOT_S = 0.001
MOST_OUTPUT_TOK_S = 50_000
MOST_PROMPT_TOKENS = 8_000_000
# Every run of so many draws covers the distribution evenly, so that short runs resemble it too.
_STRATA = 32
# Sessions that are enough to fit the reuse of prefixes on.
_FIT_SESSIONS = 512


class Turn(NamedTuple):
    """Lengths of one request, in tokens."""

    isl: int
    osl: int


class Reuse(NamedTuple):
    """How prompts share prefixes: the system prompt's tokens, the share of history a turn keeps."""

    system: int
    keep: float

    def shared(self, isl: int, before: int) -> int:
        """Tokens a prompt of ``isl`` has in common with its session's last one of ``before``.

        One token at least is always new: an engine must compute something to answer.
        """
        return min(isl - 1, max(self.system, int(self.keep * before)))


class _Tokens:
    """An endless source of token ids from one seed; equal ids are one object, 8 bytes a token."""

    def __init__(self, rng: random.Random, vocabulary: int) -> None:
        if vocabulary <= 2 * FIRST_TOKEN:
            raise BadInput(f"A vocabulary of {vocabulary} tokens is too small to make prompts of.")
        self._rng = rng
        span = vocabulary - FIRST_TOKEN
        ids = tuple(range(FIRST_TOKEN, vocabulary))
        self._table = tuple(ids[draw % span] for draw in range(1 << 16))

    def take(self, n: int) -> tuple[int, ...]:
        draws = memoryview(self._rng.randbytes(2 * n)).cast("H")
        return tuple(map(self._table.__getitem__, draws))


def synthesise(
    shape: TrafficShape,
    *,
    level: str,
    concurrency: int,
    warm_up_s: float,
    duration_s: float,
    seed: int,
    vocabulary: int = 32_000,
    turns: int = 4,
    think_s: float = 0.0,
    max_model_len: int | None = None,
) -> LoadPlan:
    """A closed plan of sessions of ``turns`` requests that look like ``shape``.

    ISL and OSL fall into the shape's buckets as often as live ones, with the live mean. Prompts of
    a session grow, and share a system prompt with all others, so that an engine whose cache holds
    everything would find ``shape.prefix_hit_rate`` of the prompt tokens (none where that is
    unknown). The first sessions begin at different turns, as live ones would be found.
    ``max_model_len`` clips prompts so that ISL + OSL fits. A shape without requests, or sizes that
    make no plan, raise BadInput.
    """
    if concurrency < 1 or turns < 1 or not 0 <= warm_up_s < duration_s < math.inf:
        raise BadInput(
            "A load plan needs a stream, a turn and a finite duration longer than its warm-up;"
            f" got {concurrency} streams, {turns} turns, {warm_up_s} s of {duration_s} s."
        )
    rng = random.Random(seed)
    tokens = _Tokens(rng, vocabulary)
    requests = _demand(shape, concurrency=concurrency, duration_s=duration_s, think_s=think_s)
    lengths = _lengths(
        shape, rng, concurrency + math.ceil(requests / turns), turns, max_model_len or math.inf
    )
    reuse = _fit(lengths[:_FIT_SESSIONS], shape.prefix_hit_rate or 0.0)
    system = tokens.take(reuse.system)
    sessions = []
    for number, planned in enumerate(lengths):
        begun = number % turns if number < concurrency else 0
        prompts = _grow(planned[begun:], reuse, system, tokens)
        specs = tuple(
            RequestSpec(prompt=prompt, osl=turn.osl, think_s=think_s)
            for prompt, turn in zip(prompts, planned[begun:], strict=True)
        )
        sessions.append(Session(name=f"{seed}-{number}", turns=specs))
    return LoadPlan(
        level=level,
        arrival=Arrival.CLOSED,
        concurrency=concurrency,
        sessions=tuple(sessions),
        warm_up_s=warm_up_s,
        duration_s=duration_s,
        seed=seed,
    )


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
) -> LoadPlan:
    """Live traffic of ``concurrency`` coding agents, ``sessions`` conversations in all.

    Each turn's prompt is the last one, an answer and a new message; all conversations open with
    one system prompt. Lengths of messages and answers and think times are exponential about the
    given means (tokens, seconds), at most four times them. Nothing is warm-up.
    """
    rng = random.Random(seed)
    tokens = _Tokens(rng, vocabulary)
    system = tokens.take(system_tokens)

    def about(mean: float) -> float:
        return min(rng.expovariate(1 / mean), 4 * mean) if mean > 0 else 0.0

    def conversation(number: int) -> Session:
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


def _demand(shape: TrafficShape, *, concurrency: int, duration_s: float, think_s: float) -> float:
    """Requests that the fastest engine imaginable could use up in ``duration_s``."""
    isl, osl = shape.isl.mean, shape.osl.mean
    if isl is None or osl is None:
        raise BadInput("The traffic shape holds no finished request, so there is none to imitate.")
    each_s = LEAST_TTFT_S + osl * LEAST_TPOT_S + think_s
    rate_rps = min(concurrency / each_s, MOST_OUTPUT_TOK_S / max(osl, 1))
    return min(duration_s * rate_rps, MOST_PROMPT_TOKENS / max(isl, 1))


def _lengths(
    shape: TrafficShape, rng: random.Random, sessions: int, turns: int, longest: float
) -> list[list[Turn]]:
    """Lengths of each session's turns; prompts grow, which leaves their distribution as it is."""
    n = sessions * turns
    isl, osl = _draw(shape.isl, rng, n), _draw(shape.osl, rng, n)

    def fitting(prompt: int, answer: int) -> Turn:
        answer = int(min(answer, max(1, longest - 1)))
        return Turn(int(min(prompt, max(1, longest - answer))), answer)

    drawn = [fitting(*pair) for pair in zip(isl, osl, strict=True)]
    return [sorted(drawn[i : i + turns], key=lambda turn: turn.isl) for i in range(0, n, turns)]


def _draw(of: Distribution, rng: random.Random, n: int) -> list[int]:
    """``n`` whole values: each bucket as often as in ``of``, and the mean of ``of``.

    Buckets are wide (500 to 1,000 tokens), so where values lie inside them follows from the known
    sum: they lie at ``u ** power`` of the width, whose mean is 1 / (1 + power).
    """
    lower = (0.0, *of.bounds[:-1])
    upper = [low if math.isinf(b) else b for low, b in zip(lower, of.bounds, strict=True)]
    width = [high - low for low, high in zip(lower, upper, strict=True)]
    base = sum(count * low for count, low in zip(of.counts, lower, strict=True)) / of.n
    spread = sum(count * wide for count, wide in zip(of.counts, width, strict=True)) / of.n
    # The step to the next whole token adds half a token on average.
    place = (of.total / of.n - 0.5 - base) / spread if spread > 0 else 0.5
    power = 1 / min(max(place, 0.01), 0.99) - 1
    reached = of.cumulative()
    values = []
    for u in _even(rng, n):
        bucket = next((i for i, share in enumerate(reached) if u < share), len(reached) - 1)
        value = lower[bucket] + width[bucket] * rng.random() ** power
        # The next whole token above: a bucket holds its upper bound, not its lower one.
        values.append(int(min(int(value) + 1, of.bounds[bucket])))
    return values


def _even(rng: random.Random, n: int) -> Iterator[float]:
    """``n`` numbers in [0, 1), one in each of ``_STRATA`` equal parts in turn, in random order."""
    for start in range(0, n, _STRATA):
        strata = list(range(_STRATA))
        rng.shuffle(strata)
        for stratum in strata[: n - start]:
            yield (stratum + rng.random()) / _STRATA


def _fit(sessions: Sequence[Sequence[Turn]], hit_rate: float) -> Reuse:
    """The reuse that gives ``hit_rate``, by bisection along one line from none to all.

    Up to 1 the history kept grows, and with it a system prompt of the length of a short prompt;
    from 1 to 2 all history is kept and the system prompt grows to the longest prompt's length.
    """
    prompts = sorted(turn.isl for turns in sessions for turn in turns)
    short, long = prompts[len(prompts) // 10], prompts[-1]

    def at(x: float) -> Reuse:
        kept, grown = min(x, 1.0), max(x - 1.0, 0.0)
        return Reuse(round(short * kept + (long - short) * grown), kept)

    if hit_rate <= 0:
        return at(0.0)
    low, high = 0.0, 2.0
    for _ in range(24):
        middle = (low + high) / 2
        if _hit_rate(sessions, at(middle)) < hit_rate:
            low = middle
        else:
            high = middle
    return at(high)


def _hit_rate(sessions: Sequence[Sequence[Turn]], reuse: Reuse) -> float:
    """The share of prompt tokens in whole blocks that an earlier prompt began with."""
    hits = total = before = 0
    for turns in sessions:
        before = 0
        for turn in turns:
            hits += reuse.shared(turn.isl, before) // BLOCK_TOKENS * BLOCK_TOKENS
            total += turn.isl
            before = turn.isl
    return hits / total


def _grow(
    turns: Sequence[Turn], reuse: Reuse, system: tuple[int, ...], tokens: _Tokens
) -> Iterator[tuple[int, ...]]:
    """The prompts of one session, each beginning with what it shares."""
    prompt: tuple[int, ...] = ()
    for turn in turns:
        shared = reuse.shared(turn.isl, len(prompt))
        source = prompt if len(prompt) >= shared else system
        prompt = source[:shared] + tokens.take(turn.isl - shared)
        yield prompt
