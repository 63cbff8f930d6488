"""Which stretch of a trace a rehearsal repeats: of some drawn ones that most like live traffic.

A rehearsal is graded against the live shape, so a stretch of another hour's traffic would fail it
whatever the engine does. Pure, seeded.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

from canary.prompts.lengths import fitting
from canary.prompts.synthesis import MOST_PROMPT_TOKENS
from domain.errors import BadInput
from domain.trace import Trace, TracedRequest
from domain.traffic import TrafficShape

# Stretches that are drawn by time, and as many by request.
_TRIES = 16
# The finest time of a trace: so much after its last request a stretch may end, to hold that too.
_GRAIN_S = 0.001


class _Stretch(NamedTuple):
    start_s: float
    prompt_tokens: float
    distance: float


def stretch_like(
    trace: Trace,
    shape: TrafficShape,
    *,
    seed: int,
    length_s: float,
    warm_up_s: float = 0.0,
    max_model_len: int | None = None,
) -> float:
    """Where the stretch of ``length_s`` begins, in seconds from the trace's start.

    Of some that begin at times and at requests drawn by ``seed`` (times alone would miss short
    traffic between long silences, requests alone the quiet hours beside busy ones), the one whose
    rate, mean ISL and mean OSL are nearest to ``shape``'s: the sum of the logarithms of their
    ratios. Passed over is what has no request after ``warm_up_s``, since nothing would be measured,
    and what has more prompt tokens than a plan holds; a request without lengths counts with the
    shape's. BadInput where none is left.
    """
    offsets = [request.offset_s for request in trace.requests]
    latest_s = max(0.0, trace.length_s + _GRAIN_S - length_s)
    rng = random.Random(seed)
    drawn = rng.choices(offsets, k=_TRIES) if offsets else []
    drawn += [rng.uniform(0.0, latest_s) for _ in range(_TRIES)]
    found = []
    for start_s in sorted({min(offset_s, latest_s) for offset_s in drawn}):
        first, measured, end = (
            bisect_left(offsets, start_s + after_s) for after_s in (0.0, warm_up_s, length_s)
        )
        if measured < end:
            part = trace.requests[first:end]
            found.append(_stretch(start_s, part, shape, length_s, max_model_len))
    fits = [one for one in found if one.prompt_tokens <= MOST_PROMPT_TOKENS]
    if fits:
        return min(fits, key=lambda one: (one.distance, one.start_s)).start_s
    if found:
        least = min(one.prompt_tokens for one in found)
        raise BadInput(
            f"No stretch of {length_s:g} s of the trace fits a plan: the least of {len(found)} has"
            f" {least:.0f} prompt tokens, and a plan holds {MOST_PROMPT_TOKENS}; make trials"
            f" {MOST_PROMPT_TOKENS / least:.2f} times as long, or give a trace of less traffic."
        )
    raise BadInput(
        f"No stretch of {length_s:g} s of the trace, which has {len(offsets)} requests, has one"
        f" after its first {warm_up_s:g} s; give a trace of more traffic."
    )


def _stretch(
    start_s: float,
    part: Sequence[TracedRequest],
    shape: TrafficShape,
    length_s: float,
    max_model_len: int | None,
) -> _Stretch:
    known = [(r.isl, r.osl) for r in part if r.isl is not None and r.osl is not None]
    turns = [fitting(*pair, max_model_len or math.inf) for pair in known]
    tokens = sum(turn.isl for turn in turns) + (len(part) - len(known)) * (shape.isl.mean or 0.0)
    distance = _apart(len(part) / length_s, shape.rate_rps)
    if turns:
        distance += _apart(sum(turn.isl for turn in turns) / len(turns), shape.isl.mean)
        distance += _apart(sum(turn.osl for turn in turns) / len(turns), shape.osl.mean)
    return _Stretch(start_s, tokens, distance)


def _apart(one: float, other: float | None) -> float:
    """How many times the one is the other, as a logarithm; nothing where the other is not known."""
    return abs(math.log(one / other)) if one and other else 0.0
