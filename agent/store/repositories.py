"""Queries over studies, trials, rollouts, verdicts, events and the key/value state.

A repository works inside the transaction of its unit of work: it never commits, keeps nothing in
memory and reads no clock.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import replace
from typing import NamedTuple, TypeVar

from sqlalchemy import Connection, func, insert, select, update

from agent.store.codec import Json, decode, encode
from agent.store.engine import inserting
from agent.store.models import EventRow, RolloutRow, StateRow, StudyRow, TrialRow, VerdictRow
from canary.budget import Run
from domain.engine import EngineConfig
from domain.errors import Conflict, InvariantViolation, NotFound
from domain.events import Event, EventKind
from domain.rollout import Phase, Rollout
from domain.study import FailureKind, Study, StudyState, Trial, TrialPurpose
from domain.verdict import Verdict

log = logging.getLogger(__name__)

Row = TypeVar("Row", Study, Trial)


def _readable(kind: type[Row], document: Json) -> Row | None:
    """The row's noun; ``None`` where another version wrote what this one cannot read."""
    try:
        return decode(kind, document)
    except InvariantViolation as error:
        log.warning("Left out: %s", error)
        return None


class Studies:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def add(self, study: Study) -> None:
        """Conflict where the id is taken."""
        self._connection.execute(
            insert(StudyRow).values(
                id=study.id,
                created_s=study.created_s,
                state=study.state.value,
                document=encode(study),
            )
        )

    def get(self, study_id: str) -> Study:
        """NotFound where there is none."""
        query = select(StudyRow.document).where(StudyRow.id == study_id)
        row = self._connection.execute(query).one_or_none()
        if row is None:
            raise NotFound(f"There is no study {study_id!r}.")
        return decode(Study, row.document)

    def save(self, study: Study) -> None:
        """Store the study in place of the one with its id; NotFound where there is none."""
        changed = self._connection.execute(
            update(StudyRow)
            .where(StudyRow.id == study.id)
            .values(state=study.state.value, document=encode(study))
        )
        if changed.rowcount == 0:
            raise NotFound(f"There is no study {study.id!r}.")

    def running(self) -> Study | None:
        """The newest study that has not ended."""
        query = (
            select(StudyRow.document)
            .where(StudyRow.state == StudyState.RUNNING.value)
            .order_by(StudyRow.created_s.desc(), StudyRow.id.desc())
            .limit(1)
        )
        row = self._connection.execute(query).one_or_none()
        return None if row is None else decode(Study, row.document)

    def begun(self, limit: int) -> tuple[float, ...]:
        """When each of the latest studies was created, in Unix seconds, newest first."""
        query = select(StudyRow.created_s).order_by(StudyRow.created_s.desc()).limit(limit)
        return tuple(row.created_s for row in self._connection.execute(query))

    def recommended(self, since_s: float) -> tuple[Study, ...]:
        """Those begun since that recommended a config, newest first; without those of another
        version that cannot be read."""
        query = (
            select(StudyRow.document)
            .where(StudyRow.state == StudyState.RECOMMENDED.value, StudyRow.created_s >= since_s)
            .order_by(StudyRow.created_s.desc(), StudyRow.id.desc())
        )
        rows = self._connection.execute(query)
        return tuple(s for row in rows if (s := _readable(Study, row.document)) is not None)

    def latest(self, limit: int) -> tuple[Study, ...]:
        """Newest first."""
        query = (
            select(StudyRow.document)
            .order_by(StudyRow.created_s.desc(), StudyRow.id.desc())
            .limit(limit)
        )
        return tuple(decode(Study, row.document) for row in self._connection.execute(query))


class Trials:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def add(self, trial: Trial) -> None:
        """Conflict where the id or the study's number is taken, NotFound without the study."""
        self._connection.execute(
            insert(TrialRow).values(
                id=trial.id,
                study_id=trial.study_id,
                number=trial.number,
                state=trial.state.value,
                digest=trial.config.digest,
                document=encode(trial),
            )
        )

    def save(self, trial: Trial) -> None:
        """Store the trial in place of the one with its id; NotFound where there is none."""
        changed = self._connection.execute(
            update(TrialRow)
            .where(TrialRow.id == trial.id)
            .values(state=trial.state.value, digest=trial.config.digest, document=encode(trial))
        )
        if changed.rowcount == 0:
            raise NotFound(f"There is no trial {trial.id!r}.")

    def of(self, study_id: str) -> tuple[Trial, ...]:
        """The study's trials in order of their number."""
        query = (
            select(TrialRow.document).where(TrialRow.study_id == study_id).order_by(TrialRow.number)
        )
        return tuple(decode(Trial, row.document) for row in self._connection.execute(query))

    def confirmed_last(self, study_id: str) -> EngineConfig | None:
        """The config of the study's last confirmation run: the one that it recommends, where it
        recommends any; ``None`` also where another version's row cannot be read."""
        query = (
            select(TrialRow.document)
            .where(
                TrialRow.study_id == study_id,
                TrialRow.document["purpose"].as_string() == TrialPurpose.CONFIRM.value,
            )
            .order_by(TrialRow.number.desc())
            .limit(1)
        )
        row = self._connection.execute(query).one_or_none()
        trial = None if row is None else _readable(Trial, row.document)
        return None if trial is None else trial.config

    def runs_since(self, since_s: float) -> tuple[Run, ...]:
        """When the lane was held by the trials of the studies begun since, and of the one begun
        last before, since no other can have reached beyond that time. A row without times is left
        out."""
        before = select(func.max(StudyRow.created_s)).where(StudyRow.created_s <= since_s)
        document = TrialRow.document
        query = (
            select(
                document["started_s"].as_float().label("started_s"),
                document["ended_s"].as_float().label("ended_s"),
                document[("failure", "kind")].as_string().label("failure"),
            )
            .join(StudyRow, StudyRow.id == TrialRow.study_id)
            .where(StudyRow.created_s >= func.coalesce(before.scalar_subquery(), since_s))
        )
        return tuple(
            Run(
                started_s=row.started_s,
                ended_s=row.ended_s,
                cut_off=row.failure == FailureKind.INTERRUPTED.value,
                refused=row.failure == FailureKind.REFUSED.value,
            )
            for row in self._connection.execute(query)
            if row.started_s is not None
        )


