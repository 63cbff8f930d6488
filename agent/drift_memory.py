"""What is known of drift, in two rows of the state: what each cycle asks for, and the long memory.

The windows without change are read only where a window counts, for they are many. What cannot be
read, such as a row of another version, is forgotten: the watch begins anew, which costs some
windows, where holding for ever would cost all tuning.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Final, TypeVar

from agent.store.codec import decode, encode
from agent.store.unit_of_work import UnitOfWork
from domain.drift import DriftState, Window
from domain.errors import InvariantViolation

DRIFT: Final = "drift"
CALM: Final = "drift_calm"

_LOG = logging.getLogger(__name__)
Kept = TypeVar("Kept")


def readable(uow: UnitOfWork, key: str, kind: type[Kept]) -> Kept | None:
    """The value of the state's row; ``None`` where there is none or it cannot be read."""
    stored = uow.state.get(key)
    try:
        return None if stored is None else decode(kind, stored)
    except InvariantViolation as error:
        _LOG.warning("%s It is learned anew.", error)
        return None


def recalled(uow: UnitOfWork) -> DriftState | None:
    """What is known of drift, without the windows without change."""
    return readable(uow, DRIFT, DriftState)


def whole(uow: UnitOfWork, state: DriftState | None) -> DriftState | None:
    """What ``recalled`` returned, with the windows without change."""
    calm = readable(uow, CALM, tuple[tuple[Window, ...], ...])
    return state if state is None or calm is None else replace(state, calm=calm)


def keep(uow: UnitOfWork, state: DriftState) -> None:
    """Store all that is known, in the caller's transaction."""
    uow.state.set(DRIFT, encode(replace(state, calm=((),))))
    uow.state.set(CALM, [[encode(window) for window in stretch] for stretch in state.calm])
