"""What was sent in a run, beside the plan it was taken from: lengths, and what a cache could find.

Pure. It must not judge latencies; whether the engine's counters agree is ``agreement``'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from canary.agreement import increase
from canary.prompts.caching import shared_of
from domain.load import LoadPlan, RequestError, RequestRecord, RequestSpec
from domain.study import EngineCounters, Failure, FailureKind

# Points by which an engine's hit rate may exceed the best one for what was sent: it may count a
# template's tokens, which the plan does not hold.
HIT_TOLERANCE = 0.02


class Length(NamedTuple):
    """Tokens of one request."""

    isl: int
    osl: int


class Findable(NamedTuple):
    """Tokens of the prompts that were sent, and those that an unbounded prefix cache which began
    empty would find of them. The order of the prompts changes neither."""

    prompt_tokens: int
    hits: float

    @property
    def rate(self) -> float:
        return self.hits / self.prompt_tokens if self.prompt_tokens else 0.0


def asked(plan: LoadPlan | None, records: Sequence[RequestRecord]) -> list[RequestSpec | None]:
    """What the plan asked for with each record; ``None`` where it holds no such request."""
    turns = {session.name: session.turns for session in plan.sessions} if plan else {}
    sessions = (turns.get(record.session, ()) for record in records)
    return [
        session[record.turn] if record.turn < len(session) else None
        for record, session in zip(records, sessions, strict=True)
    ]


def lengths(records: Sequence[RequestRecord], asked: Sequence[RequestSpec | None]) -> list[Length]:
    """Of all that was sent and did not fail. What was cut off counts with what it was asked for:
    without it a short run would seem to hold short answers only."""
    found = []
    for record, spec in zip(records, asked, strict=True):
        if record.error is None:
            found.append(Length(record.isl, record.osl))
        elif record.error is RequestError.CANCELLED and spec is not None:
            found.append(Length(spec.isl, spec.osl))
    return found


def findable(asked: Sequence[RequestSpec | None]) -> Findable:
    """What an empty prefix cache could find; of a text, whose ids nobody knows, nothing."""
    prompts = [spec.prompt for spec in asked if spec is not None]
    tokens = sum(map(len, prompts))
    return Findable(tokens, shared_of(prompts) * tokens)


def warm_cache(
    before: EngineCounters | None, after: EngineCounters | None, findable: Findable | None
) -> Failure | None:
    """Why the hits are more than this run's own. Hits are held against hits, since prompts that
    still waited at the end count for what could be found and not for what was looked up."""
    hits = increase(before, after, "prefix_hits")
    looked_up = increase(before, after, "prefix_queries")
    if hits is None or not looked_up or findable is None or not findable.prompt_tokens:
        return None
    if hits <= findable.hits + HIT_TOLERANCE * looked_up:
        return None
    return Failure(
        kind=FailureKind.WARM_CACHE,
        sentence=f"The engine found {hits / looked_up:.0%} of the prompt tokens in its prefix"
        f" cache, where one that began empty could find {findable.hits / looked_up:.0%}: it was"
        " warm with another run's prompts.",
    )