class Rollouts:
    """At most one rollout is active, that is, in a phase that has not ended."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def add(self, rollout: Rollout) -> None:
        """Conflict where the id is taken or another rollout is active."""
        self._connection.execute(
            insert(RolloutRow).values(
                id=rollout.id,
                study_id=rollout.study_id or None,
                version=rollout.version,
                created_s=rollout.created_s,
                phase=rollout.phase.value,
                active=not rollout.phase.ended,
                digest=rollout.candidate.digest,
                document=encode(rollout),
            )
        )

    def get(self, rollout_id: str) -> Rollout:
        """NotFound where there is none."""
        query = select(RolloutRow.document).where(RolloutRow.id == rollout_id)
        row = self._connection.execute(query).one_or_none()
        if row is None:
            raise NotFound(f"There is no rollout {rollout_id!r}.")
        return decode(Rollout, row.document)

    def save(self, rollout: Rollout) -> Rollout:
        """Compare and swap: pass the rollout as loaded, with the changes made.

        Where the stored version is still ``rollout.version``, the changes are stored under the
        next version and the rollout as stored is returned; else Conflict, or NotFound.
        """
        stored = replace(rollout, version=rollout.version + 1)
        changed = self._connection.execute(
            update(RolloutRow)
            .where(RolloutRow.id == rollout.id, RolloutRow.version == rollout.version)
            .values(
                version=stored.version,
                phase=stored.phase.value,
                active=not stored.phase.ended,
                digest=stored.candidate.digest,
                document=encode(stored),
            )
        )
        if changed.rowcount == 0:
            current = self.get(rollout.id).version
            raise Conflict(
                f"Rollout {rollout.id!r} is at version {current}, not {rollout.version}: "
                "it was changed meanwhile."
            )
        return stored

    def active(self) -> Rollout | None:
        """The rollout whose phase has not ended."""
        query = select(RolloutRow.document).where(RolloutRow.active)
        row = self._connection.execute(query).one_or_none()
        return None if row is None else decode(Rollout, row.document)

    def promoted_last(self) -> Rollout | None:
        """The newest of those that were promoted and have not gone back since."""
        query = (
            select(RolloutRow.document)
            .where(RolloutRow.phase == Phase.PROMOTED.value)
            .order_by(RolloutRow.created_s.desc(), RolloutRow.id.desc())
            .limit(1)
        )
        row = self._connection.execute(query).one_or_none()
        return None if row is None else decode(Rollout, row.document)

    def latest(self, limit: int) -> tuple[Rollout, ...]:
        """Newest first."""
        query = (
            select(RolloutRow.document)
            .order_by(RolloutRow.created_s.desc(), RolloutRow.id.desc())
            .limit(limit)
        )
        return tuple(decode(Rollout, row.document) for row in self._connection.execute(query))


class GivenVerdict(NamedTuple):
    """A verdict and when it was given, in Unix seconds."""

    at_s: float
    verdict: Verdict


class Verdicts:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def add(self, subject_id: str, at_s: float, verdict: Verdict) -> None:
        """``subject_id`` is the id of the study or rollout that was judged."""
        self._connection.execute(
            insert(VerdictRow).values(
                subject_id=subject_id,
                at_s=at_s,
                outcome=verdict.outcome.value,
                document=encode(verdict),
            )
        )

    def of(self, subject_id: str) -> tuple[GivenVerdict, ...]:
        """All verdicts on the subject, in the order in which they were given."""
        query = (
            select(VerdictRow.at_s, VerdictRow.document)
            .where(VerdictRow.subject_id == subject_id)
            .order_by(VerdictRow.seq)
        )
        return tuple(
            GivenVerdict(row.at_s, decode(Verdict, row.document))
            for row in self._connection.execute(query)
        )


class Events:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def add(self, event: Event) -> None:
        self._connection.execute(
            insert(EventRow).values(
                at_s=event.at_s,
                kind=event.kind.value,
                subject=event.subject,
                document=encode(event),
            )
        )

    def latest(self, limit: int, kinds: Collection[EventKind] | None = None) -> tuple[Event, ...]:
        """Newest first, in the order in which they were added; of ``kinds`` where given."""
        query = select(EventRow.document).order_by(EventRow.seq.desc()).limit(limit)
        if kinds is not None:
            query = query.where(EventRow.kind.in_([kind.value for kind in kinds]))
        return tuple(decode(Event, row.document) for row in self._connection.execute(query))


class State:
    """Facts that have one current value each, such as the config that production runs."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def get(self, key: str) -> Json:
        """The value last set; ``None`` where there is none."""
        query = select(StateRow.value).where(StateRow.key == key)
        row = self._connection.execute(query).one_or_none()
        return None if row is None else row.value

    def set(self, key: str, value: Json) -> None:
        """The last of several writers counts."""
        new = inserting(self._connection, StateRow).values(key=key, value=value)
        self._connection.execute(
            new.on_conflict_do_update(
                index_elements=[StateRow.key], set_={"value": new.excluded.value}
            )
        )
