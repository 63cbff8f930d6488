"""What the store says of the present, in plain lines, and orders left for the loop.

Works whether or not a controller runs. It moves nothing: an order is a row.
"""

from __future__ import annotations

import time
import uuid
from pathlib import Path

from agent.store import Store, UnitOfWork, open_store
from domain.approval import Command, CommandKind
from domain.errors import BadInput, NotFound
from domain.rollout import Phase, Rollout

LISTED = 5


def told(url: str) -> str:
    """Several lines: the rollout, the study, open questions and the last events."""
    with existing(url) as store, store.view() as uow:
        lines = []
        rollout, study = uow.rollouts.active(), uow.studies.running()
        if rollout is not None:
            plan = rollout.plan
            how = "in place" if plan.in_place else f"step of {plan.steps[rollout.step].weight} %"
            lines.append(
                f"Rollout {rollout.id} of config {rollout.candidate.digest}: "
                f"{rollout.phase.value}, {how}"
                f"{', paused' if rollout.paused else ''}. {rollout.reason}"
            )
        if study is not None:
            done = len(uow.trials.of(study.id))
            lines.append(f"Study {study.id}: {done} trials so far. {study.reason}")
        lines += [
            f"Waiting for approval: config {request.digest} (request {request.id})."
            for request in uow.approvals.open()
            if rollout is not None and rollout.phase is Phase.WAITING_APPROVAL
        ]
        if not lines:
            lines.append("Nothing is under way.")
        for event in reversed(uow.events.latest(8)):
            at = time.strftime("%H:%M:%S", time.localtime(event.at_s))
            lines.append(f"  {at} {event.sentence}")
    return "\n".join(lines)


def ordered(url: str, kind: CommandKind, actor: str, rollout_id: str = "") -> str:
    """Leave an order for the loop, bound to the rollout that it names where it is for one; the same
    order twice is one."""
    with existing(url) as store, store.work() as uow:
        rollout = named(uow, rollout_id) if kind.of_rollout else None
        wanted = Command(
            id=uuid.uuid4().hex,
            kind=kind,
            rollout_id=rollout.id if rollout else "",
            actor=actor,
            created_s=time.time(),
        )
        kept = uow.commands.add(wanted)
        uow.commit()
    what = kind.words
    if rollout is not None:
        what = f"{what} of {rollout.id} ({_briefly(rollout)})"
    fresh = kept.id == wanted.id
    return f"{what} {'ordered' if fresh else 'was ordered already'}; the loop takes it next."


def named(uow: UnitOfWork, rollout_id: str) -> Rollout:
    """The rollout of that id; without one that under way, else the latest. NotFound for none."""
    latest = uow.rollouts.latest(LISTED)
    if not latest:
        raise NotFound("This store holds no rollout yet.")
    if not rollout_id:
        return uow.rollouts.active() or latest[0]
    try:
        return uow.rollouts.get(rollout_id)
    except NotFound as error:
        known = ", ".join(rollout.id for rollout in latest)
        raise NotFound(f"{str(error).rstrip('.')}; the latest are {known}.") from None


def existing(url: str) -> Store:
    """The store, which the caller closes; BadInput where there is none yet."""
    path = Path(url.removeprefix("sqlite:///"))
    if url.startswith("sqlite:///") and not path.exists():
        raise BadInput(
            f"There is no store at {path}; run `serinus up` first, or set state_dir to its folder."
        )
    return open_store(url)


def _briefly(rollout: Rollout) -> str:
    return f"config {rollout.candidate.digest}, {rollout.phase.value}"
