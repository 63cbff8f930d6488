"""What production should run, as the store has it, and what it is tuned for from then on."""

from __future__ import annotations

from typing import Final

from agent.store.codec import decode, encode
from agent.store.unit_of_work import UnitOfWork
from domain.engine import EngineConfig

ACTIVE_CONFIG: Final = "active_config"
TUNED_SHAPE: Final = "tuned_shape"
TUNED_AT: Final = "tuned_at_s"


def stored(uow: UnitOfWork) -> EngineConfig | None:
    """The config that production was last moved to; ``None`` where it never was."""
    found = uow.state.get(ACTIVE_CONFIG)
    return None if found is None else decode(EngineConfig, found)


def changed(uow: UnitOfWork, config: EngineConfig, now: float) -> None:
    """Note, in the caller's transaction, what production runs; its shape is learned anew."""
    uow.state.set(ACTIVE_CONFIG, encode(config))
    uow.state.set(TUNED_SHAPE, None)
    uow.state.set(TUNED_AT, now)
