"""Symptom → remedy for production outside a rollout's own care: one move, or none (pure)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import assert_never

from canary.rollout import Observed, carries, free_lane
from domain.engine import EngineConfig
from domain.fleet import ReplicaState, Slot
from domain.rollout import (
    AdmitSlot,
    DrainSlot,
    Hold,
    Intent,
    Phase,
    Rollout,
    StartEngine,
    StopEngine,
)

MAX_STARTS = 4
CRASH_WINDOW_S = 600.0
_ROLLOUT_CARES = (Phase.CONVERTING, Phase.RETURNING, Phase.ROLLING_BACK)


def remedy(
    observed: Observed,
    active: EngineConfig,
    rollout: Rollout | None,
    recent_starts: Mapping[str, int],
    drained: Collection[str] = (),
) -> Intent | None:
    """The one move that brings production back to its active config; ``None`` where it is well.

    A running engine with another config is somebody's doing by hand and is left alone, and so are
    slots that were ``drained`` by hand while others serve. While a rollout restarts production
    itself, nothing is done here. ``recent_starts`` counts how often each slot was healed with this
    config in the last ``CRASH_WINDOW_S``: an engine that keeps dying is not started for ever. A
    slot that only has to be waited for keeps no other from its remedy.
    """
    if rollout is not None and rollout.phase in _ROLLOUT_CARES:
        return None
    left = drained if _serving(observed) else ()
    moves = [
        move
        for slot in observed.production
        if (move := _slot_remedy(slot, observed, active, recent_starts.get(slot.name, 0)))
        and not (slot.name in left and isinstance(move, AdmitSlot))
    ]
    return next((move for move in moves if not isinstance(move, Hold)), moves[0] if moves else None)


def by_hand(observed: Observed, active: EngineConfig, drained: Collection[str]) -> str:
    """What somebody changed on production at rest, and how it is settled; empty for nothing."""
    for slot in observed.production:
        replica = observed.replicas.get(slot.name)
        if replica is None or replica.state is not ReplicaState.WARM:
            continue
        if replica.config != active:
            return (
                f"{slot.name} runs config {replica.config.digest} and production's is "
                f"{active.digest}. It is left to serve, and nothing is tuned meanwhile: put "
                f"`baseline` back if it was changed, or end that engine, and it starts with "
                f"{active.digest}."
            )
        if slot.name in drained:
            return (
                f"{slot.name} was drained by hand. It is left so, and nothing is tuned meanwhile: "
                "let the gateway admit it again, or end that engine."
            )
    return ""


def _serving(observed: Observed) -> bool:
    """Whether new requests reach any production engine."""
    split = observed.split
    return split is not None and any(carries(observed, split, s) for s in observed.production)


def _slot_remedy(
    slot: Slot, observed: Observed, active: EngineConfig, recent_starts: int
) -> Intent | None:
    replica = observed.replicas.get(slot.name)
    if replica is None and recent_starts >= MAX_STARTS:
        return Hold(
            f"{slot.name} died {MAX_STARTS} times in {CRASH_WINDOW_S / 60:.0f} minutes and is "
            "not started again for now; its log says why."
        )
    if replica is None:
        return StartEngine(slot=slot.name, config=active)
    traffic = observed.split.slot(slot.name) if observed.split else None
    match replica.state:
        case ReplicaState.DEAD:
            if traffic is not None and traffic.admitted:
                return DrainSlot(slot=slot.name)
            return StopEngine(slot=slot.name, drain=False)
        case ReplicaState.STARTING | ReplicaState.STOPPING:
            return Hold(f"{slot.name} is {replica.state.value}.")
        case ReplicaState.WARM:
            if traffic is not None and not traffic.admitted:
                return AdmitSlot(slot=slot.name)
            return None
        case _:
            assert_never(replica.state)


def orphan(observed: Observed, study_running: bool, rollout: Rollout | None) -> Intent | None:
    """The move that empties a lane that neither a study nor a rollout uses; ``None`` otherwise.

    An engine outside production and the canary lane was rehearsed on a search lane: nobody sends it
    traffic.
    """
    if study_running or (rollout is not None and rollout.phase is not Phase.WAITING_APPROVAL):
        return None
    lanes = {slot.name for slot in (*observed.production, observed.canary)}
    for replica in observed.replicas.values():
        if replica.slot not in lanes and replica.state is not ReplicaState.STOPPING:
            return StopEngine(slot=replica.slot, drain=False)
    if observed.split is None:
        return None
    move = free_lane(observed, observed.split)
    return None if isinstance(move, Hold) else move
