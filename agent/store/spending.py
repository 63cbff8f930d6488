"""What questions to language models cost: the most before each is asked, the rest is told after."""

from __future__ import annotations

from sqlalchemy import ColumnElement, Connection, func, insert, select, update

from agent.store.models import LanguageSpendingRow
from domain.language import Tokens


class LanguageSpending:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def lock(self) -> None:
        """Let nobody else begin a question until this transaction ends; in SQLite nobody can."""
        if self._connection.dialect.name == "postgresql":
            self._connection.exec_driver_sql("LOCK TABLE language_spending IN EXCLUSIVE MODE")

    def begin(self, at_s: float, *, subject: str, purpose: str, most: Tokens) -> int:
        """Count a question before it is asked; the number of its row."""
        added = self._connection.execute(
            insert(LanguageSpendingRow)
            .values(
                at_s=at_s, subject=subject, purpose=purpose, read=most.read, written=most.written
            )
            .returning(LanguageSpendingRow.seq)
        )
        return added.scalar_one()

    def settle(self, seq: int, tokens: Tokens) -> None:
        """What the question of this row cost after all."""
        self._connection.execute(
            update(LanguageSpendingRow)
            .where(LanguageSpendingRow.seq == seq)
            .values(read=tokens.read, written=tokens.written)
        )

    def of(self, subject: str) -> Tokens:
        """All that was spent for the subject."""
        return self._sum(LanguageSpendingRow.subject == subject)

    def since(self, at_s: float) -> Tokens:
        """All that was spent after ``at_s``, in Unix seconds."""
        return self._sum(LanguageSpendingRow.at_s > at_s)

    def _sum(self, which: ColumnElement[bool]) -> Tokens:
        query = select(
            func.coalesce(func.sum(LanguageSpendingRow.read), 0),
            func.coalesce(func.sum(LanguageSpendingRow.written), 0),
        ).where(which)
        read, written = self._connection.execute(query).one()
        return Tokens(read=int(read), written=int(written))
