"""Where LangGraph keeps how far a study has come: beside the store, one thread for each study.

Only JSON is kept, and nothing else is read back: a checkpoint that names a class to build is
refused by the serializer.
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias

import aiosqlite
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from sqlalchemy.engine import make_url

from domain.errors import BadInput, Temporary

Checkpoints: TypeAlias = Callable[[], AbstractAsyncContextManager[BaseCheckpointSaver[Any]]]
"""Opens them for the time of one run."""

FILE = "checkpoints.db"


def checkpoints(store_url: str) -> Checkpoints:
    """Those of the store with this URL: a file of their own beside SQLite's, tables of their own in
    PostgreSQL.

    The run raises Temporary where they cannot be written.
    """
    url = make_url(store_url)
    if url.get_backend_name() == "sqlite":
        return lambda: _in_file(Path(str(url.database)).with_name(FILE))
    address = url.set(drivername="postgresql").render_as_string(hide_password=False)
    return lambda: _in_postgresql(address)


@asynccontextmanager
async def forgotten() -> AsyncIterator[BaseCheckpointSaver[Any]]:
    """For a study that no successor goes on with."""
    yield InMemorySaver(serde=_strict())


async def forget_all(saver: BaseCheckpointSaver[Any]) -> None:
    """Forget every study: one runs at a time, and none goes on after the next began."""
    for thread in {kept.config["configurable"]["thread_id"] async for kept in saver.alist(None)}:
        await saver.adelete_thread(thread)


@asynccontextmanager
async def _in_file(path: Path) -> AsyncIterator[BaseCheckpointSaver[Any]]:
    try:
        async with aiosqlite.connect(path) as connection:
            yield AsyncSqliteSaver(connection, serde=_strict())
    except sqlite3.Error as error:
        raise Temporary(
            f"How far the study is cannot be kept in {path.name}: {error}. Where the file is "
            "damaged, remove it: studies go on from their trials."
        ) from error


@asynccontextmanager
async def _in_postgresql(address: str) -> AsyncIterator[BaseCheckpointSaver[Any]]:
    try:
        import psycopg
        from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
    except ImportError as error:
        raise BadInput(
            f"For PostgreSQL Serinus needs its extra `postgresql`, and this is missing: {error}."
        ) from error
    try:
        async with AsyncPostgresSaver.from_conn_string(address, serde=_strict()) as saver:
            await saver.setup()
            yield saver
    except psycopg.Error as error:
        raise Temporary(
            "How far the study is cannot be kept: the database does not answer."
        ) from error


def _strict() -> JsonPlusSerializer:
    return JsonPlusSerializer(allowed_msgpack_modules=None)
