"""A PostgreSQL that goes away, is not there, or has to be upgraded: the store on it says so, and a
controller holds until it is back."""

import io
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from alembic import command

from agent.demo.ports import free_ports
from agent.store import Store, migrate, open_store
from agent.store.engine import connect
from agent.store.schema import alembic_config
from domain.approval import CommandKind
from domain.errors import BadInput, Temporary
from domain.events import EventKind
from domain.rollout import Phase
from tests.fakes import records
from tests.fakes.controller_world import CANDIDATE, ControllerWorld
from tests.fakes.postgres import Postgres, needed
from tests.fakes.running_serinus import RunningSerinus, until

ROOT = Path(__file__).parents[2]
pytestmark = needed


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    server = Postgres()
    try:
        yield server
    finally:
        server.close()


@pytest.fixture
def url(postgres: Postgres) -> str:
    """An empty database."""
    return postgres.created()


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    migrate(url)
    with open_store(url) as store:
        yield store


def test_an_empty_database_is_brought_to_what_the_models_mean(url: str) -> None:
    with pytest.raises(BadInput, match="is empty; upgrade it"):
        open_store(url)
    migrate(url)
    migrate(url)
    engine = connect(url)
    with engine.connect() as connection:
        config = alembic_config(connection)
        config.stdout = io.StringIO()
        command.check(config)
    engine.dispose()


def test_an_older_database_keeps_its_orders(url: str) -> None:
    migrate(url, revision="0001")
    engine = connect(url)
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "INSERT INTO rollouts (id, version, created_s, phase, active, digest, document)"
            " VALUES ('r1', 1, 1.0, 'progressing', true, 'd', '{}')"
        )
        connection.exec_driver_sql(
            "INSERT INTO commands (id, kind, created_s, document) VALUES ('c', 'rollback', 1.0,"
            """ '{"id": "c", "kind": "rollback", "actor": "ada", "created_s": 1.0}')"""
        )
    engine.dispose()
    migrate(url)
    with open_store(url) as store, store.view() as uow:
        (pending,) = uow.commands.pending()
    assert (pending.kind, pending.rollout_id) == (CommandKind.ROLLOUT_ABORT, "r1")


def test_several_processes_may_upgrade_at_once(url: str) -> None:
    program = "import sys; from agent.store import migrate; migrate(sys.argv[1])"
    with ThreadPoolExecutor(3) as pool:
        argv = [sys.executable, "-c", program, url]
        runs = [
            pool.submit(subprocess.run, argv, capture_output=True, cwd=ROOT, timeout=120)
            for _ in range(3)
        ]
    assert [run.result().stderr for run in runs] == [b"", b"", b""]
    open_store(url).close()


def test_a_failed_upgrade_leaves_nothing_behind(url: str) -> None:
    engine = connect(url)
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE verdicts (other TEXT)")
    with pytest.raises(Exception, match="already exists"):
        migrate(url)
    with engine.connect() as connection:
        found = connection.exec_driver_sql(
            "SELECT table_name FROM information_schema.tables WHERE table_schema = 'public'"
        )
        assert found.scalars().all() == ["verdicts"]
    engine.dispose()


def test_a_database_that_is_not_there_is_named(postgres: Postgres) -> None:
    for call in (open_store, migrate):
        with pytest.raises(
            Temporary, match=r'does not answer: .*database "nowhere" does not exist'
        ):
            call(postgres.url("nowhere"))


def test_a_host_that_is_gone_is_not_waited_for_without_end(url: str) -> None:
    """The system's own limits are hours; here the answer is known within half a minute."""
    engine = connect(url)
    with engine.connect() as connection:
        asked = connection.connection.dbapi_connection.info.get_parameters()
    engine.dispose()
    assert int(asked["connect_timeout"]) < 30
    idle_s, interval_s = int(asked["keepalives_idle"]), int(asked["keepalives_interval"])
    assert idle_s + interval_s * int(asked["keepalives_count"]) < 30
    assert int(asked["tcp_user_timeout"]) < 30_000


@pytest.fixture
def going_away(postgres: Postgres) -> Iterator[Postgres]:
    """The server, which is there again after the test."""
    yield postgres
    if not postgres.running:
        postgres.start()


def test_one_that_goes_away_in_mid_transaction_has_written_nothing(
    store: Store, going_away: Postgres
) -> None:
    uow = store.work()
    with pytest.raises(Temporary, match="database"), uow:
        uow.studies.add(records.study())
        going_away.crash()
        uow.commit()
    for opened in (store.view, store.work):
        with pytest.raises(Temporary, match="does not answer"), opened() as other:
            other.studies.latest(1)
    going_away.start()
    with store.view() as view:
        assert view.studies.latest(9) == ()
    with store.work() as again:
        again.studies.add(records.study())
        again.commit()


async def test_a_controller_holds_while_its_database_is_away_and_then_goes_on(
    store: Store, going_away: Postgres
) -> None:
    world = ControllerWorld(store)
    await world.settle()
    await world.until(lambda: world.studies.begun)
    world.studies.recommend(CANDIDATE)

    def phase() -> Phase | None:
        rollout = world.rollout()
        return rollout and rollout.phase

    await world.until(lambda: phase() is Phase.PROGRESSING)

    async def crash() -> None:
        going_away.crash()

    split, starts = await world.split(), list(world.launcher.starts)
    world.meanwhile = crash
    for _ in range(5):
        assert (await world.tick()).startswith("Holding: The database ")
    assert (await world.split()).weight == split.weight
    assert world.launcher.starts == starts
    going_away.start()
    await world.until(lambda: phase() is Phase.PROMOTED)
    assert world.active() == CANDIDATE


def test_of_two_controllers_on_it_each_order_is_taken_by_the_one_that_leads(
    postgres: Postgres, tmp_path: Path
) -> None:
    serinus = RunningSerinus(tmp_path, database_url=postgres.created(), autonomy="observe")
    try:
        first = serinus.up()
        serinus.serves()
        serinus.up(serinus.write("second.toml", api_port=free_ports()[1]))
        until(lambda: "watching" in serinus.heard(1), "the second watches", 60, serinus.said)
        assert serinus.command("pause").returncode == 0
        serinus.until(lambda uow: not uow.commands.pending(), "the first takes the order")
        serinus.kill(first)
        serinus.begin_rollout(CANDIDATE)
        ordered = serinus.command("rollout", "abort")
        assert ordered.stdout.startswith("rollout abort of given (config ")
        serinus.until(lambda uow: uow.rollouts.get("given").phase.ended, "the second ends it")
        taken = [e.sentence for e in serinus.events() if e.kind is EventKind.COMMAND_TAKEN]
        assert len(taken) == 2
        assert "ordered pause: nothing new begins" in taken[0]
        assert "ordered rollout abort of given: config " in taken[1]
    finally:
        serinus.close()
