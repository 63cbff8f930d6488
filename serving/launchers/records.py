"""What the process launcher knows of its engines, on disk: it outlives the controller.

One directory a slot with ``replica.json`` (there while the slot holds an engine, or may hold one)
and ``engine.log`` (the present or last start; the one before it is ``engine.previous.log``).
A record is replaced atomically and synced, so a reader sees the old or the new one, never a half.
Nothing here looks at a process.
"""

from __future__ import annotations

import json
import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from domain.engine import EngineConfig
from domain.errors import BadInput, EngineUnreachable, Permanent
from domain.fleet import Role, Slot
from domain.study import Failure, FailureKind
from serving.launchers.engine_process import Identity

_RECORD = "replica.json"
_LOG = "engine.log"
_PREVIOUS_LOG = "engine.previous.log"
# Eight workers that fail together write this much after the first one's traceback.
_LOG_END_BYTES = 256 * 1024
_SLOT_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One start of one engine. Times are Unix seconds.

    ``token`` is unique to the start and stands in the engine's environment. ``pid`` and
    ``created_s`` are ``None`` in the intent that is written before the engine is launched.
    ``dead`` says why the engine is beyond recovery; ``stop_by_s`` is set once a stop was asked for
    and bounds the wait for its running requests.
    """

    slot: Slot
    config: EngineConfig
    model: str
    token: str
    started_s: float
    pid: int | None = None
    created_s: float | None = None
    warm: bool = False
    dead: Failure | None = None
    stop_by_s: float | None = None

    @property
    def identity(self) -> Identity:
        """Of a record whose engine was launched."""
        return Identity(self.token, self.pid or 0, self.created_s or 0.0)


class RecordStore:
    """Records and logs under one directory. One caller at a time."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._unsaved: dict[str, Record] = {}

    def log(self, slot: str) -> Path:
        return self._of(slot) / _LOG

    def log_end(self, slot: str) -> str:
        """The last 256 KiB of the slot's log; empty where there is none."""
        try:
            with self.log(slot).open("rb") as file:
                file.seek(0, os.SEEK_END)
                file.seek(max(0, file.tell() - _LOG_END_BYTES))
                return file.read().decode(errors="replace")
        except OSError:
            return ""

    def slots(self) -> tuple[str, ...]:
        """Names of the slots that have a record, sorted."""
        return tuple(sorted(path.parent.name for path in self._directory.glob(f"*/{_RECORD}")))

    def read(self, slot: str) -> Record | None:
        """The slot's record; Permanent where somebody else wrote into it, EngineUnreachable where
        the disk does not give it."""
        if slot in self._unsaved:
            return self._unsaved[slot]
        path = self._of(slot) / _RECORD
        try:
            return _decoded(json.loads(path.read_text(encoding="utf-8")))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise EngineUnreachable(f"{path} cannot be read ({error}).") from error
        except (ValueError, KeyError, TypeError) as error:
            raise Permanent(
                f"{path} cannot be read ({error}): end the engine of slot {slot} by hand, then "
                "delete the file."
            ) from error

    def write(self, record: Record) -> None:
        """Replace the slot's record and sync it; OSError where the disk does not take it."""
        path = self._of(record.slot.name) / _RECORD
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        written = path.with_suffix(".new")
        try:
            with written.open("w", encoding="utf-8") as file:
                file.write(json.dumps(_encoded(record), indent=1))
                file.flush()
                os.fsync(file.fileno())
            written.replace(path)
        except OSError:
            with suppress(OSError):
                written.unlink()
            raise
        _sync(path.parent)
        self._unsaved.pop(record.slot.name, None)

    def keep(self, record: Record) -> None:
        """Like ``write``, but a disk that refuses is no error: memory holds it until it does."""
        self._unsaved[record.slot.name] = record
        with suppress(OSError):
            self.write(record)

    def remove(self, record: Record) -> None:
        """Forget ``record``, unless the slot holds another engine's by now."""
        slot = record.slot.name
        current = self.read(slot)
        if current is not None and current.token != record.token:
            return
        self._unsaved.pop(slot, None)
        path = self._of(slot) / _RECORD
        path.unlink(missing_ok=True)
        _sync(path.parent)

    def keep_previous_log(self, slot: str) -> None:
        """Make room for a new start's log."""
        log = self.log(slot)
        with suppress(FileNotFoundError):
            log.replace(log.with_name(_PREVIOUS_LOG))

    def _of(self, slot: str) -> Path:
        if not _SLOT_NAME.fullmatch(slot):
            raise BadInput(
                f"The slot's name {slot!r} cannot name a directory: use letters, digits, '-', '_' "
                "and '.', beginning with a letter or digit."
            )
        return self._directory / slot


def _encoded(record: Record) -> dict[str, Any]:
    slot = record.slot
    return {
        "slot": slot.name,
        "role": slot.role.value,
        "port": slot.port,
        "gpu_ids": slot.gpu_ids,
        "model": record.model,
        "config": record.config.as_dict(),
        "digest": record.config.digest,
        "token": record.token,
        "started_s": record.started_s,
        "pid": record.pid,
        "created_s": record.created_s,
        "warm": record.warm,
        "dead": record.dead and _encoded_failure(record.dead),
        "stop_by_s": record.stop_by_s,
    }


def _decoded(row: dict[str, Any]) -> Record:
    return Record(
        slot=Slot(
            name=row["slot"],
            role=Role(row["role"]),
            port=row["port"],
            gpu_ids=tuple(row["gpu_ids"]),
        ),
        config=EngineConfig.of(row["config"]),
        model=row["model"],
        token=row["token"],
        started_s=row["started_s"],
        pid=row["pid"],
        created_s=row["created_s"],
        warm=row["warm"],
        dead=_decoded_failure(row["dead"], warm=row["warm"]),
        stop_by_s=row["stop_by_s"],
    )


def _encoded_failure(failure: Failure) -> dict[str, str]:
    return {
        "kind": failure.kind.value,
        "sentence": failure.sentence,
        "log_tail": failure.log_tail,
    }


def _decoded_failure(row: dict[str, str] | str | None, warm: bool) -> Failure | None:
    """Version 0.1.0 wrote one text, empty or a kind, a colon and the sentence. A kind that this
    version does not know is one without a name."""
    if not row:
        return None
    if isinstance(row, str):
        kind, _, sentence = row.partition(": ")
        row = {"kind": kind, "sentence": sentence, "log_tail": ""}
    unnamed = FailureKind.DIED if warm else FailureKind.START
    known = {kind.value: kind for kind in FailureKind}
    return Failure(
        kind=known.get(row["kind"], unnamed),
        sentence=row["sentence"],
        log_tail=row["log_tail"],
    )


def _sync(directory: Path) -> None:
    """Make a new or removed name in ``directory`` last over a power cut."""
    with suppress(FileNotFoundError):
        handle = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
