"""The schema that the migrations build is the one the models mean, and stored data survives it."""

import io
import json
import sqlite3
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from alembic import command

from agent.store import encode, migrate, open_store
from agent.store.engine import connect
from agent.store.schema import alembic_config
from domain.approval import CommandKind
from domain.errors import BadInput
from domain.events import EventKind
from tests.fakes import records

ROOT = Path(__file__).parents[2]

# Rows as revision 0001 of Serinus 0.1 stored them.
STORED_BY_0001 = {
    "events": (
        "INSERT INTO events (at_s, kind, subject, document) VALUES (12.5, 'held', 'r', ?)",
        {"at_s": 12.5, "kind": "held", "sentence": "No data; held.", "subject": "r"},
    ),
    "commands": (
        "INSERT INTO commands (id, kind, created_s, document) VALUES ('c', 'tune', 13.0, ?)",
        {"id": "c", "kind": "tune", "actor": "ada", "created_s": 13.0, "outcome": None},
    ),
    "state": ("INSERT INTO state (key, value) VALUES ('active', ?)", {"values": [["a", 1]]}),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "serinus.db"


def test_models_and_migrations_agree(path: Path) -> None:
    migrate(f"sqlite:///{path}")
    engine = connect(f"sqlite:///{path}")
    with engine.connect() as connection:
        config = alembic_config(connection)
        config.stdout = io.StringIO()
        command.check(config)
    engine.dispose()


def test_a_stored_database_is_upgraded_with_its_data(path: Path) -> None:
    migrate(f"sqlite:///{path}", revision="0001")
    with closing(sqlite3.connect(path)) as old:
        for statement, document in STORED_BY_0001.values():
            old.execute(statement, [json.dumps(document)])
        old.commit()
    migrate(f"sqlite:///{path}")
    with open_store(f"sqlite:///{path}") as store, store.view() as uow:
        (event,) = uow.events.latest(9)
        assert (event.kind, event.sentence) == (EventKind.HELD, "No data; held.")
        (pending,) = uow.commands.pending()
        assert (pending.kind, pending.actor) == (CommandKind.TUNE, "ada")
        assert uow.state.get("active") == {"values": [["a", 1]]}


@pytest.mark.parametrize("active", [True, False])
def test_an_order_to_roll_back_that_is_pending_is_for_the_rollout_under_way(
    path: Path, active: bool
) -> None:
    migrate(f"sqlite:///{path}", revision="0001")
    order = {"id": "c", "kind": "rollback", "actor": "ada", "created_s": 13.0, "outcome": None}
    rollout = encode(records.rollout(id="r1", study_id=""))
    with closing(sqlite3.connect(path)) as old:
        old.execute(
            "INSERT INTO commands (id, kind, created_s, document)"
            " VALUES ('c', 'rollback', 13.0, ?)",
            [json.dumps(order)],
        )
        old.execute(
            "INSERT INTO rollouts (id, version, created_s, phase, active, digest, document)"
            " VALUES ('r1', 1, 12.0, 'waiting_approval', ?, 'd', ?)",
            [active, json.dumps(rollout)],
        )
        old.commit()
    migrate(f"sqlite:///{path}")
    with open_store(f"sqlite:///{path}") as store, store.work() as uow:
        if not active:
            assert uow.commands.pending() == ()
            return
        (pending,) = uow.commands.pending()
        assert (pending.kind, pending.rollout_id) == (CommandKind.ROLLOUT_ABORT, "r1")
        assert uow.commands.add(replace(pending, id="another")) == pending


def test_an_upgrade_beside_an_open_store_changes_nothing(path: Path) -> None:
    url = f"sqlite:///{path}"
    migrate(url)
    with open_store(url) as store, store.view() as uow:
        assert uow.state.get("key") is None
        migrate(url)
        with store.work() as writer:
            writer.state.set("key", "still writable")
            writer.commit()
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_several_processes_may_upgrade_at_once(path: Path) -> None:
    with ThreadPoolExecutor(3) as pool:
        program = "import sys; from agent.store import migrate; migrate(sys.argv[1])"
        argv = [sys.executable, "-c", program, f"sqlite:///{path}"]
        runs = [
            pool.submit(subprocess.run, argv, capture_output=True, cwd=ROOT, timeout=60)
            for _ in range(3)
        ]
    assert [run.result().stderr for run in runs] == [b"", b"", b""]
    open_store(f"sqlite:///{path}").close()


def test_a_failed_upgrade_leaves_nothing_behind(path: Path) -> None:
    with closing(sqlite3.connect(path)) as foreign:
        foreign.execute("CREATE TABLE verdicts (other TEXT)")
        foreign.commit()
    with pytest.raises(Exception, match="verdicts already exists"):
        migrate(f"sqlite:///{path}")
    with closing(sqlite3.connect(path)) as connection:
        names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    assert names == [("verdicts",)]


def test_a_database_of_a_newer_version_is_refused(path: Path) -> None:
    migrate(f"sqlite:///{path}")
    with closing(sqlite3.connect(path)) as newer:
        newer.execute("UPDATE alembic_version SET version_num = '9999'")
        newer.commit()
    for call in (migrate, open_store):
        with pytest.raises(BadInput, match="revision 9999, which this version"):
            call(f"sqlite:///{path}")


def test_the_wheel_carries_the_migrations(tmp_path: Path) -> None:
    built = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    (wheel,) = tmp_path.glob("*.whl")
    installed = tmp_path / "installed"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(installed)
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); import agent.store as s, migrations as m;"
        "assert m.__file__.startswith(sys.argv[1]), m.__file__;"
        "s.migrate(sys.argv[2]); s.open_store(sys.argv[2]).close()"
    )
    url = f"sqlite:///{tmp_path}/serinus.db"
    used = subprocess.run(
        [sys.executable, "-c", program, str(installed), url],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert used.returncode == 0, used.stderr
