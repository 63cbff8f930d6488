"""One plan dealt out to several load clients, and their results as one: pure.

Each client plays its share on the plan's own clock, so together they make the planned load. It must
not know how the clients are run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil
from typing import NamedTuple

from canary.loadgen.options import Options
from domain.load import Arrival, ClientHealth, LoadPlan, LoadResult, StopCause

# With so many streams, a token each 20 ms, a client leaves most of its core free (decision 0007).
STREAMS_A_SHARD = 256


class Share(NamedTuple):
    """What one client is to do."""

    plan: LoadPlan
    options: Options


def shards_for(plan: LoadPlan, cores: int) -> int:
    """How many clients the plan's streams ask for, on a machine that keeps a core for the rest."""
    return max(1, min(ceil(plan.concurrency / STREAMS_A_SHARD), cores - 1))


def deal(plan: LoadPlan, options: Options, shards: int) -> tuple[Share, ...]:
    """The plan's sessions round-robin, its streams and the options' bounds in equal parts.

    There are fewer shares than ``shards`` where there are fewer streams or sessions.
    """
    most = len(plan.sessions)
    if plan.arrival is Arrival.CLOSED:
        most = min(most, plan.concurrency)
    shards = max(1, min(shards, most))
    sessions = plan.sessions
    if plan.arrival is Arrival.OPEN:
        sessions = tuple(sorted(sessions, key=lambda session: session.start_s))

    def part(whole: int | None, number: int) -> int | None:
        return None if whole is None else _part(whole, shards, number)

    def share(number: int) -> Share:
        budget, limits = options.budget, options.saturation
        under_way = part(limits.under_way, number)
        return Share(
            replace(
                plan,
                concurrency=_part(plan.concurrency, shards, number),
                sessions=sessions[number::shards],
            ),
            replace(
                options,
                budget=replace(
                    budget,
                    requests=part(budget.requests, number),
                    tokens=part(budget.tokens, number),
                ),
                saturation=replace(
                    limits, under_way=None if under_way is None else max(1, under_way)
                ),
            ),
        )

    return tuple(share(number) for number in range(shards))


def merge(results: Sequence[LoadResult]) -> LoadResult:
    """The results of all shares of one plan, its records in order of their end.

    The health is the worst of each, since a figure is only as good as its worst part.
    """
    first = results[0]
    if len(results) == 1:
        return first
    stops = [result.stopped for result in results if result.stopped is not None]
    # A client that found the engine over-saturated is the reason why the others were stopped.
    stops.sort(key=lambda stopped: stopped.cause is not StopCause.OVER_SATURATED)
    stopped = stops[0] if stops else None
    if stopped is not None and stopped.cause is StopCause.OVER_SATURATED:
        stopped = replace(
            stopped, sentence=f"{stopped.sentence} That is one of {len(results)} load clients."
        )
    healths = [result.health for result in results]
    return replace(
        first,
        duration_s=max(result.duration_s for result in results),
        records=tuple(
            sorted((r for result in results for r in result.records), key=lambda r: r.end_s)
        ),
        health=ClientHealth(
            send_lag_ms=max(health.send_lag_ms for health in healths),
            loop_lag_ms=max(health.loop_lag_ms for health in healths),
            cpu=max(health.cpu for health in healths),
            fault=next((health.fault for health in healths if health.fault), None),
        ),
        stopped=stopped,
    )


def _part(whole: int, parts: int, number: int) -> int:
    return whole // parts + (number < whole % parts)
