"""Reads from the store what earlier studies recommended, for the planner to propose again."""

from __future__ import annotations

from agent.leadership import Leadership
from agent.planner.experience import AGE_S, Found
from agent.store.unit_of_work import UnitOfWork
from domain.rollout import Phase
from domain.study import Study

ROLLOUTS = 100
"""Of so many of the latest rollouts it is known how they ended."""


class EarlierStudies:
    """Called with a study: what was recommended before it, newest first, but for configs whose last
    rollout was rolled back."""

    def __init__(self, leadership: Leadership) -> None:
        self._leadership = leadership

    def __call__(self, study: Study) -> tuple[Found, ...]:
        with self._leadership.view() as uow:
            refuted = _rolled_back(uow)
            found = [
                Found(earlier, config)
                for earlier in uow.studies.recommended(study.created_s - AGE_S)
                if (config := uow.trials.confirmed_last(earlier.id)) is not None
            ]
        return tuple(f for f in found if f.study.id != study.id and f.config.digest not in refuted)


def _rolled_back(uow: UnitOfWork) -> frozenset[str]:
    """Digests of the candidates whose last rollout went back."""
    last: dict[str, Phase] = {}
    for rollout in uow.rollouts.latest(ROLLOUTS):
        last.setdefault(rollout.candidate.digest, rollout.phase)
    return frozenset(digest for digest, phase in last.items() if phase is Phase.ROLLED_BACK)
