"""A LoadPlan that looks like a TrafficShape, closed or open. Pure, seeded."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice

from canary.prompts.arrivals import Arriving, before, in_rotation, offsets
from canary.prompts.lengths import Turn, draw_turns, in_sessions
from canary.prompts.reuse import Reuse, fit, grow
from canary.prompts.tokens import Tokens, tokens_from
from domain.errors import BadInput
from domain.load import BLOCK_TOKENS, Arrival, LoadPlan, RequestSpec, Session
from domain.traffic import TrafficShape

# A plan is a tuple and cannot grow, so it holds what no engine of today could use up: a stream that
# answers in 20 ms and a token each millisecond, one engine that gives 50,000 tokens a second, and
# at most 8 million prompt tokens (64 MB). A plan that runs out all the same ends its run early.
LEAST_TTFT_S = 0.02
LEAST_TPOT_S = 0.001
MOST_OUTPUT_TOK_S = 50_000
MOST_PROMPT_TOKENS = 8_000_000


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
    corpus: Sequence[int] | None = None,
    correlation: float | None = None,
    arrival: Arrival = Arrival.CLOSED,
    rate_rps: float | None = None,
    dispersion: float | None = None,
    arrivals_seed: int | None = None,
    arrivals: Sequence[Arriving] | None = None,
    block_tokens: int = BLOCK_TOKENS,
) -> LoadPlan:
    """A plan of sessions of ``turns`` requests that look like ``shape``.

    ISL and OSL fall into the shape's buckets as often as live ones, with the live mean, and are
    correlated as said (Spearman's), by default as in the shape where that is known. Prompts of a
    session grow, and share a system prompt with all others, so that an engine whose cache holds
    everything, in blocks of ``block_tokens``, would find ``shape.prefix_hit_rate`` of the prompt
    tokens (none where that is unknown). The first sessions begin at different turns, as live ones
    would be found. Prompts are runs of ``corpus`` (token ids of a natural text) where there is one,
    else ids below ``vocabulary`` by chance. ``max_model_len`` clips prompts so that ISL + OSL fits.

    An open plan keeps ``rate_rps`` with ``dispersion``, by default the shape's (that of the scale
    at which most is sure; Poisson where none is), at times of ``arrivals_seed``, by default
    ``seed``: plans that share it come at the same times with other prompts. Or it comes at exactly
    the times of ``arrivals``, whose sessions it keeps. Each of its requests is a ``Session`` entry
    with a time of its own, under its conversation's name: no request waits for an earlier one,
    however late the engine is.

    A shape without requests, or sizes that make no plan, raise BadInput.
    """
    if concurrency < 1 or turns < 1 or not 0 <= warm_up_s < duration_s < math.inf:
        raise BadInput(
            "A load plan needs a stream, a turn and a finite duration longer than its warm-up;"
            f" got {concurrency} streams, {turns} turns, {warm_up_s} s of {duration_s} s."
        )
    if shape.isl.mean is None or shape.osl.mean is None:
        raise BadInput("The traffic shape holds no finished request, so there is none to imitate.")
    rng = random.Random(seed)
    tokens = tokens_from(rng, vocabulary, corpus)
    if correlation is None:
        correlation = shape.correlation or 0.0
    draw = partial(
        draw_turns, shape, rng, longest=max_model_len or math.inf, correlation=correlation
    )
    reuse_of = partial(fit, hit_rate=shape.prefix_hit_rate or 0.0, block_tokens=block_tokens)
    most = MOST_PROMPT_TOKENS / max(shape.isl.mean, 1)
    if arrivals is None and arrival is Arrival.OPEN:
        arrivals = _drawn_arrivals(
            rate_rps=shape.rate_rps if rate_rps is None else rate_rps,
            dispersion=_dispersion(shape) if dispersion is None else dispersion,
            concurrency=concurrency,
            duration_s=duration_s,
            turns=turns,
            think_s=think_s,
            seed=seed if arrivals_seed is None else arrivals_seed,
        )
    if arrivals is not None:
        coming = before(arrivals, duration_s)
        if len(coming) > math.ceil(most):
            raise BadInput(
                f"{len(coming)} requests of about {shape.isl.mean:.0f} tokens in {duration_s:g} s"
                f" are more than a plan can hold; make it {most / len(coming):.2f} times as long."
            )
        sessions = _open(coming, draw(len(coming)), reuse_of, tokens)
    else:
        fastest_rps = _fastest_rps(shape.osl.mean, concurrency, think_s)
        needed = concurrency + math.ceil(min(duration_s * fastest_rps, most) / turns)
        dealt = in_sessions(draw(needed * turns), turns)
        sessions = _closed(dealt, reuse_of(dealt), tokens, concurrency, think_s, str(seed))
    return LoadPlan(
        level=level,
        arrival=Arrival.CLOSED if arrivals is None else Arrival.OPEN,
        concurrency=concurrency,
        sessions=tuple(sessions),
        warm_up_s=warm_up_s,
        duration_s=duration_s,
        seed=seed,
        block_tokens=block_tokens,
    )


def _dispersion(shape: TrafficShape) -> float:
    return 1.0 if shape.burstiest is None else shape.burstiest.dispersion


def _fastest_rps(osl: float, concurrency: int, think_s: float) -> float:
    """Requests a second that the fastest engine imaginable would answer."""
    each_s = LEAST_TTFT_S + osl * LEAST_TPOT_S + think_s
    return min(concurrency / each_s, MOST_OUTPUT_TOK_S / max(osl, 1))


def _closed(
    dealt: Sequence[Sequence[Turn]],
    reuse: Reuse,
    tokens: Tokens,
    concurrency: int,
    think_s: float,
    name: str,
) -> list[Session]:
    """Sessions to be taken in order; the first ``concurrency`` begin at different turns."""
    begun = [
        turns[number % len(turns) if number < concurrency else 0 :]
        for number, turns in enumerate(dealt)
    ]
    return [
        Session(name=f"{name}-{number}", turns=tuple(specs))
        for number, specs in enumerate(_specs(begun, reuse, tokens, think_s))
    ]


def _open(
    coming: Sequence[Arriving],
    drawn: Sequence[Turn],
    reuse_of: Callable[[Sequence[Sequence[Turn]]], Reuse],
    tokens: Tokens,
) -> list[Session]:
    """An entry for each request at its own time; lengths grow within each conversation."""
    held = Counter(one.session for one in coming)
    left = iter(drawn)
    dealt = [sorted(islice(left, n), key=lambda turn: turn.isl) for n in held.values()]
    specs = _specs(dealt, reuse_of(dealt), tokens, 0.0)
    planned = {name: iter(turns) for name, turns in zip(held, specs, strict=True)}
    return [
        Session(name=one.session, turns=(next(planned[one.session]),), start_s=one.offset_s)
        for one in coming
    ]


def _specs(
    dealt: Iterable[Sequence[Turn]], reuse: Reuse, tokens: Tokens, think_s: float
) -> Iterator[list[RequestSpec]]:
    """The requests of each session, over one system prompt."""
    system = tokens.take(reuse.system)
    tokens.reserve()
    for turns in dealt:
        yield [
            RequestSpec(prompt=prompt, osl=turn.osl, think_s=think_s)
            for prompt, turn in zip(grow(turns, reuse, system, tokens), turns, strict=True)
        ]


def _drawn_arrivals(
    *,
    rate_rps: float,
    dispersion: float,
    concurrency: int,
    duration_s: float,
    turns: int,
    think_s: float,
    seed: int,
) -> list[Arriving]:
    """Arrivals by chance, dealt to twice as many conversations as run at once: a turn's answer is
    there before the next one comes."""
    times = offsets(
        random.Random(f"{seed} arrivals"),
        rate_rps=rate_rps,
        until_s=duration_s,
        dispersion=dispersion,
    )
    lanes = math.ceil(2 * concurrency + rate_rps * think_s)
    return in_rotation(list(times), lanes=lanes, turns=turns, name=str(seed))
