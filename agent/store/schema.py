"""The database's schema: brought to this version's head, or found to be at another.

The migrations are a package of their own, so that they are there wherever Serinus is installed.
Nothing here reads or writes a noun.
"""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection

import migrations
from agent.store.engine import WRITING, connect
from agent.store.models import Base
from domain.errors import BadInput, InvariantViolation

# Any number will do for PostgreSQL's lock, so long as every version of Serinus uses the same.
_UPGRADING = 0x5E41_1105


def migrate(url: str, *, revision: str = "head") -> None:
    """Upgrade the database to ``revision`` in one transaction, creating it where there is none.

    Safe to call at every start and from several processes at once. Raises as ``open_store`` does.
    """
    engine = connect(url, foreign_keys=False)
    try:
        with engine.execution_options(**{WRITING: True}).begin() as connection:
            if connection.dialect.name == "postgresql":
                connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_UPGRADING})")
            _refuse_unknown(connection)
            command.upgrade(alembic_config(connection), revision)
            if connection.dialect.name == "sqlite":
                orphans = connection.exec_driver_sql("PRAGMA foreign_key_check").all()
                if orphans:
                    raise InvariantViolation(f"The migration left orphans in {orphans[0][0]}.")
    finally:
        engine.dispose()


def alembic_config(connection: Connection) -> Config:
    """Alembic's configuration for commands on an open connection; no file is read."""
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    config.attributes["tables"] = Base.metadata
    return config


def refuse_other_schema(connection: Connection) -> None:
    """BadInput where the database is not at the head of this version's migrations."""
    _refuse_unknown(connection)
    current = MigrationContext.configure(connection).get_current_revision()
    if current != _scripts(connection).get_current_head():
        found = f"at revision {current}" if current else "empty"
        raise BadInput(f"The database is {found}; upgrade it to this version of Serinus first.")


def _scripts(connection: Connection) -> ScriptDirectory:
    return ScriptDirectory.from_config(alembic_config(connection))


def _refuse_unknown(connection: Connection) -> None:
    current = MigrationContext.configure(connection).get_current_revision()
    known = {script.revision for script in _scripts(connection).walk_revisions()}
    if current is not None and current not in known:
        raise BadInput(
            f"The database is at revision {current}, which this version of Serinus does not know; "
            "it was written by a newer one."
        )
