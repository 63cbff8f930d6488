"""Whether an engine's own counters agree with what a load client says it did: pure.

A client that loses or invents requests or tokens gives figures that look as good as true ones. It
must not say which of the two is right: where they differ, nothing was measured.
"""

from __future__ import annotations

from collections.abc import Sequence

from domain.load import RequestRecord
from domain.study import EngineCounters

# The engine counts a token more or less for requests that it was still ending when it was asked.
TOLERANCE = 0.02
# One request besides may fall on the wrong side of a reading, the last one of a warm-up for one.
SPARE_REQUESTS = 1


def disagreement(
    records: Sequence[RequestRecord], before: EngineCounters | None, after: EngineCounters | None
) -> str | None:
    """Whether the engine counted otherwise than the client, or than the plan, in one sentence.

    The counters must bracket the run, and nobody else may use the engine meanwhile. It ended at
    least the requests that completed here, and at most all that were sent. What a failed or cut-off
    one took and gave lies between nothing and all it was asked for.
    """
    done = [record for record in records if record.error is None]
    # The length of a text that nobody counted is known only once the engine answered.
    counted = all(record.isl for record in records)
    for counter, what, ours, most, spare in (
        ("requests", "requests", len(done), len(records), SPARE_REQUESTS),
        ("prompt_tokens", "prompt tokens", _sum(done, "isl"), _sum(records, "isl"), 0),
        ("generation_tokens", "generated tokens", _sum(done, "osl"), _sum(records, "osl"), 0),
    ):
        engine = increase(before, after, counter)
        if engine is None or _between(engine, ours - spare, most + spare):
            continue
        if counter == "prompt_tokens" and not counted:
            continue
        client = f"{ours:,}" if ours == most else f"{ours:,} to {most:,}"
        return (
            f"The engine counted {engine:,.0f} {what} and the load client {client}; they differ by"
            f" more than {TOLERANCE:.0%}."
        )
    told = [record for record in done if record.planned_isl]
    read, planned = _sum(told, "isl"), _sum(told, "planned_isl")
    if _between(read, planned, planned):
        return None
    return (
        f"The engine read {read:,} prompt tokens where the plan has {planned:,}; they differ by"
        f" more than {TOLERANCE:.0%}."
    )


def _between(value: float, least: int, most: int) -> bool:
    return least * (1 - TOLERANCE) <= value <= most * (1 + TOLERANCE)


def _sum(records: Sequence[RequestRecord], field: str) -> int:
    return sum(getattr(record, field) for record in records)


def increase(
    before: EngineCounters | None, after: EngineCounters | None, counter: str
) -> float | None:
    """How far a counter moved; ``None`` where it is missing or went back (a restart)."""
    low, high = getattr(before, counter, None), getattr(after, counter, None)
    return high - low if low is not None and high is not None and high >= low else None


def ratio(
    before: EngineCounters | None, after: EngineCounters | None, part: str, whole: str
) -> float | None:
    some, all_ = increase(before, after, part), increase(before, after, whole)
    return some / all_ if some is not None and all_ else None
