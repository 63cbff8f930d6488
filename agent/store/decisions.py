"""What people decide: answers to approval requests, and commands. Each is used once.

Both are compare-and-swap rows: of several that answer or take one, exactly one wins. Nothing here
moves traffic; the loop reads these rows and acts.
"""

from __future__ import annotations

from dataclasses import replace

from sqlalchemy import Connection, exists, insert, select, update

from agent.store.codec import decode, encode
from agent.store.engine import inserting
from agent.store.models import ApprovalRow, CommandRow, RolloutRow
from domain.approval import Answer, ApprovalRequest, Command
from domain.errors import BadInput, Conflict, NotFound


class Approvals:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def add(self, request: ApprovalRequest) -> None:
        """Conflict where the id is taken, NotFound without the rollout."""
        self._connection.execute(
            insert(ApprovalRow).values(
                id=request.id,
                rollout_id=request.rollout_id,
                rollout_version=request.rollout_version,
                digest=request.digest,
                created_s=request.created_s,
                expires_s=request.expires_s,
                answer=request.answer.value if request.answer else None,
                document=encode(request),
            )
        )

    def get(self, request_id: str) -> ApprovalRequest:
        """NotFound where there is none."""
        query = select(ApprovalRow.document).where(ApprovalRow.id == request_id)
        row = self._connection.execute(query).one_or_none()
        if row is None:
            raise NotFound(f"There is no approval request {request_id!r}.")
        return decode(ApprovalRequest, row.document)

    def open(self) -> tuple[ApprovalRequest, ...]:
        """Requests without an answer, oldest first; one that has expired is still among them."""
        query = (
            select(ApprovalRow.document)
            .where(ApprovalRow.answer.is_(None))
            .order_by(ApprovalRow.created_s, ApprovalRow.id)
        )
        return tuple(
            decode(ApprovalRequest, row.document) for row in self._connection.execute(query)
        )

    def of(self, rollout_id: str) -> tuple[ApprovalRequest, ...]:
        """All requests of the rollout, oldest first."""
        query = (
            select(ApprovalRow.document)
            .where(ApprovalRow.rollout_id == rollout_id)
            .order_by(ApprovalRow.created_s, ApprovalRow.id)
        )
        return tuple(
            decode(ApprovalRequest, row.document) for row in self._connection.execute(query)
        )

    def answer(self, request_id: str, answer: Answer, actor: str, now: float) -> ApprovalRequest:
        """Answer an open request and return it as stored.

        Conflict, with the reason, where it was answered before, has expired at ``now``, or the
        rollout has left the version that the request is bound to; NotFound where there is none.
        """
        request = self.get(request_id)
        self._hold(request.rollout_id)
        answered = replace(request, answer=answer, answered_by=actor, answered_s=now)
        same_version = exists().where(
            RolloutRow.id == ApprovalRow.rollout_id,
            RolloutRow.version == ApprovalRow.rollout_version,
        )
        changed = self._connection.execute(
            update(ApprovalRow)
            .where(
                ApprovalRow.id == request_id,
                ApprovalRow.answer.is_(None),
                ApprovalRow.expires_s > now,
                same_version,
            )
            .values(answer=answer.value, document=encode(answered))
        )
        if changed.rowcount == 0:
            raise Conflict(_why_not(self.get(request_id), now))
        return answered

    def _hold(self, rollout_id: str) -> None:
        """Nobody changes the rollout until the end of this transaction."""
        query = select(RolloutRow.id).where(RolloutRow.id == rollout_id).with_for_update()
        self._connection.execute(query)


def _why_not(request: ApprovalRequest, now: float) -> str:
    if request.answer is not None:
        done = {Answer.APPROVE: "approved", Answer.REJECT: "rejected"}[request.answer]
        return f"The request was already {done} by {request.answered_by}."
    if request.expires_s <= now:
        return f"The request expired {now - request.expires_s:.0f} s ago; it can no longer be used."
    return "The rollout has changed since the request was made; look at the newest evidence."


class Commands:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def add(self, command: Command) -> Command:
        """Store the command, or return the pending one that orders the same: twice is once.

        BadInput where it names no rollout and has to, or names one and must not; NotFound where
        there is no such rollout.
        """
        self._refuse_unbound(command)
        pending = CommandRow.outcome.is_(None)
        new = inserting(self._connection, CommandRow).values(
            id=command.id,
            kind=command.kind.value,
            rollout_id=command.rollout_id,
            created_s=command.created_s,
            outcome=command.outcome,
            document=encode(command),
        )
        same = [CommandRow.kind, CommandRow.rollout_id]
        query = select(CommandRow.document).where(
            CommandRow.kind == command.kind.value,
            CommandRow.rollout_id == command.rollout_id,
            pending,
        )
        unless_pending = new.on_conflict_do_nothing(index_elements=same, index_where=pending)
        while True:
            added = self._connection.execute(unless_pending.returning(CommandRow.id))
            if added.one_or_none() is not None:
                return command
            row = self._connection.execute(query).one_or_none()
            if row is not None:  # else it was taken between the two statements
                return decode(Command, row.document)

    def pending(self) -> tuple[Command, ...]:
        """Commands that the loop has not taken, oldest first."""
        query = (
            select(CommandRow.document)
            .where(CommandRow.outcome.is_(None))
            .order_by(CommandRow.created_s, CommandRow.id)
        )
        return tuple(decode(Command, row.document) for row in self._connection.execute(query))

    def take(self, command_id: str, outcome: str) -> Command:
        """Mark a pending command as taken; Conflict where it was before, NotFound without it."""
        query = select(CommandRow.document).where(CommandRow.id == command_id)
        row = self._connection.execute(query).one_or_none()
        if row is None:
            raise NotFound(f"There is no command {command_id!r}.")
        taken = replace(decode(Command, row.document), outcome=outcome)
        changed = self._connection.execute(
            update(CommandRow)
            .where(CommandRow.id == command_id, CommandRow.outcome.is_(None))
            .values(outcome=outcome, document=encode(taken))
        )
        if changed.rowcount == 0:
            raise Conflict(f"The command {taken.kind.value} was taken before.")
        return taken

    def _refuse_unbound(self, command: Command) -> None:
        kind, rollout_id = command.kind, command.rollout_id
        if not kind.of_rollout:
            if rollout_id:
                raise BadInput(f"{kind.value} is no order for one rollout; leave rollout_id out.")
            return
        if not rollout_id:
            raise BadInput(f"{kind.value} is an order for one rollout; give its id as rollout_id.")
        query = select(RolloutRow.id).where(RolloutRow.id == rollout_id)
        if self._connection.execute(query).one_or_none() is None:
            raise NotFound(f"There is no rollout {rollout_id!r}.")
