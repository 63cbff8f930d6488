"""What people may order of a rollout, and what a failure orders by itself: a change of its state.

Nothing here looks at the world; the phases find what was ordered and act on it.
"""

from __future__ import annotations

from dataclasses import replace

from domain.errors import Conflict
from domain.rollout import Phase, Rollout


def approve(rollout: Rollout, now: float) -> Rollout:
    """The rollout after a person agreed to it."""
    if rollout.phase is not Phase.WAITING_APPROVAL:
        raise Conflict(f"The rollout is not waiting for approval: it is {rollout.phase.value}.")
    first = Phase.CONVERTING if rollout.plan.in_place else Phase.STARTING
    return entered(rollout, first, now, "approved")


def reject(rollout: Rollout, now: float, reason: str) -> Rollout:
    """The rollout after a person declined it, or its question expired."""
    if rollout.phase is not Phase.WAITING_APPROVAL:
        raise Conflict(f"The rollout is not waiting for approval: it is {rollout.phase.value}.")
    return entered(rollout, Phase.REJECTED, now, reason)


def pause(rollout: Rollout, reason: str) -> Rollout:
    """Stop a rollout from advancing; one that waits or goes back does not advance anyway."""
    stands = rollout.phase in (Phase.WAITING_APPROVAL, Phase.ROLLING_BACK)
    if rollout.paused or rollout.phase.ended or stands:
        return rollout
    return replace(rollout, paused=True, reason=reason)


def resume(rollout: Rollout) -> Rollout:
    """Let a paused rollout advance; its weight is set and baked anew, whatever was done by hand."""
    if not rollout.paused:
        return rollout
    return replace(rollout, paused=False, baking_since_s=None, stalled=False, reason="resumed")


def abort(rollout: Rollout, now: float, reason: str) -> Rollout:
    """End a rollout that is under way: one that waits for approval is rejected, any other goes
    back. An ended one is unchanged."""
    if rollout.phase.ended or rollout.phase is Phase.ROLLING_BACK:
        return rollout
    if rollout.phase is Phase.WAITING_APPROVAL:
        return entered(rollout, Phase.REJECTED, now, reason)
    return replace(entered(rollout, Phase.ROLLING_BACK, now, reason), paused=False)


def roll_back(rollout: Rollout, now: float, reason: str) -> Rollout:
    """As ``abort``, and a promoted one goes back too. Whether its candidate still is what
    production runs, the caller knows."""
    if rollout.phase is not Phase.PROMOTED:
        return abort(rollout, now, reason)
    back = entered(rollout, Phase.ROLLING_BACK, now, reason)
    return replace(back, promoted_s=rollout.phase_since_s)


def entered(rollout: Rollout, phase: Phase, now: float, reason: str) -> Rollout:
    """The rollout at the beginning of a phase."""
    return replace(
        rollout, phase=phase, phase_since_s=now, baking_since_s=None, stalled=False, reason=reason
    )
