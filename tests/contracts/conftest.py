"""The databases that a store is held against."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.store import Store, migrate, open_store
from tests.fakes.controller_world import opened
from tests.fakes.postgres import Postgres, needed

TEMPLATE = "migrated"


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """One server for all tests, each of which has a database of its own."""
    server = Postgres()
    try:
        server.say(f"CREATE DATABASE {TEMPLATE}")
        migrate(server.url(TEMPLATE))
        yield server
    finally:
        server.close()


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=needed)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A migrated, empty database."""
    if request.param == "sqlite":
        opened(tmp_path).close()
        return f"sqlite:///{tmp_path / 'serinus.db'}"
    server: Postgres = request.getfixturevalue("postgres")
    return server.created(TEMPLATE)


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with open_store(url) as store:
        yield store
