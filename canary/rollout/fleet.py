"""The one move that brings engines nearer to where a phase wants them, with capacity kept.

A replica that serves is taken out only while all others serve and the lane carries the part that
then is missing. Moves are found from what is there, never from what was done before.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import assert_never

from canary.rollout.observed import Observed, admitted, carries, runs, up, warm
from domain.engine import EngineConfig
from domain.fleet import Replica, ReplicaState, Slot, Split
from domain.rollout import (
    AdmitSlot,
    DrainSlot,
    Hold,
    Intent,
    SetWeight,
    StartEngine,
    StopEngine,
    most_weight,
)


def first(moves: Sequence[Intent]) -> Intent | None:
    """The first move that changes something, else the first that waits: what has to be waited for
    keeps nothing else from being done."""
    acts = (move for move in moves if not isinstance(move, Hold))
    return next(acts, moves[0] if moves else None)


def convert(
    target: EngineConfig,
    observed: Observed,
    split: Split,
    kept: str | None,
    spared: Collection[Slot] = (),
) -> Intent | None:
    """The move that brings production nearer to ``target``; ``None`` where all of it serves so.

    Replicas that do not serve come first, whatever they ran: with them nothing is lost. ``kept``
    says why no replica that serves may be taken out, and is ``None`` while the lane carries its
    most, or where one may be missing. Those ``spared`` are left as they are.
    """
    out = [slot for slot in observed.production if not carries(observed, split, slot)]
    if out:
        return first([_brought_in(slot, target, observed, split, kept) for slot in out])
    others = [slot for slot in observed.production if slot not in spared]
    old = [slot for slot in others if not runs(observed, slot, target)]
    if not old:
        return None
    return DrainSlot(slot=old[0].name) if kept is None else _waits(old[0], kept)


def stand_in(
    target: EngineConfig, other: EngineConfig, observed: Observed, split: Split
) -> Intent | None:
    """The move that makes the lane carry the most it can; ``None`` where it does.

    An engine of the lane that can carry may do so with ``other`` too, which production has begun to
    run; any other engine, such as one that was rehearsed, gives way to one with ``target``.
    """
    lane, most = observed.canary, most_weight(len(observed.production))
    replica = observed.replicas.get(lane.name)
    if replica is None:
        return StartEngine(slot=lane.name, config=target)
    if replica.state is ReplicaState.STOPPING:
        return Hold("The lane is draining and stopping.")
    if replica.state is ReplicaState.DEAD or (
        replica.config != target
        and not (replica.config == other and _serves(lane, observed, split))
    ):
        return _taken_out(replica, lane, split)
    if replica.state is ReplicaState.STARTING:
        return Hold("The lane is starting, to stand in for production.")
    if split.weight > most:
        return SetWeight(weight=most)
    if not admitted(split, lane):
        return AdmitSlot(slot=lane.name)
    if not up(split, lane):
        return Hold("The gateway has not seen the lane healthy yet.")
    if split.weight != most:
        return SetWeight(weight=most)
    return None


def free_lane(observed: Observed, split: Split) -> Intent | None:
    """The one move that empties the canary lane; ``None`` if it is empty."""
    lane = observed.canary
    if admitted(split, lane):
        return DrainSlot(slot=lane.name)
    replica = observed.replicas.get(lane.name)
    if replica is None:
        return None
    if replica.state is ReplicaState.STOPPING:
        return Hold("The lane is draining and stopping.")
    return stopped(replica)


def stopped(replica: Replica) -> StopEngine:
    return StopEngine(slot=replica.slot, drain=replica.state is not ReplicaState.DEAD)


def _brought_in(
    slot: Slot, target: EngineConfig, observed: Observed, split: Split, kept: str | None
) -> Intent:
    """The move that lets a slot which does not serve serve with ``target``."""
    replica = observed.replicas.get(slot.name)
    if replica is None:
        return StartEngine(slot=slot.name, config=target)
    match replica.state:
        case ReplicaState.STOPPING:
            return Hold(f"{slot.name} is draining and stopping.")
        case ReplicaState.DEAD:
            return _taken_out(replica, slot, split)
        case ReplicaState.STARTING:
            if replica.config == target:
                return Hold(f"{slot.name} is starting.")
            return _taken_out(replica, slot, split)
        case ReplicaState.WARM:
            if replica.config == target:
                if admitted(split, slot):
                    return Hold(f"The gateway has not seen {slot.name} healthy yet.")
                return AdmitSlot(slot=slot.name)
            return _turned(replica, slot, observed, split, kept)
        case _:
            assert_never(replica.state)


def _turned(
    replica: Replica, slot: Slot, observed: Observed, split: Split, kept: str | None
) -> Intent:
    """The move for a warm engine that is out and has to give way to one with another config.

    One that is only not admitted could serve: it does so again where the others do not suffice.
    """
    lacking = kept
    if lacking is None and up(split, slot):
        lacking = _lacking(slot, observed, split)
    if lacking is None and admitted(split, slot):
        lacking = _under_way(slot, observed)
    if lacking is None:
        return _taken_out(replica, slot, split)
    if up(split, slot):
        return AdmitSlot(slot=slot.name)
    return _waits(slot, lacking)


def _lacking(without: Slot, observed: Observed, split: Split) -> str | None:
    """Which other replica does not serve; ``None`` where all do."""
    others = (slot for slot in observed.production if slot is not without)
    out = next((slot for slot in others if not carries(observed, split, slot)), None)
    return None if out is None else f"{out.name} does not serve."


def _under_way(without: Slot, observed: Observed) -> str | None:
    """Which other replica starts or stops, and so is soon over it; ``None`` where none does."""
    passing = (ReplicaState.STARTING, ReplicaState.STOPPING)
    for slot in observed.production:
        replica = observed.replicas.get(slot.name)
        if slot is not without and replica is not None and replica.state in passing:
            return f"{slot.name} is {replica.state.value}."
    return None


def _waits(slot: Slot, why: str) -> Hold:
    return Hold(f"{slot.name} is not taken out yet: {why}")


def _taken_out(replica: Replica, slot: Slot, split: Split) -> Intent:
    return DrainSlot(slot=slot.name) if admitted(split, slot) else stopped(replica)


def _serves(slot: Slot, observed: Observed, split: Split) -> bool:
    return warm(observed, slot) and up(split, slot)
