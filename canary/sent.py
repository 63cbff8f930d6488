"""What a run sent of its plan, and what a prefix cache could have found of it: pure.

The plan knows what the records do not: the prompts themselves, and what a request that was cut off
had been asked for.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from canary.prompts.caching import shared_of
from domain.load import BLOCK_TOKENS, LoadPlan, RequestError, RequestRecord, RequestSpec, Session
from domain.study import Failure, FailureKind

# Points by which hits may exceed what could be found: an engine may count the tokens of a template,
# which the plan does not hold.
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
        return self.hits / self.prompt_tokens


def asked(plan: LoadPlan | None, records: Sequence[RequestRecord]) -> list[RequestSpec | None]:
    """What the plan asked for with each record; ``None`` where it holds no such request."""
    if plan is None:
        return [None] * len(records)
    entries: dict[str, list[Session]] = defaultdict(list)
    for session in plan.sessions:
        entries[session.name].append(session)
    return [_spec_of(record, entries[record.session]) for record in records]


def _spec_of(record: RequestRecord, entries: Sequence[Session]) -> RequestSpec | None:
    """The record's own turn. In an open plan one name may have many entries, each with a time of
    its own, which is when the record was due."""
    if len(entries) > 1:
        at_s = record.scheduled_s if record.turn == 0 else None
        entries = [one for one in entries if one.turns and _due_s(one) == at_s]
    turns = entries[0].turns if entries else ()
    return turns[record.turn] if record.turn < len(turns) else None


def _due_s(entry: Session) -> float:
    return entry.start_s + entry.turns[0].think_s


def lengths(
    records: Sequence[RequestRecord], specs: Sequence[RequestSpec | None]
) -> tuple[Length, ...]:
    """Of all that was sent and did not fail. What was cut off counts with what it was asked for:
    without it a short run would seem to hold short answers only."""
    found = []
    for record, spec in zip(records, specs, strict=True):
        if record.error is None:
            found.append(Length(record.isl, record.osl))
        elif record.error is RequestError.CANCELLED and spec is not None:
            found.append(Length(spec.isl, spec.osl))
    return tuple(found)


def findable(
    specs: Sequence[RequestSpec | None], block_tokens: int = BLOCK_TOKENS
) -> Findable | None:
    """In whole blocks of ``block_tokens``: no engine has smaller ones than by default, so none
    finds more. ``None`` where the prompts are not known token by token."""
    prompts = [spec.prompt for spec in specs if spec is not None]
    if not prompts or not all(prompts):
        return None
    tokens = sum(map(len, prompts))
    return Findable(tokens, shared_of(prompts, block_tokens) * tokens)


def warm(hits: float | None, looked_up: float | None, could: Findable | None) -> Failure | None:
    """Why so many hits, of the prompt tokens that were looked up, are not this run's own.

    Tokens are held against tokens, not rates: prompts that still waited when the run ended count
    for what could be found and were not looked up. ``None`` where nobody can tell.
    """
    if hits is None or not looked_up or could is None:
        return None
    if hits <= could.hits + HIT_TOLERANCE * looked_up:
        return None
    return Failure(
        kind=FailureKind.WARM_CACHE,
        sentence=f"The engine found {hits / looked_up:.0%} of the prompt tokens in its prefix"
        f" cache, where one that began empty could find {could.hits / looked_up:.0%}: it was"
        " warm with another run's prompts.",
    )
