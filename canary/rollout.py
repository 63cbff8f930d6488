"""What a rollout does next: a pure step from its stored state and the world as observed.

``advance`` is level-triggered: it compares what it wants with what is there and names the one move
that brings them closer, so a controller that was killed at any line continues by asking again.
It must not act, read a clock or remember anything; the loop acts, and stores what is returned.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple, assert_never

from domain.engine import EngineConfig
from domain.errors import Conflict
from domain.fleet import Replica, ReplicaState, Slot, Split
from domain.rollout import (
    AdmitSlot,
    DrainSlot,
    Hold,
    Intent,
    Phase,
    Rollout,
    SetWeight,
    StallAction,
    StartEngine,
    StopEngine,
)
from domain.verdict import Outcome, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """The world in one cycle: replicas by slot name, and the split, ``None`` if unreadable."""

    production: tuple[Slot, ...]
    canary: Slot
    replicas: Mapping[str, Replica]
    split: Split | None


class Advance(NamedTuple):
    """The state to store and the one move to make."""

    rollout: Rollout
    intent: Intent


def advance(rollout: Rollout, observed: Observed, verdict: Verdict | None, now: float) -> Advance:
    """The next state and one intent. ``verdict`` judges the step under way, where there is one."""
    split = observed.split
    if rollout.phase.ended:
        return Advance(rollout, Hold(f"The rollout has ended: {rollout.reason}"))
    if split is None:
        return Advance(rollout, Hold("The gateway cannot be read."))
    match rollout.phase:
        case Phase.WAITING_APPROVAL:
            return Advance(rollout, Hold("Waiting for approval."))
        case Phase.STARTING:
            return _starting(rollout, observed, split, now)
        case Phase.PROGRESSING:
            return _progressing(rollout, observed, split, verdict, now)
        case Phase.CONVERTING:
            return _converting(rollout, observed, split, now)
        case Phase.RETURNING:
            return _returning(rollout, observed, split, now)
        case Phase.ROLLING_BACK:
            return _rolling_back(rollout, observed, split, now)
        case Phase.PROMOTED | Phase.ROLLED_BACK | Phase.REJECTED:
            return Advance(rollout, Hold("The rollout has ended."))
        case _:
            assert_never(rollout.phase)


def approve(rollout: Rollout, now: float) -> Rollout:
    """The rollout after a person agreed to it."""
    if rollout.phase is not Phase.WAITING_APPROVAL:
        raise Conflict(f"The rollout is not waiting for approval: it is {rollout.phase.value}.")
    return _to(rollout, Phase.STARTING, now, "approved")


def reject(rollout: Rollout, now: float, reason: str) -> Rollout:
    """The rollout after a person declined it, or its question expired."""
    if rollout.phase is not Phase.WAITING_APPROVAL:
        raise Conflict(f"The rollout is not waiting for approval: it is {rollout.phase.value}.")
    return _to(rollout, Phase.REJECTED, now, reason)


def pause(rollout: Rollout, reason: str) -> Rollout:
    """Stop a rollout from advancing; one that waits or goes back does not advance anyway."""
    stands = rollout.phase in (Phase.WAITING_APPROVAL, Phase.ROLLING_BACK)
    if rollout.paused or rollout.phase.ended or stands:
        return rollout
    return replace(rollout, paused=True, reason=reason)


def resume(rollout: Rollout) -> Rollout:
    """Let a paused rollout advance; its step is set and baked anew, whatever was done by hand."""
    if not rollout.paused:
        return rollout
    return replace(rollout, paused=False, baking_since_s=None, reason="resumed")


def roll_back(rollout: Rollout, now: float, reason: str) -> Rollout:
    """Send the rollout back; one that waits for approval is rejected, an ended one unchanged."""
    if rollout.phase.ended or rollout.phase is Phase.ROLLING_BACK:
        return rollout
    if rollout.phase is Phase.WAITING_APPROVAL:
        return _to(rollout, Phase.REJECTED, now, reason)
    return replace(_to(rollout, Phase.ROLLING_BACK, now, reason), paused=False)


def _to(rollout: Rollout, phase: Phase, now: float, reason: str) -> Rollout:
    return replace(rollout, phase=phase, phase_since_s=now, baking_since_s=None, reason=reason)


def _starting(rollout: Rollout, observed: Observed, split: Split, now: float) -> Advance:
    slot, replica = observed.canary, observed.replicas.get(observed.canary.name)
    if replica is None:
        if rollout.paused:
            return Advance(rollout, Hold("Paused."))
        return Advance(rollout, StartEngine(slot=slot.name, config=rollout.candidate))
    if replica.state is ReplicaState.STOPPING:
        return Advance(rollout, Hold("The lane's previous engine is stopping."))
    if replica.config != rollout.candidate:
        return Advance(rollout, _stop(replica))
    if replica.state is ReplicaState.DEAD:
        return _fail(rollout, now, f"The candidate did not start: {replica.detail}")
    if replica.state is ReplicaState.STARTING:
        if now - replica.started_s > rollout.plan.start_s:
            return _fail(rollout, now, "The candidate was not warm in time.")
        return Advance(rollout, Hold("The candidate is starting."))
    if not _admitted(split, slot.name):
        return Advance(rollout, AdmitSlot(slot=slot.name))
    if not _up(split, slot.name):
        return Advance(rollout, Hold("The gateway has not seen the candidate healthy yet."))
    return _set_step(_to(rollout, Phase.PROGRESSING, now, "the candidate is warm"), 0)


def _progressing(
    rollout: Rollout, observed: Observed, split: Split, verdict: Verdict | None, now: float
) -> Advance:
    step = rollout.plan.steps[rollout.step]
    if broken := _broken(observed, split, observed.canary, rollout.candidate):
        return _fail(rollout, now, f"The candidate failed at {split.weight} %: {broken}")
    if verdict is not None and verdict.outcome is Outcome.FAIL:
        return _fail(rollout, now, f"Judged worse at {step.weight} %: {verdict.reason}")
    if rollout.paused:
        return Advance(rollout, Hold(f"Paused at {split.weight} %: {rollout.reason}"))
    if split.weight != step.weight:
        if rollout.baking_since_s is None:
            return Advance(rollout, SetWeight(weight=step.weight))
        found = f"the weight was changed by hand from {step.weight} % to {split.weight} %"
        return Advance(pause(rollout, found), Hold(f"Paused: {found}."))
    if rollout.baking_since_s is None:
        return Advance(
            replace(rollout, baking_since_s=now), Hold(f"Baking at {step.weight} % begins.")
        )
    baked_s = now - rollout.baking_since_s
    if baked_s < step.bake_s:
        return Advance(
            rollout, Hold(f"Baking at {step.weight} %: {baked_s:.0f} of {step.bake_s:.0f} s.")
        )
    if verdict is None or verdict.outcome is Outcome.INCONCLUSIVE:
        return _stalled(rollout, verdict, baked_s, now)
    if rollout.step + 1 < len(rollout.plan.steps):
        return _set_step(rollout, rollout.step + 1)
    done = f"baked at {step.weight} %: {verdict.reason}"
    return Advance(_to(rollout, Phase.CONVERTING, now, done), Hold(f"The candidate is {done}"))


def _stalled(rollout: Rollout, verdict: Verdict | None, baked_s: float, now: float) -> Advance:
    why = verdict.reason if verdict else "no verdict, metrics are missing."
    if baked_s > rollout.plan.stall_s and rollout.plan.stall_action is StallAction.ROLL_BACK:
        return _fail(rollout, now, f"Inconclusive for {baked_s:.0f} s: {why}")
    return Advance(rollout, Hold(f"Inconclusive after {baked_s:.0f} s: {why}"))


def _converting(rollout: Rollout, observed: Observed, split: Split, now: float) -> Advance:
    if broken := _broken(observed, split, observed.canary, rollout.candidate):
        return _fail(rollout, now, f"The lane failed while production was restarted: {broken}")
    for slot in observed.production:
        replica = observed.replicas.get(slot.name)
        if replica is not None and replica.config == rollout.candidate:
            if replica.state is ReplicaState.DEAD:
                return _fail(rollout, now, f"Production did not start anew: {replica.detail}")
            if _late(rollout, replica, now):
                return _fail(rollout, now, "Production was not warm in time.")
        if rollout.paused and replica is not None and replica.config == rollout.baseline:
            return Advance(rollout, Hold(f"Paused before restarting {slot.name}."))
        if move := _toward(slot, rollout.candidate, observed, split):
            return Advance(rollout, move)
    return Advance(
        _to(rollout, Phase.RETURNING, now, "production runs the new config"), SetWeight(weight=0)
    )


def _returning(rollout: Rollout, observed: Observed, split: Split, now: float) -> Advance:
    for slot in observed.production:
        if broken := _broken(observed, split, slot, rollout.candidate):
            return _fail(rollout, now, f"Production failed on the new config: {broken}")
    if split.weight != 0:
        return Advance(rollout, SetWeight(weight=0))
    if move := free_lane(observed, split):
        return Advance(rollout, move)
    return Advance(
        _to(rollout, Phase.PROMOTED, now, "promoted; the lane is free"), Hold("Promoted.")
    )


def _rolling_back(rollout: Rollout, observed: Observed, split: Split, now: float) -> Advance:
    lane = observed.canary
    lane_carries = _broken(observed, split, lane, rollout.candidate) is None
    for slot in observed.production:
        replica = observed.replicas.get(slot.name)
        converted = replica is not None and replica.config != rollout.baseline
        serves = converted and replica is not None and replica.state is ReplicaState.WARM
        if serves and lane_carries and not _admitted(split, lane.name):
            return Advance(rollout, AdmitSlot(slot=lane.name))
        if serves and lane_carries and split.weight != 100:
            return Advance(rollout, SetWeight(weight=100))
        if move := _toward(slot, rollout.baseline, observed, split):
            return Advance(rollout, move)
    if split.weight != 0:
        return Advance(rollout, SetWeight(weight=0))
    if move := free_lane(observed, split):
        return Advance(rollout, move)
    return Advance(
        _to(rollout, Phase.ROLLED_BACK, now, rollout.reason), Hold(f"Rolled back: {rollout.reason}")
    )


def _set_step(rollout: Rollout, step: int) -> Advance:
    moved = replace(rollout, step=step, baking_since_s=None)
    return Advance(moved, SetWeight(weight=rollout.plan.steps[step].weight))


def _fail(rollout: Rollout, now: float, reason: str) -> Advance:
    return Advance(roll_back(rollout, now, reason), Hold(f"Rolling back. {reason}"))


def _toward(slot: Slot, target: EngineConfig, observed: Observed, split: Split) -> Intent | None:
    """The one move that brings a production slot to ``target``, admitted; ``None`` if it is."""
    replica = observed.replicas.get(slot.name)
    if replica is None:
        return StartEngine(slot=slot.name, config=target)
    if replica.state is ReplicaState.STOPPING:
        return Hold(f"{slot.name} is draining and stopping.")
    if replica.config != target or replica.state is ReplicaState.DEAD:
        if _admitted(split, slot.name):
            return DrainSlot(slot=slot.name)
        return _stop(replica)
    if replica.state is ReplicaState.STARTING:
        return Hold(f"{slot.name} is starting.")
    if not _admitted(split, slot.name):
        return AdmitSlot(slot=slot.name)
    if not _up(split, slot.name):
        return Hold(f"The gateway has not seen {slot.name} healthy yet.")
    return None


def free_lane(observed: Observed, split: Split) -> Intent | None:
    """The one move that empties the canary lane; ``None`` if it is empty."""
    lane = observed.canary.name
    if _admitted(split, lane):
        return DrainSlot(slot=lane)
    replica = observed.replicas.get(lane)
    if replica is None:
        return None
    if replica.state is ReplicaState.STOPPING:
        return Hold("The lane is draining and stopping.")
    return _stop(replica)


def _stop(replica: Replica) -> StopEngine:
    return StopEngine(slot=replica.slot, drain=replica.state is not ReplicaState.DEAD)


def _broken(observed: Observed, split: Split, slot: Slot, config: EngineConfig) -> str | None:
    """Why the engine in ``slot`` cannot carry traffic with ``config``; ``None`` if it can."""
    replica = observed.replicas.get(slot.name)
    if replica is None:
        return f"there is no engine in {slot.name}."
    if replica.config != config:
        return f"{slot.name} runs another config."
    if replica.state is not ReplicaState.WARM:
        return f"{slot.name} is {replica.state.value}. {replica.detail}".strip()
    if not _up(split, slot.name):
        return f"the gateway finds {slot.name} unhealthy."
    return None


def _late(rollout: Rollout, replica: Replica, now: float) -> bool:
    starting = replica.state is ReplicaState.STARTING
    return starting and now - replica.started_s > rollout.plan.start_s


def _admitted(split: Split, slot: str) -> bool:
    traffic = split.slot(slot)
    return traffic is not None and traffic.admitted


def _up(split: Split, slot: str) -> bool:
    traffic = split.slot(slot)
    return traffic is not None and traffic.up
