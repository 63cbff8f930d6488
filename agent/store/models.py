"""The tables: columns for what is queried, and one JSON ``document`` for the whole noun.

Times are Unix seconds. Enums are stored as their values. No query stands here, and a change here
needs a migration beside it.
"""

from __future__ import annotations

from typing import Any, ClassVar

from sqlalchemy import JSON, Float, ForeignKey, Index, MetaData, UniqueConstraint
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from agent.store.codec import Json


class Base(DeclarativeBase):
    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map: ClassVar[dict[Any, Any]] = {float: Float(precision=53)}


class StudyRow(Base):
    __tablename__ = "studies"

    id: Mapped[str] = mapped_column(primary_key=True)
    created_s: Mapped[float] = mapped_column(index=True)
    state: Mapped[str] = mapped_column(index=True)
    document: Mapped[Json] = mapped_column(JSON, nullable=False)


class TrialRow(Base):
    __tablename__ = "trials"
    __table_args__ = (UniqueConstraint("study_id", "number"),)

    id: Mapped[str] = mapped_column(primary_key=True)
    study_id: Mapped[str] = mapped_column(ForeignKey("studies.id"))
    number: Mapped[int]
    state: Mapped[str]
    digest: Mapped[str]
    document: Mapped[Json] = mapped_column(JSON, nullable=False)


class RolloutRow(Base):
    """``active`` is whether the phase has not ended; the index allows one active rollout."""

    __tablename__ = "rollouts"

    id: Mapped[str] = mapped_column(primary_key=True)
    study_id: Mapped[str | None] = mapped_column(ForeignKey("studies.id"), index=True)
    version: Mapped[int]
    created_s: Mapped[float] = mapped_column(index=True)
    phase: Mapped[str]
    active: Mapped[bool]
    digest: Mapped[str]
    document: Mapped[Json] = mapped_column(JSON, nullable=False)


Index(
    "uq_rollouts_one_active",
    RolloutRow.active,
    unique=True,
    sqlite_where=RolloutRow.active.is_(True),
    postgresql_where=RolloutRow.active.is_(True),
)


class VerdictRow(Base):
    """``subject_id`` is a study's or a rollout's id."""

    __tablename__ = "verdicts"

    seq: Mapped[int] = mapped_column(primary_key=True)
    subject_id: Mapped[str] = mapped_column(index=True)
    at_s: Mapped[float]
    outcome: Mapped[str]
    document: Mapped[Json] = mapped_column(JSON, nullable=False)


class ApprovalRow(Base):
    __tablename__ = "approval_requests"

    id: Mapped[str] = mapped_column(primary_key=True)
    rollout_id: Mapped[str] = mapped_column(ForeignKey("rollouts.id"), index=True)
    rollout_version: Mapped[int]
    digest: Mapped[str]
    created_s: Mapped[float]
    expires_s: Mapped[float]
    answer: Mapped[str | None]
    document: Mapped[Json] = mapped_column(JSON, nullable=False)


class CommandRow(Base):
    """``outcome`` is NULL while pending; the index allows one pending command of each kind for each
    rollout. ``rollout_id`` is empty, not NULL, for the controller's: NULLs are never alike."""

    __tablename__ = "commands"

    id: Mapped[str] = mapped_column(primary_key=True)
    kind: Mapped[str]
    rollout_id: Mapped[str]
    created_s: Mapped[float]
    outcome: Mapped[str | None]
    document: Mapped[Json] = mapped_column(JSON, nullable=False)


Index(
    "uq_commands_one_pending",
    CommandRow.kind,
    CommandRow.rollout_id,
    unique=True,
    sqlite_where=CommandRow.outcome.is_(None),
    postgresql_where=CommandRow.outcome.is_(None),
)


class EventRow(Base):
    __tablename__ = "events"

    seq: Mapped[int] = mapped_column(primary_key=True)
    at_s: Mapped[float] = mapped_column(index=True)
    kind: Mapped[str] = mapped_column(index=True)
    subject: Mapped[str] = mapped_column(index=True)
    document: Mapped[Json] = mapped_column(JSON, nullable=False)


class ActionRow(Base):
    """An intended effect, and what came of it; ``outcome`` is NULL until that is known."""

    __tablename__ = "actions"

    id: Mapped[int] = mapped_column(primary_key=True)
    intent: Mapped[str]
    subject: Mapped[str] = mapped_column(index=True)
    began_s: Mapped[float]
    outcome: Mapped[str | None] = mapped_column(index=True)
    ended_s: Mapped[float | None]


class LeaseRow(Base):
    """One row, with ``id`` 1, laid down by the first migration."""

    __tablename__ = "lease"

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    holder: Mapped[str]
    token: Mapped[int]
    expires_s: Mapped[float]


class StateRow(Base):
    __tablename__ = "state"

    key: Mapped[str] = mapped_column(primary_key=True)
    value: Mapped[Json] = mapped_column(JSON, nullable=False)


class LanguageSpendingRow(Base):
    """One question to a language model; ``subject`` is a study's id, or empty. The tokens are the
    most that it could cost until its answer is there."""

    __tablename__ = "language_spending"

    seq: Mapped[int] = mapped_column(primary_key=True)
    at_s: Mapped[float] = mapped_column(index=True)
    subject: Mapped[str] = mapped_column(index=True)
    purpose: Mapped[str]
    read: Mapped[int]
    written: Mapped[int]
