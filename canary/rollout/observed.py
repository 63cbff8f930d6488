"""The world in one cycle, and what it says of a single slot; nothing is decided here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from domain.engine import EngineConfig
from domain.fleet import Replica, ReplicaState, Slot, Split


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """The world in one cycle: replicas by slot name, and the split, ``None`` if unreadable."""

    production: tuple[Slot, ...]
    canary: Slot
    replicas: Mapping[str, Replica]
    split: Split | None


def admitted(split: Split, slot: Slot) -> bool:
    traffic = split.slot(slot.name)
    return traffic is not None and traffic.admitted


def up(split: Split, slot: Slot) -> bool:
    traffic = split.slot(slot.name)
    return traffic is not None and traffic.up


def warm(observed: Observed, slot: Slot) -> bool:
    replica = observed.replicas.get(slot.name)
    return replica is not None and replica.state is ReplicaState.WARM


def carries(observed: Observed, split: Split, slot: Slot) -> bool:
    """Whether new requests reach a warm engine in the slot, whatever it runs."""
    return warm(observed, slot) and admitted(split, slot) and up(split, slot)


def runs(observed: Observed, slot: Slot, config: EngineConfig) -> bool:
    """Whether the slot holds an engine with this config, in whatever state."""
    replica = observed.replicas.get(slot.name)
    return replica is not None and replica.config == config


def broken(observed: Observed, split: Split, slot: Slot, config: EngineConfig) -> str | None:
    """Why the engine in ``slot`` cannot carry traffic with ``config``; ``None`` if it can."""
    replica = observed.replicas.get(slot.name)
    if replica is None:
        return f"there is no engine in {slot.name}."
    if replica.config != config:
        return f"{slot.name} runs another config."
    if replica.state is not ReplicaState.WARM:
        return f"{slot.name} is {replica.state.value}. {replica.detail}".strip()
    if not up(split, slot):
        return f"the gateway finds {slot.name} unhealthy."
    return None
