"""The pause of the whole controller, as rows: a rollout that stands still with it goes on with it.

One that a person paused by itself, or that paused because something was changed by hand, does not.
"""

from __future__ import annotations

from typing import Final

from agent.store.unit_of_work import UnitOfWork
from canary.rollout import pause, resume
from domain.rollout import Rollout

PAUSED: Final = "paused"
STANDING: Final = "rollout_paused_with_controller"


def paused(uow: UnitOfWork) -> bool:
    return bool(uow.state.get(PAUSED))


def begin(uow: UnitOfWork) -> None:
    uow.state.set(PAUSED, True)


def end(uow: UnitOfWork) -> None:
    uow.state.set(PAUSED, False)
    uow.state.set(STANDING, None)


def standing(uow: UnitOfWork, rollout: Rollout, reason: str) -> Rollout:
    """The rollout while the controller is paused, noted as one that goes on with it."""
    stopped = pause(rollout, reason)
    if stopped is not rollout:
        uow.state.set(STANDING, rollout.id)
    return stopped


def going_on(uow: UnitOfWork, rollout: Rollout) -> Rollout:
    """The rollout when the controller goes on."""
    return resume(rollout) if uow.state.get(STANDING) == rollout.id else rollout


def parted(uow: UnitOfWork, rollout: Rollout) -> bool:
    """Let the rollout no longer go on with the controller; whether it would have."""
    stood = uow.state.get(STANDING) == rollout.id
    if stood:
        uow.state.set(STANDING, None)
    return stood
