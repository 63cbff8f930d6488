"""Whether controllers that were killed did a step of a rollout twice; pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from domain.events import Event, EventKind

STEPS = (EventKind.WEIGHT_SET, EventKind.ENGINE_STARTED, EventKind.PROMOTED, EventKind.ROLLED_BACK)


def done_twice(events: Iterable[Event], kills: Sequence[float]) -> list[str]:
    """The steps that were done again though no kill lies between: only then the first may have been
    lost. Times are Unix seconds."""
    done: dict[tuple[str, str], list[float]] = {}
    for event in events:
        if event.kind in STEPS:
            done.setdefault((event.sentence, event.subject), []).append(event.at_s)
    return [
        sentence
        for (sentence, _), times in done.items()
        for before, after in pairwise(times)
        if not any(before <= kill <= after for kill in kills)
    ]
