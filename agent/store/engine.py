"""How a database is reached: its URL, SQLite's settings, and errors as one clear sentence.

It knows no table.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

from sqlalchemy import Connection, Engine, ExceptionContext, create_engine, event
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, IntegrityError, NoSuchModuleError, OperationalError
from sqlalchemy.orm import DeclarativeBase

from domain.errors import BadInput, Conflict, NotFound, SerinusError, Temporary

BACKENDS = {
    "sqlite": "sqlite:////var/lib/serinus/serinus.db",
    "postgresql": "postgresql+psycopg://user:password@host/serinus",
}
WRITING = "serinus_writing"
KEEPALIVE_S = 5
KEEPALIVES = 3
"""A host that answers so many in a row not at all is gone: the connection breaks."""

Inserting: TypeAlias = postgresql.Insert | sqlite.Insert
_INSERT: dict[str, Callable[[type[DeclarativeBase]], Inserting]] = {
    "sqlite": sqlite.insert,
    "postgresql": postgresql.insert,
}

_FOREIGN_KEY = "23503"
_UNUSABLE = {
    "SQLITE_FULL": "the disk is full",
    "SQLITE_READONLY": "it cannot be written to",
    "SQLITE_CANTOPEN": "it cannot be opened; its directory must exist and be writable",
    "SQLITE_PERM": "access to it is denied",
    "SQLITE_NOTADB": "the file is not a SQLite database",
    "SQLITE_CORRUPT": "the file is damaged; restore a backup",
    "SQLITE_IOERR": "the disk refuses to read or write it, or is full",
}


def connect(url: str, *, busy_timeout_s: float = 5.0, foreign_keys: bool = True) -> Engine:
    """An engine for the URL, not yet connected; BadInput for a URL that cannot be used.

    A SQLite database is a file in WAL mode. A transaction of an engine that has the execution
    option ``WRITING`` takes SQLite's write lock at its start, waiting at most ``busy_timeout_s``
    for it: one that read first and wrote later could fail at once instead.
    """
    parsed = _parsed(url)
    on_sqlite = parsed.get_backend_name() == "sqlite"
    try:
        engine = create_engine(
            parsed,
            connect_args={"timeout": busy_timeout_s} if on_sqlite else _postgresql(busy_timeout_s),
            json_serializer=partial(json.dumps, allow_nan=False, separators=(",", ":")),
            max_overflow=40,
            pool_pre_ping=not on_sqlite,
        )
    except (NoSuchModuleError, ImportError) as error:
        raise BadInput(f"The driver of the database URL {parsed!r} is missing: {error}.") from error
    event.listen(engine, "handle_error", partial(_raise_clear, parsed))
    if on_sqlite:
        event.listen(engine, "connect", partial(_set_up_sqlite, foreign_keys))
        event.listen(engine, "begin", _begin_sqlite)
    return engine


def inserting(connection: Connection, table: type[DeclarativeBase]) -> Inserting:
    """An insert that can say what a conflict leads to, in the words of this database."""
    return _INSERT[connection.dialect.name](table)


def _postgresql(busy_timeout_s: float) -> dict[str, object]:
    """Neither a lock nor a host that is gone is waited for without end."""
    return {
        "connect_timeout": max(2, round(busy_timeout_s)),
        "keepalives_idle": KEEPALIVE_S,
        "keepalives_interval": KEEPALIVE_S,
        "keepalives_count": KEEPALIVES,
        "tcp_user_timeout": 1000 * KEEPALIVE_S * KEEPALIVES,
        "options": f"-c lock_timeout={round(busy_timeout_s * 1000)}",
    }


def _parsed(url: str) -> URL:
    known = " or ".join(f"'{example}'" for example in BACKENDS.values())
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise BadInput(f"The database URL cannot be read; write it like {known}.") from error
    if parsed.get_backend_name() not in BACKENDS:
        raise BadInput(f"The database URL {parsed!r} is of an unknown kind; use {known}.")
    if parsed.get_backend_name() == "sqlite" and parsed.database in (None, "", ":memory:"):
        raise BadInput(f"The database URL {parsed!r} names no file; write it like {known}.")
    return parsed


def _set_up_sqlite(foreign_keys: bool, connection: sqlite3.Connection, _record: Any) -> None:
    # Without this the driver begins transactions by itself, and DDL outside of them.
    connection.isolation_level = None
    connection.execute("PRAGMA journal_mode = WAL").close()
    connection.execute(f"PRAGMA foreign_keys = {'ON' if foreign_keys else 'OFF'}").close()


def _begin_sqlite(connection: Connection) -> None:
    writing = connection.get_execution_options().get(WRITING, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writing else "BEGIN")


def _raise_clear(url: URL, context: ExceptionContext) -> None:
    clear = _clear(url, context)
    if clear is not None:
        raise clear from context.original_exception


def _clear(url: URL, context: ExceptionContext) -> SerinusError | None:
    error, cause = context.sqlalchemy_exception, context.original_exception
    if isinstance(error, IntegrityError):
        if getattr(cause, "sqlstate", "") == _FOREIGN_KEY or "foreign key" in str(cause).lower():
            return NotFound("What the new row refers to does not exist.")
        return Conflict("Such a row exists already, or a rule that allows only one forbids it.")
    if isinstance(cause, sqlite3.Error):
        name = getattr(cause, "sqlite_errorname", "")
        if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
            return Temporary("The database is locked by another process.", retry_after_s=1.0)
        for prefix, reason in _UNUSABLE.items():
            if name.startswith(prefix):
                return BadInput(f"The database {url.database} cannot be used: {reason}.")
        return None
    if isinstance(error, OperationalError) and context.connection is None:
        # No password is among these words.
        said = " ".join(str(cause).partition("\n")[0].split()).removeprefix("connection failed: ")
        return Temporary(f"The database does not answer: {said.rstrip('.')}.")
    if isinstance(error, OperationalError) or context.is_disconnect:
        return Temporary("The database is locked, or does not answer.")
    return None
