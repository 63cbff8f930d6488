"""When requests come in an open plan: drawn from a rate and its burstiness, or given. Seeded."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import NamedTuple

from domain.errors import BadInput
from domain.trace import Trace

# Mean gaps that are played before the plan begins, so that it begins as it goes on.
_RUN_UP = 64
# Beyond this all requests come in a few heaps, which no rate describes.
_MOST_DISPERSION = 1000.0


class Arriving(NamedTuple):
    """One request's time in seconds from the start, and the session that it belongs to."""

    offset_s: float
    session: str


def offsets(
    rng: random.Random, *, rate_rps: float, until_s: float, dispersion: float = 1.0
) -> Iterator[float]:
    """Times in [0, ``until_s``) with Gamma-distributed gaps.

    ``dispersion`` is the variance over the mean of counts in intervals much longer than a gap,
    which for independent gaps is their squared coefficient of variation: 1 makes a Poisson stream,
    more one with bursts, 0 an even one.
    """
    if rate_rps <= 0 or not 0 <= dispersion <= _MOST_DISPERSION:
        raise BadInput(
            "Arrivals need a rate above 0 and a dispersion from 0 to"
            f" {_MOST_DISPERSION:g}; got {rate_rps} requests/s and {dispersion}."
        )

    def gap() -> float:
        if dispersion == 0:
            return 1 / rate_rps
        return rng.gammavariate(1 / dispersion, dispersion / rate_rps)

    # Begun long before: from a request on, a bursty stream is denser than its rate.
    now_s = -max(1.0, dispersion) * _RUN_UP / rate_rps - rng.random() / rate_rps
    while now_s < until_s:
        if now_s >= 0:
            yield now_s
        now_s += gap()


def in_rotation(times_s: Sequence[float], *, lanes: int, turns: int, name: str) -> list[Arriving]:
    """Requests dealt to ``lanes`` conversations that go on side by side, ``turns`` requests each.

    The first conversations begin at different turns, as live ones would be found.
    """
    started = 0
    left = [0] * lanes
    names = [""] * lanes
    arriving = []
    for number, at_s in enumerate(times_s):
        lane = number % lanes
        if left[lane] == 0:
            left[lane] = turns - started % turns if started < lanes else turns
            names[lane] = f"{name}-{started}"
            started += 1
        left[lane] -= 1
        arriving.append(Arriving(at_s, names[lane]))
    return arriving


def arrivals_of(
    trace: Trace, *, start_s: float = 0.0, window_s: float | None = None, speed: float = 1.0
) -> list[Arriving]:
    """The exact times and sessions of a stretch of a trace, ``speed`` times as fast.

    A request without a session is one of its own.
    """
    if speed <= 0:
        raise BadInput(f"A trace is replayed at a speed above 0; got {speed}.")
    part = trace.window(start_s) if window_s is None else trace.window(start_s, window_s)
    return [
        Arriving(request.offset_s / speed, request.session or f"request {number}")
        for number, request in enumerate(part.requests)
    ]


def before(arriving: Sequence[Arriving], until_s: float) -> list[Arriving]:
    """Those before ``until_s``, in order of their times; BadInput for a time below 0."""
    ordered = sorted(arriving, key=lambda one: one.offset_s)
    if ordered and ordered[0].offset_s < 0:
        raise BadInput(f"A request cannot come {-ordered[0].offset_s} s before the plan's start.")
    return list(takewhile(lambda one: one.offset_s < until_s, ordered))
