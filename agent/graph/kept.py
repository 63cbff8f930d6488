"""What a checkpoint keeps of a study under way, as plain JSON: a database must not hold objects.

It spares a successor the planner's answer, and nothing rests on it: trials are rows of their own,
and a study whose checkpoint is gone or cannot be read goes on from those.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypedDict, cast

from agent.graph.conclusion import Conclusion
from agent.graph.rules import Wanted
from agent.store.codec import Json, decode, encode
from domain.errors import InvariantViolation
from domain.ports import Proposals


class Kept(TypedDict, total=False):
    """``wanted`` are the runs to make next, decided when the log held ``known`` trials.

    ``diagnosis`` says what limits the traffic, ``proposals`` are what the planner made of it.
    """

    diagnosis: str
    proposals: Json
    wanted: Json
    known: int
    conclusion: Json


def keep_wanted(wanted: Sequence[Wanted], known: int = 0) -> Kept:
    return {"wanted": [encode(each) for each in wanted], "known": known}


def wanted_of(kept: Mapping[str, object]) -> tuple[Wanted, ...]:
    return decode(tuple[Wanted, ...], cast(Json, kept.get("wanted", [])))


def keep_proposals(proposals: Proposals) -> Kept:
    return {"proposals": encode(proposals)}


def proposals_of(kept: Mapping[str, object]) -> Proposals:
    return decode(Proposals, cast(Json, kept["proposals"]))


def keep_conclusion(conclusion: Conclusion) -> Kept:
    return {"conclusion": encode(conclusion), **keep_wanted(())}


def conclusion_of(kept: Mapping[str, object]) -> Conclusion | None:
    """``None`` while there is none."""
    found = cast(Json, kept.get("conclusion"))
    return None if found is None else decode(Conclusion, found)


def readable(kept: Mapping[str, object]) -> bool:
    """Whether this version of Serinus can go on from what is kept."""
    try:
        wanted_of(kept)
        conclusion_of(kept)
        if "proposals" in kept:
            proposals_of(kept)
    except InvariantViolation:
        return False
    return bool(kept)
