"""What earlier studies found is tried first, where it is still of use, and never taken on trust.

A config that an earlier study recommended counts for the same engine, model and objective, under
traffic of a replica not far from today's, and not for ever. It is a proposal like any other:
measured anew, and recommended only if fresh runs prove it again. Pure but for ``earlier``, which
the caller gives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

from domain.drift import Distance, distance
from domain.engine import EngineConfig, SearchSpace
from domain.ports import Planner, Proposal, Proposals
from domain.study import Study, Trial

AUTHOR = "earlier studies"

NEAR = 1.0
"""How far the traffic may have moved since: further than twofold, it is another question."""

MOST = 2
"""Configs of earlier studies that a study tries before its own planner's."""

AGE_S = 60 * 86_400.0
"""Older findings are left alone: drivers, weights and prompts have changed since."""


class Found(NamedTuple):
    """A config that a study recommended."""

    study: Study
    config: EngineConfig


Earlier: TypeAlias = Callable[[Study], Sequence[Found]]


class Experienced:
    """A Planner that proposes what is left of earlier findings, before what ``planner`` does."""

    def __init__(self, planner: Planner, earlier: Earlier) -> None:
        self._planner = planner
        self._earlier = earlier

    async def propose(
        self, study: Study, space: SearchSpace, trials: Sequence[Trial], limit: int
    ) -> Proposals:
        known = proposals(study, space, self._earlier(study))
        tried = {space.normalised(trial.config) for trial in trials}
        left = [proposal for proposal in known if proposal.config not in tried]
        own = await self._planner.propose(study, space, trials, limit)
        found = {proposal.config for proposal in left}
        ranked = (*left, *(p for p in own.ranked if p.config not in found))
        return own._replace(ranked=ranked[: max(limit, 0)])


def proposals(study: Study, space: SearchSpace, earlier: Sequence[Found]) -> tuple[Proposal, ...]:
    """At most ``MOST`` configs of earlier studies that count for this one, nearest traffic first,
    of equally near ones the newest."""
    usable = [found for found in earlier if _counts(found, study, space)]
    usable.sort(key=lambda found: (_apart(found, study).value, -found.study.created_s))
    chosen: dict[EngineConfig, Proposal] = {}
    for found in usable:
        config = space.normalised(found.config)
        chosen.setdefault(config, _proposal(config, found, study))
    return tuple(chosen.values())[:MOST]


def _counts(found: Found, study: Study, space: SearchSpace) -> bool:
    earlier = found.study
    return (
        study.engine != ""
        and (earlier.engine, earlier.shape.model, earlier.objective)
        == (study.engine, study.shape.model, study.objective)
        and 0 <= study.created_s - earlier.created_s <= AGE_S
        and _apart(found, study).value <= NEAR
        and space.fault(found.config) is None
        and space.normalised(found.config) != space.normalised(study.baseline)
    )


def _apart(found: Found, study: Study) -> Distance:
    return distance(found.study.part, study.part)


def _proposal(config: EngineConfig, found: Found, study: Study) -> Proposal:
    days = (study.created_s - found.study.created_s) / 86_400
    apart = _apart(found, study)
    return Proposal(
        config=config,
        hypothesis=(
            f"study {found.study.id} recommended it {days:.1f} days ago for traffic like this "
            f"(distance {apart.value:.2f}, most of it in {apart.component.value}); it must show "
            "that again."
        ),
        metric=study.objective.value,
        author=AUTHOR,
    )
