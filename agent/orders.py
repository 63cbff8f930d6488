"""What people decided since the last cycle: commands, and answers to questions, become state.

Only rows are written here; the rollout they change is driven by the loop.
"""

from __future__ import annotations

from agent import pausing, rollout_orders
from agent.leadership import Leadership
from agent.store.unit_of_work import UnitOfWork
from canary import rollout as rollouts
from domain.approval import Answer, ApprovalRequest, Command, CommandKind
from domain.events import Event, EventKind
from domain.rollout import Phase, Rollout

TUNE_ASKED = "tune_asked_by"
TAKEN_UP_S = 600.0
"""Within so many seconds an approval counts, though its question expires meanwhile."""


class Orders:
    """Takes each order once, in one transaction with what it changes."""

    def __init__(self, leadership: Leadership) -> None:
        self._leadership = leadership

    def take(self, now: float) -> tuple[Event, ...]:
        """Apply all pending orders; the events to tell people of."""
        with self._leadership.work() as uow:
            events = [*self._commands(uow, now), *self._answers(uow, now)]
            for event in events:
                uow.events.add(event)
            if events:
                uow.commit()
        return tuple(events)

    def _commands(self, uow: UnitOfWork, now: float) -> list[Event]:
        events = []
        for command in uow.commands.pending():
            outcome = self._obey(uow, command, now)
            uow.commands.take(command.id, outcome)
            what, about = command.kind.words, command.rollout_id
            ordered = f"{what} of {about}" if about else what
            events.append(
                Event(
                    at_s=now,
                    kind=EventKind.COMMAND_TAKEN,
                    sentence=f"{command.actor} ordered {ordered}: {outcome}",
                    subject=about or command.id,
                )
            )
        return events

    def _obey(self, uow: UnitOfWork, command: Command, now: float) -> str:
        match command.kind:
            case CommandKind.TUNE:
                uow.state.set(TUNE_ASKED, command.actor)
                return "a study begins as soon as the lane is free."
            case CommandKind.PAUSE:
                return _pause(uow, command.actor)
            case CommandKind.RESUME:
                return _resume(uow)
            case _:
                return rollout_orders.obey(uow, command, now)

    def _answers(self, uow: UnitOfWork, now: float) -> list[Event]:
        active = uow.rollouts.active()
        if active is None or active.phase is not Phase.WAITING_APPROVAL:
            return []
        request = next(iter(uow.approvals.of(active.id)[::-1]), None)
        if request is None:
            return []
        bound = (request.digest, request.rollout_version)
        if request.answer is Answer.APPROVE and _lapsed(request, now):
            changed = rollouts.reject(
                active, now, "it was approved on evidence that is old by now."
            )
            sentence = (
                f"{request.answered_by} approved config {request.digest}, and no controller took "
                "it up before the question expired."
            )
        elif request.answer is Answer.APPROVE and bound == (
            active.candidate.digest,
            active.version,
        ):
            changed = rollouts.approve(active, now)
            if pausing.paused(uow):
                changed = pausing.standing(uow, changed, "the controller is paused")
            sentence = f"{request.answered_by} approved config {request.digest}."
        elif request.answer is Answer.REJECT:
            changed = rollouts.reject(active, now, f"{request.answered_by} declined it.")
            sentence = f"{request.answered_by} rejected config {request.digest}."
        elif request.answer is not None or now >= request.expires_s:
            changed = rollouts.reject(active, now, "nobody approved it in time.")
            sentence = f"The question about config {request.digest} expired."
        else:
            return []
        _save(uow, active, changed)
        kind = EventKind.APPROVAL_ANSWERED
        return [Event(at_s=now, kind=kind, sentence=sentence, subject=active.id)]


def _lapsed(request: ApprovalRequest, now: float) -> bool:
    """Whether an answer was left lying beyond the question's time, as while no controller ran."""
    answered_s = request.answered_s
    return now >= request.expires_s and answered_s is not None and now - answered_s > TAKEN_UP_S


def _pause(uow: UnitOfWork, actor: str) -> str:
    was, active = pausing.paused(uow), uow.rollouts.active()
    pausing.begin(uow)
    stands = active and pausing.standing(uow, active, f"by {actor}")
    _save(uow, active, stands)
    if was and stands == active:
        return "nothing was to be done, the controller is paused already."
    return "nothing new begins and a rollout stays at its weight."


def _resume(uow: UnitOfWork) -> str:
    was, active = pausing.paused(uow), uow.rollouts.active()
    goes_on = active and pausing.going_on(uow, active)
    _save(uow, active, goes_on)
    pausing.end(uow)
    said = "the controller goes on."
    if not was and goes_on == active:
        said = "nothing was to be done, the controller is not paused."
    if goes_on is not None and goes_on.paused:
        return f"{said} Rollout {goes_on.id} was paused by itself and stays so."
    return said


def _save(uow: UnitOfWork, before: Rollout | None, after: Rollout | None) -> None:
    if before is not None and after is not None and after != before:
        uow.rollouts.save(after)
