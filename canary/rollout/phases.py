"""Each phase of a rollout: which state to store next, and the one move to make.

``advance`` is level-triggered: it compares what it wants with what is there and names the one move
that brings them closer, so a controller that was killed at any line continues by asking again.
It must not act, read a clock or remember anything; the loop acts, and stores what is returned.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple, assert_never

from canary.rollout.fleet import convert, first, free_lane, stand_in, stopped
from canary.rollout.observed import Observed, admitted, broken, carries, runs, up, warm
from canary.rollout.orders import abort, entered, pause
from domain.engine import EngineConfig
from domain.fleet import Replica, ReplicaState, Split
from domain.rollout import (
    AdmitSlot,
    Hold,
    Intent,
    Phase,
    Rollout,
    SetWeight,
    StallAction,
    StartEngine,
    most_weight,
)
from domain.verdict import Outcome, Verdict

# The phases in which the plan's steps, and so the number of replicas, still matter.
_PLANNED = (Phase.STARTING, Phase.PROGRESSING, Phase.CONVERTING)


class Advance(NamedTuple):
    """The state to store and the one move to make."""

    rollout: Rollout
    intent: Intent


class Failed(NamedTuple):
    """The rollout has to go back, and why."""

    why: str


def advance(rollout: Rollout, observed: Observed, verdict: Verdict | None, now: float) -> Advance:
    """The next state and one intent. ``verdict`` judges the step under way, where there is one."""
    split = observed.split
    if rollout.phase.ended:
        return Advance(rollout, Hold(f"The rollout has ended: {rollout.reason}"))
    if split is None:
        return Advance(rollout, Hold("The gateway cannot be read."))
    step = _step(rollout, observed, split, verdict, now)
    return _fail(rollout, observed, split, step.why, now) if isinstance(step, Failed) else step


def _step(
    rollout: Rollout, observed: Observed, split: Split, verdict: Verdict | None, now: float
) -> Advance | Failed:
    if rollout.phase in _PLANNED and (found := len(observed.production)) != rollout.plan.replicas:
        planned = rollout.plan.replicas
        return Failed(f"It was planned for {planned} production replicas, and there are {found}.")
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


def _starting(rollout: Rollout, observed: Observed, split: Split, now: float) -> Advance | Failed:
    slot, replica = observed.canary, observed.replicas.get(observed.canary.name)
    if replica is None or replica.state is ReplicaState.STOPPING:
        return _asking(rollout, observed, now)
    if replica.config != rollout.candidate:
        return _asking(rollout, observed, now)
    if replica.state is ReplicaState.DEAD:
        return Failed(f"The candidate did not start: {replica.detail}")
    if replica.state is ReplicaState.STARTING:
        if now - replica.started_s > rollout.plan.start_s:
            return Failed("The candidate was not warm in time.")
        return Advance(rollout, Hold("The candidate is starting."))
    if rollout.paused:
        return Advance(rollout, Hold(f"Paused: {rollout.reason}"))
    if not admitted(split, slot):
        # A weight that was left behind would fill the lane as soon as it is admitted.
        unloaded = SetWeight(weight=0) if split.weight != 0 else None
        return Advance(rollout, unloaded or AdmitSlot(slot=slot.name))
    if not up(split, slot):
        return Advance(rollout, Hold("The gateway has not seen the candidate healthy yet."))
    begun = entered(rollout, Phase.PROGRESSING, now, "the candidate is warm")
    return _set_step(begun, observed, split, 0)


def _asking(rollout: Rollout, observed: Observed, now: float) -> Advance | Failed:
    """Bring the candidate into the lane; what keeps it out for longer than an engine may take to
    start ends the rollout."""
    lane, replica = observed.canary.name, observed.replicas.get(observed.canary.name)
    asked_s = now if rollout.asked_since_s is None else rollout.asked_since_s
    if rollout.paused:
        rollout = replace(rollout, asked_since_s=None)
    elif now - asked_s > rollout.plan.start_s:
        return Failed(f"The lane was not to be had for {now - asked_s:.0f} s: {rollout.reason}")
    else:
        rollout = replace(rollout, asked_since_s=asked_s)
    if replica is None:
        if rollout.paused:
            return Advance(rollout, Hold("Paused."))
        return Advance(rollout, StartEngine(slot=lane, config=rollout.candidate))
    if replica.state is ReplicaState.STOPPING:
        return Advance(rollout, Hold("The lane's previous engine is stopping."))
    return Advance(rollout, stopped(replica))


def _progressing(
    rollout: Rollout, observed: Observed, split: Split, verdict: Verdict | None, now: float
) -> Advance | Failed:
    step, lane = rollout.plan.steps[rollout.step], observed.canary
    if why := broken(observed, split, lane, rollout.candidate):
        return Failed(f"The candidate failed at {split.weight} %: {why}")
    if verdict is not None and verdict.outcome is Outcome.FAIL:
        return Failed(f"Judged worse at {step.weight} %: {verdict.reason}")
    if rollout.paused:
        return Advance(rollout, Hold(f"Paused at {split.weight} %: {rollout.reason}"))
    if split.weight != step.weight:
        return _by_hand(rollout, _moved(step.weight, split), _weighed(step.weight, observed, split))
    if not admitted(split, lane):
        return _by_hand(rollout, "the lane was drained by hand", AdmitSlot(slot=lane.name))
    if rollout.baking_since_s is None or now < rollout.baking_since_s:
        # A clock that was set back tells nothing of how long it baked.
        return Advance(
            replace(rollout, baking_since_s=now), Hold(f"Baking at {step.weight} % begins.")
        )
    baked_s = now - rollout.baking_since_s
    if baked_s < step.bake_s:
        return Advance(
            rollout, Hold(f"Baking at {step.weight} %: {baked_s:.0f} of {step.bake_s:.0f} s.")
        )
    if verdict is None or verdict.outcome is Outcome.INCONCLUSIVE:
        return _stalled(rollout, verdict, baked_s)
    if rollout.step + 1 < len(rollout.plan.steps):
        return _set_step(rollout, observed, split, rollout.step + 1)
    done = f"baked at {step.weight} %: {verdict.reason}"
    return Advance(entered(rollout, Phase.CONVERTING, now, done), Hold(f"The candidate is {done}"))


def _stalled(rollout: Rollout, verdict: Verdict | None, baked_s: float) -> Advance | Failed:
    why = verdict.reason if verdict else "no verdict, metrics are missing."
    stalled = rollout.stalled or baked_s > rollout.plan.stall_s
    if stalled and rollout.plan.stall_action is StallAction.ROLL_BACK:
        return Failed(f"Inconclusive for {baked_s:.0f} s: {why}")
    held = Hold(f"Inconclusive after {baked_s:.0f} s: {why}")
    return Advance(replace(rollout, stalled=stalled), held)


def _converting(rollout: Rollout, observed: Observed, split: Split, now: float) -> Advance | Failed:
    lane, in_place = observed.canary, rollout.plan.in_place
    if not in_place and (why := broken(observed, split, lane, rollout.candidate)):
        return Failed(f"The lane failed while production was restarted: {why}")
    if why := _failed_production(rollout, observed, now):
        return Failed(why)
    kept = f"Paused: {rollout.reason}" if rollout.paused else None
    if not rollout.paused:
        wanted = 0 if in_place else most_weight(len(observed.production))
        if split.weight != wanted:
            return _by_hand(rollout, _moved(wanted, split), SetWeight(weight=wanted))
        if not in_place and not admitted(split, lane):
            return _by_hand(rollout, "the lane was drained by hand", AdmitSlot(slot=lane.name))
        rollout = _read_back(rollout, now)
    if move := convert(_led_to(rollout, observed), observed, split, kept):
        return Advance(rollout, move)
    if kept is not None:
        return Advance(rollout, Hold(kept))
    if in_place:
        unjudged = "restarted in place; nothing was judged under live traffic"
        return Advance(entered(rollout, Phase.PROMOTED, now, unjudged), Hold("Promoted."))
    return Advance(
        entered(rollout, Phase.RETURNING, now, "production runs the new config"),
        SetWeight(weight=0),
    )


def _led_to(rollout: Rollout, observed: Observed) -> EngineConfig:
    """The config that a replica which does not serve gets. In place no lane has shown the candidate
    to users: while it is paused before the first replica ran it, none does."""
    begun = any(runs(observed, slot, rollout.candidate) for slot in observed.production)
    unbegun = rollout.plan.in_place and rollout.paused and not begun
    return rollout.baseline if unbegun else rollout.candidate


def _failed_production(rollout: Rollout, observed: Observed, now: float) -> str | None:
    """Which replica does not come up, or stay up, with the candidate; ``None`` where none."""
    for slot in observed.production:
        replica = observed.replicas.get(slot.name)
        if replica is None or replica.config != rollout.candidate:
            continue
        if replica.state is ReplicaState.DEAD:
            return f"{slot.name} failed on the new config: {replica.detail}"
        if _late(rollout, replica, now):
            return f"{slot.name} was not warm in time."
    return None


def _returning(rollout: Rollout, observed: Observed, split: Split, now: float) -> Advance | Failed:
    for slot in observed.production:
        if why := broken(observed, split, slot, rollout.candidate):
            return Failed(f"Production failed on the new config: {why}")
    if rollout.paused:
        return Advance(rollout, Hold(f"Paused: {rollout.reason}"))
    if move := convert(rollout.candidate, observed, split, None):
        return Advance(rollout, move)
    if split.weight != 0:
        return _by_hand(rollout, _moved(0, split), SetWeight(weight=0))
    rollout = _read_back(rollout, now)
    if move := free_lane(observed, split):
        return Advance(rollout, move)
    return Advance(
        entered(rollout, Phase.PROMOTED, now, "promoted; the lane is free"), Hold("Promoted.")
    )


def _rolling_back(rollout: Rollout, observed: Observed, split: Split, now: float) -> Advance:
    """Production goes back replica by replica; the lane helps as long as that takes."""
    if move := _restore(rollout, observed, split):
        stalled = rollout.stalled or now - rollout.phase_since_s > rollout.plan.stall_s
        return Advance(replace(rollout, stalled=stalled), move)
    if split.weight != 0:
        return Advance(rollout, SetWeight(weight=0))
    if move := free_lane(observed, split):
        return Advance(rollout, move)
    return Advance(
        entered(rollout, Phase.ROLLED_BACK, now, rollout.reason),
        Hold(f"Rolled back: {rollout.reason}"),
    )


def _restore(rollout: Rollout, observed: Observed, split: Split) -> Intent | None:
    """The move that brings production back to the baseline; ``None`` where all of it serves so.

    In place it goes back as it came, without the lane. Else the weight of a lane that serves stays
    until then, for production could not carry the whole; it is raised only with the baseline, or
    with a candidate that production has begun to run. A replica that serves with neither config was
    started by hand, and is left as it is.
    """
    home, lane = rollout.baseline, observed.canary
    serving = [slot for slot in observed.production if carries(observed, split, slot)]
    away = [slot for slot in observed.production if runs(observed, slot, rollout.candidate)]
    if len(serving) == len(observed.production) and not away:
        return None
    if split.weight != 0 and not warm(observed, lane):
        return SetWeight(weight=0)
    by_hand = [slot for slot in serving if slot not in away and not runs(observed, slot, home)]
    if rollout.plan.in_place:
        return convert(home, observed, split, None, spared=by_hand)
    helps = warm(observed, lane) and up(split, lane) and (bool(away) or runs(observed, lane, home))
    needed = any(warm(observed, slot) for slot in away)
    lane_move = stand_in(home, rollout.candidate, observed, split) if helps or needed else None
    if helps and lane_move is not None:
        return lane_move
    kept = None if lane_move is None else "the lane does not carry its part yet."
    move = convert(home, observed, split, kept, spared=by_hand)
    return first([each for each in (move, lane_move) if each is not None])


def _set_step(rollout: Rollout, observed: Observed, split: Split, step: int) -> Advance:
    moved = replace(rollout, step=step, baking_since_s=None, stalled=False)
    return Advance(moved, _weighed(rollout.plan.steps[step].weight, observed, split))


def _weighed(weight: int, observed: Observed, split: Split) -> Intent:
    """Set the weight; a lower one only while all of production can take what the lane gives up."""
    out = [slot.name for slot in observed.production if not carries(observed, split, slot)]
    if out and weight < split.weight:
        return Hold(f"The weight stays at {split.weight} %: {out[0]} does not serve.")
    return SetWeight(weight=weight)


def _read_back(rollout: Rollout, now: float) -> Rollout:
    """The rollout that knows the weight of its phase to be in force."""
    return rollout if rollout.baking_since_s is not None else replace(rollout, baking_since_s=now)


def _by_hand(rollout: Rollout, found: str, wanted: Intent) -> Advance:
    """Pause where something that was in force was changed; make the move where it never was."""
    if rollout.baking_since_s is None:
        return Advance(rollout, wanted)
    return Advance(pause(rollout, found), Hold(f"Paused: {found}."))


def _moved(weight: int, split: Split) -> str:
    return f"the weight was changed by hand from {weight} % to {split.weight} %"


def _fail(rollout: Rollout, observed: Observed, split: Split, why: str, now: float) -> Advance:
    """Go back; where production can take all of the traffic, it does so in this very cycle."""
    back = abort(rollout, now, why)
    move = _rolling_back(back, observed, split, now).intent
    if move == SetWeight(weight=0):
        return Advance(back, move)
    return Advance(back, Hold(f"Rolling back. {why}"))


def _late(rollout: Rollout, replica: Replica, now: float) -> bool:
    starting = replica.state is ReplicaState.STARTING
    return starting and now - replica.started_s > rollout.plan.start_s
