"""What a measurement is worth under an objective: the one definition for search and judge.

Goodput is taken as output tokens a second times the share of ended requests that met the SLO.
Counting the good requests by the moment they end would be simpler and worse: streams of like
length end in waves, and one wave more or less in the window is a tenth of the goodput.

Cost per token is taken as its inverse, capacity: the goodput of an engine at that load, of those it
was measured at, where it is highest. A load heavier than the live one counts only where the SLO was
met: goodput that costs others their SLO is none to plan a fleet by.

Latency is taken as completed requests a second of their own waiting, the inverse of the mean E2EL,
so that more is better under every objective; what failed adds waiting alone, see
``canary.waiting``. What nobody knows has no value: it is ``None``, and neither good nor bad.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, assert_never

from canary.intervals import Blocks, Share
from domain.study import Measurement, Objective

LEAST_COUNT = 3
"""Requests that a rate is taken to stand for at least: with none seen, up to three may be expected
at 95 %."""

METRICS = {
    Objective.GOODPUT: "goodput_tok_s",
    Objective.THROUGHPUT: "output_tok_s",
    Objective.LATENCY: "stream_rps",
    Objective.COST: "capacity_tok_s",
}
"""What ``value`` is called: output tokens a second of requests that met the SLO, those of all,
completed requests a second of waiting, and the first at the best of several loads."""

UNITS = {
    Objective.GOODPUT: "tokens/s",
    Objective.THROUGHPUT: "tokens/s",
    Objective.LATENCY: "requests/s a stream",
    Objective.COST: "tokens/s",
}


class Arms(NamedTuple):
    """One figure a run, all above zero."""

    candidate: list[float]
    baseline: list[float]


def blocks(measured: Measurement, objective: Objective) -> Blocks | None:
    """The blocks of time whose rate is ``value``; ``None`` where that is unknown."""
    seconds = [block.seconds for block in measured.blocks]
    amounts = [block.output_tokens for block in measured.blocks]
    share = None
    match objective:
        case Objective.GOODPUT:
            share = Share(
                hits=tuple(float(block.good) for block in measured.blocks),
                tries=tuple(float(block.requests) for block in measured.blocks),
            )
        case Objective.THROUGHPUT:
            pass
        case Objective.LATENCY:
            if measured.stream_rps is None:
                return None
            seconds = [block.waited_s or 0.0 for block in measured.blocks]
            amounts = [float(block.completed) for block in measured.blocks]
        case Objective.COST:
            best = best_level(measured)
            return None if best is None else blocks(best, Objective.GOODPUT)
        case _:
            assert_never(objective)
    return Blocks(amounts=tuple(amounts), seconds=tuple(seconds), share=share)


def best_level(measured: Measurement) -> Measurement | None:
    """The load at which a token costs least; ``None`` where no heavier ones were to be tried."""
    if measured.heavier is None:
        return None
    served = [measured, *(each for each in measured.heavier if each.slo_met)]
    return max(served, key=lambda each: value(each, Objective.GOODPUT) or 0.0)


def value(measured: Measurement, objective: Objective) -> float | None:
    """Output tokens a second: all of them, or the share of them that counts as good, at the live
    load or at the best; or completed requests a second of waiting."""
    found = blocks(measured, objective)
    return None if found is None else found.rate


def tokens_a_request(runs: Sequence[Measurement]) -> float:
    """Output tokens of a request, on average over all runs."""
    made = sum(block.output_tokens for run in runs for block in run.blocks)
    return made / max(sum(run.requests for run in runs), 1)


def least_rate(runs: Sequence[Measurement], objective: Objective) -> float:
    """What a ``value`` of these runs is taken to be at least, so that none is divided by; 0 where
    they say nothing.

    Of latency it is that of a few requests in all the waiting of the slowest run: waiting, unlike
    time, is short where a run is good.
    """
    if objective is Objective.LATENCY:
        longest_s = max(run.waited_s or 0.0 for run in runs)
        return LEAST_COUNT / longest_s if longest_s > 0 else 0.0
    return LEAST_COUNT * tokens_a_request(runs) / min(run.seconds for run in runs)


def compared(
    candidate: Sequence[Measurement], baseline: Sequence[Measurement], objective: Objective
) -> Arms | None:
    """Each run's ``value``, or the least that it is taken to be; ``None`` where one is unknown or
    nothing came out of any."""
    least = least_rate([*candidate, *baseline], objective)
    ours, theirs = (_known(runs, objective) for runs in (candidate, baseline))
    if ours is None or theirs is None or least <= 0:
        return None
    return Arms([max(one, least) for one in ours], [max(one, least) for one in theirs])


def _known(runs: Sequence[Measurement], objective: Objective) -> list[float] | None:
    values = [value(run, objective) for run in runs]
    known = [one for one in values if one is not None]
    return known if len(known) == len(values) else None
