"""Who may act, and what was begun: the lease with its fencing token, and the ledger of actions.

An action's intent is committed before the effect and its outcome after it, so that a controller
killed between the two finds it among the unfinished ones. Nothing here performs an action.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

from sqlalchemy import Connection, func, insert, select, update

from agent.store.models import ActionRow, LeaseRow
from domain.errors import Conflict, LeaseLost, NotFound

DONE = "done"
"""The outcome of an action that was carried out."""


class _Held(NamedTuple):
    holder: str
    token: int
    expires_s: float


class Lease:
    """The right to act, held by one controller at a time.

    ``holder`` must differ between any two processes, also between a process and its successor.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def acquire(self, holder: str, now: float, ttl_s: float) -> int | None:
        """Take or renew the lease until ``now + ttl_s``; ``None`` while another holds it.

        The fencing token rises with each change of holder; renewing keeps it.
        """
        held = self._current()
        if held.holder == holder:
            token = held.token
        elif held.expires_s <= now:
            token = held.token + 1
        else:
            return None
        self._connection.execute(
            update(LeaseRow).values(holder=holder, token=token, expires_s=now + ttl_s)
        )
        return token

    def release(self, token: int) -> None:
        """Give the lease up, so that a successor need not wait; nothing if it is not held."""
        self._connection.execute(
            update(LeaseRow).where(LeaseRow.token == token).values(holder="", expires_s=0.0)
        )

    def require(self, token: int) -> None:
        """LeaseLost where another holder has come after the token; locks out such a change."""
        if self._current().token != token:
            raise LeaseLost("Another controller holds the lease; nothing was written.")

    def is_current(self, token: int) -> bool:
        """Whether nobody has come after the token by now; waits for nobody."""
        return self._connection.execute(select(LeaseRow.token)).scalar_one() == token

    def _current(self) -> _Held:
        query = select(LeaseRow.holder, LeaseRow.token, LeaseRow.expires_s).with_for_update()
        return _Held(*self._connection.execute(query).one())


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """An effect that was intended at ``began_s`` (Unix seconds); ``outcome`` once it is known."""

    id: int
    intent: str
    subject: str
    began_s: float
    outcome: str | None = None
    ended_s: float | None = None


class Actions:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def begin(self, intent: str, subject: str, now: float) -> int:
        """Record an intent and return its id; commit before acting on it."""
        done = self._connection.execute(
            insert(ActionRow)
            .values(intent=intent, subject=subject, began_s=now)
            .returning(ActionRow.id)
        )
        return done.scalar_one()

    def finish(self, action_id: int, outcome: str, now: float) -> None:
        """Record what came of it; Conflict where that was done before, NotFound without it."""
        changed = self._connection.execute(
            update(ActionRow)
            .where(ActionRow.id == action_id, ActionRow.outcome.is_(None))
            .values(outcome=outcome, ended_s=now)
        )
        if changed.rowcount == 0:
            query = select(ActionRow.id).where(ActionRow.id == action_id)
            if self._connection.execute(query).one_or_none() is None:
                raise NotFound(f"There is no action {action_id}.")
            raise Conflict(f"The outcome of action {action_id} was recorded before.")

    def unfinished(self) -> tuple[Action, ...]:
        """Intents without an outcome, oldest first."""
        query = (
            select(ActionRow.id, ActionRow.intent, ActionRow.subject, ActionRow.began_s)
            .where(ActionRow.outcome.is_(None))
            .order_by(ActionRow.id)
        )
        return tuple(
            Action(id=row.id, intent=row.intent, subject=row.subject, began_s=row.began_s)
            for row in self._connection.execute(query)
        )

    def last(self, intents: Collection[str]) -> Action | None:
        """The one of these intents that was begun last; ``None`` where none ever was."""
        query = (
            select(ActionRow.__table__)
            .where(ActionRow.intent.in_(intents))
            .order_by(ActionRow.id.desc())
            .limit(1)
        )
        row = self._connection.execute(query).one_or_none()
        if row is None:
            return None
        return Action(
            id=row.id,
            intent=row.intent,
            subject=row.subject,
            began_s=row.began_s,
            outcome=row.outcome,
            ended_s=row.ended_s,
        )

    def done(self, intent: str, subject: str, since_s: float, until_s: float) -> int:
        """How often exactly this was carried out for the subject; begun within both, in Unix
        seconds."""
        query = (
            select(func.count())
            .select_from(ActionRow)
            .where(
                ActionRow.intent == intent,
                ActionRow.subject == subject,
                ActionRow.outcome == DONE,
                ActionRow.began_s.between(since_s, until_s),
            )
        )
        return self._connection.execute(query).scalar_one()
