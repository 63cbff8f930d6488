"""When an answer is complete: the one rule that both metric sources follow.

A counter survives a missed scrape, an answer that lacks a whole replica does not. So an answer is
partial where a target that the query covers failed its newest scrape, or more than a tenth of the
scrapes in the window. A missed scrape is thereby told apart from a counter that did not move.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from domain.metrics import Query

TARGET_LABELS: Final = ("arm", "config", "replica")
LEAST_ANSWERED: Final = 0.899
"""The least share of answered scrapes: nine in ten, with room for rounding."""

_NAMED: Final = 5


def target_where(query: Query) -> tuple[tuple[str, str], ...]:
    """The part of the query's label matches that chooses targets."""
    return (
        *query.within,
        *((name, value) for name, value in query.where if name in TARGET_LABELS),
    )


def missed(targets: Iterable[Mapping[str, str]]) -> str:
    """The sentence that names the targets, by their labels, whose scrapes were missed."""
    names = sorted(
        " ".join(f"{label}={target[label]}" for label in TARGET_LABELS if target.get(label))
        or target.get("instance", "a target without labels")
        for target in targets
    )
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"scrapes were missed: {'; '.join(names[:_NAMED])}{more}"
