"""One transaction over the tables, and the store that opens it.

A unit of work writes nothing unless ``commit`` is called. It belongs to one thread, should last
milliseconds, and no effect in the outer world happens inside it.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

from sqlalchemy import Connection, Engine

from agent.store.decisions import Approvals, Commands
from agent.store.engine import WRITING, connect
from agent.store.ledger import Actions, Lease
from agent.store.repositories import Events, Rollouts, State, Studies, Trials, Verdicts
from agent.store.schema import refuse_other_schema
from agent.store.spending import LanguageSpending
from domain.errors import InvariantViolation


class UnitOfWork:
    """Repositories on one connection: ``with store.work() as uow: … uow.commit()``.

    Leaving the block without a commit, or by an exception, leaves the database as it was. After an
    ``add`` that raised, leave the block: PostgreSQL takes nothing more in that transaction.
    """

    def __init__(self, connection: Connection, *, fencing_token: int | None, writes: bool) -> None:
        self._connection = connection
        self._fencing_token = fencing_token
        self._writes = writes
        self.studies = Studies(connection)
        self.trials = Trials(connection)
        self.rollouts = Rollouts(connection)
        self.verdicts = Verdicts(connection)
        self.approvals = Approvals(connection)
        self.commands = Commands(connection)
        self.events = Events(connection)
        self.actions = Actions(connection)
        self.lease = Lease(connection)
        self.state = State(connection)
        self.language_spending = LanguageSpending(connection)

    def commit(self) -> None:
        """Write all; LeaseLost, writing nothing, where the fencing token was superseded."""
        if not self._writes:
            raise InvariantViolation("A view of the store cannot be committed.")
        if self._fencing_token is not None:
            self.lease.require(self._fencing_token)
        self._connection.commit()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._connection.close()


class Store:
    """An open database. Safe to share between threads; close it at the end."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._writer = engine.execution_options(**{WRITING: True})
        # A transaction of SQLite is a snapshot already.
        snapshot = {} if engine.dialect.name == "sqlite" else {"isolation_level": "REPEATABLE READ"}
        self._reader = engine.execution_options(**snapshot)

    def work(self, *, fencing_token: int | None = None) -> UnitOfWork:
        """A transaction that may write; on SQLite one at a time, others wait.

        With a fencing token, ``commit`` succeeds only while no other controller has taken the
        lease since the token was given.
        """
        return UnitOfWork(self._writer.connect(), fencing_token=fencing_token, writes=True)

    def view(self) -> UnitOfWork:
        """A consistent look that never waits for a writer nor makes one wait; cannot commit."""
        return UnitOfWork(self._reader.connect(), fencing_token=None, writes=False)

    def close(self) -> None:
        self._engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def open_store(url: str, *, busy_timeout_s: float = 5.0) -> Store:
    """Open a migrated database.

    Raises BadInput for a URL, file or schema that cannot be used, and Temporary for a database
    that is locked or does not answer.
    """
    engine = connect(url, busy_timeout_s=busy_timeout_s)
    try:
        with engine.connect() as connection:
            refuse_other_schema(connection)
    except BaseException:
        engine.dispose()
        raise
    return Store(engine)
