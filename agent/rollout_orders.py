"""Orders for one rollout: each is bound to its id, and ordered again it changes nothing.

Only rows are written here; the rollout they change is driven by the loop.
"""

from __future__ import annotations

from agent import active_config, pausing
from agent.store.unit_of_work import UnitOfWork
from canary import rollout as rollouts
from domain.approval import Command, CommandKind
from domain.errors import InvariantViolation
from domain.rollout import Phase, Rollout


def obey(uow: UnitOfWork, command: Command, now: float) -> str:
    """Change the rollout as ordered, in the caller's transaction; the outcome in words."""
    rollout, why = uow.rollouts.get(command.rollout_id), f"{command.actor} asked for it."
    match command.kind:
        case CommandKind.ROLLOUT_PAUSE:
            changed, done = rollouts.pause(rollout, f"by {command.actor}"), "stays at its weight."
            if pausing.parted(uow, rollout) and rollout.paused:
                return f"config {rollout.candidate.digest} stays when the controller goes on."
        case CommandKind.ROLLOUT_RESUME:
            changed, done = rollouts.resume(rollout), "goes on, and its step is baked anew."
            pausing.parted(uow, rollout)
        case CommandKind.ROLLOUT_ROLLBACK if rollout.phase is Phase.PROMOTED:
            return _taken_back(uow, rollout, command.actor, now)
        case CommandKind.ROLLOUT_ABORT | CommandKind.ROLLOUT_ROLLBACK:
            changed = rollouts.abort(rollout, now, why)
            rejected = changed.phase is Phase.REJECTED
            home = f"goes back to config {rollout.baseline.digest}."
            done = "is rejected." if rejected else home
            if rejected:
                done += _still_promoted(uow, command.kind)
        case _:
            raise InvariantViolation(f"{command.kind.value} is no order for one rollout.")
    if changed == rollout:
        also = _still_promoted(uow, command.kind) if rollout.phase.ended else ""
        return f"nothing was to be done, {_why_not(rollout, command.kind)}{also}"
    uow.rollouts.save(changed)
    return f"config {rollout.candidate.digest} {done}"


def _taken_back(uow: UnitOfWork, promoted: Rollout, actor: str, now: float) -> str:
    """Send a promoted rollout back, where its candidate still is what production runs."""
    newer, last = uow.rollouts.active(), uow.rollouts.promoted_last()
    if newer is not None and newer.phase is Phase.ROLLING_BACK:
        return f"nothing was done, for rollout {newer.id} goes back; order it when that has ended."
    if newer is not None and newer.phase is not Phase.WAITING_APPROVAL:
        return (
            f"nothing was done, for rollout {newer.id} began after it and is under way; "
            f"`serinus rollout abort {newer.id}` ends that one first."
        )
    current = active_config.stored(uow)
    if last is None or last.id != promoted.id or current != promoted.candidate:
        runs = "another config" if current is None else f"config {current.digest}"
        return f"nothing was to be done, production runs {runs} by now."
    back = f"production goes back to config {promoted.baseline.digest}."
    if newer is not None:
        uow.rollouts.save(rollouts.reject(newer, now, f"{actor} took back what it was to follow."))
        back = f"{back} Rollout {newer.id}, which waited to follow it, is rejected."
    uow.rollouts.save(rollouts.roll_back(promoted, now, f"{actor} asked for it."))
    active_config.changed(uow, promoted.baseline, now)
    return back


def _still_promoted(uow: UnitOfWork, kind: CommandKind) -> str:
    """Which order takes back what production runs, where a roll back was meant for another one."""
    last = uow.rollouts.promoted_last()
    if kind is not CommandKind.ROLLOUT_ROLLBACK or last is None:
        return ""
    if active_config.stored(uow) != last.candidate:
        return ""
    runs = f"Production runs config {last.candidate.digest}"
    return f" {runs}; `serinus rollout rollback {last.id}` takes that back."


def _why_not(rollout: Rollout, kind: CommandKind) -> str:
    """Why an order changes nothing of the rollout."""
    if rollout.phase is Phase.PROMOTED and kind is CommandKind.ROLLOUT_ABORT:
        return f"it is promoted; `serinus rollout rollback {rollout.id}` takes it back."
    if rollout.phase.ended:
        return f"it has ended as {rollout.phase.value}."
    if kind is CommandKind.ROLLOUT_RESUME:
        return "it is not paused."
    if rollout.phase is Phase.ROLLING_BACK:
        return "it goes back already."
    if rollout.phase is Phase.WAITING_APPROVAL:
        return "it waits for approval and does not move before."
    return "it is paused already."
