"""What is intended is on record before it is done, and what came of it after."""

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy.exc import OperationalError

from agent.executor import LEFT_OPEN, MOST_RETRY_S, Executor
from agent.leadership import Leadership
from agent.store import Store, open_store
from domain.engine import EngineConfig
from domain.errors import BadInput, LeaseLost, Temporary
from domain.events import EventKind
from domain.fleet import ReplicaState, Slot
from domain.rollout import AdmitSlot, DrainSlot, Hold, SetWeight, StartEngine, StopEngine
from tests.fakes.clock import FakeClock
from tests.fakes.controller_world import CANARY, CANDIDATE, PRODUCTION, SLOTS, opened
from tests.fakes.gateway import FakeGateway
from tests.fakes.launcher import Behaviour, FakeLauncher

LANE = CANARY.name


class House:
    def __init__(self, store: Store, path: Path, behaviour: Behaviour) -> None:
        self.store = store
        self.path = path / "serinus.db"
        self.clock = FakeClock(100.0)
        self.behaviour = behaviour
        self.meanwhile: Callable[[], None] = lambda: None
        self.launcher = FakeLauncher(clock=self.clock, behaviour=self._behave)
        self.gateway = FakeGateway((PRODUCTION, CANARY))
        self.leadership = Leadership(store, holder="one", ttl_s=60.0)
        assert self.leadership.renew(self.clock.now())
        self.executor = Executor(
            launcher=self.launcher,
            gateway=self.gateway,
            slots=SLOTS,
            leadership=self.leadership,
            clock=self.clock,
            drain_s=30.0,
        )

    def _behave(self, slot: Slot, config: EngineConfig) -> Behaviour:
        """What happens while the effect is under way, then what the engine does."""
        self.meanwhile()
        return self.behaviour

    def ledger(self) -> list[tuple[str, str | None]]:
        """Every action on record with its outcome, oldest first."""
        with closing(sqlite3.connect(self.path)) as database:
            return database.execute("SELECT intent, outcome FROM actions ORDER BY id").fetchall()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with opened(tmp_path) as store:
        yield store


@pytest.fixture
def house(store: Store, tmp_path: Path) -> House:
    return House(store, tmp_path, Behaviour())


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_each_intent_is_done_and_its_outcome_recorded(house: House) -> None:
    await house.gateway.start()
    do = house.executor.do
    started = await do(StartEngine(slot=LANE, config=CANDIDATE), "r1")
    assert await do(AdmitSlot(slot=LANE), "r1") is None
    weighed = await do(SetWeight(weight=25), "r1")
    assert await do(DrainSlot(slot=LANE), "r1") is None
    split = await house.gateway.read()
    assert (split.weight, split.slot(LANE).admitted) == (25, False)
    assert (started.kind, started.subject) == (EventKind.ENGINE_STARTED, LANE)
    assert (weighed.kind, weighed.subject) == (EventKind.WEIGHT_SET, "r1")
    assert house.ledger() == [
        (f"Start an engine in canary-0 with config {CANDIDATE.digest}.", "done"),
        ("Let canary-0 take new requests.", "done"),
        ("Set the candidate's weight to 25 %.", "done"),
        ("Send canary-0 no new requests.", "done"),
    ]


async def test_a_hold_does_and_records_nothing(house: House) -> None:
    assert await house.executor.do(Hold("Baking."), "r1") is None
    assert house.ledger() == []


async def test_what_a_port_refuses_is_recorded_and_raised(store: Store, tmp_path: Path) -> None:
    house = House(store, tmp_path, Behaviour(refusal=BadInput("There is no such executable.")))
    with pytest.raises(BadInput, match="no such executable"):
        await house.executor.do(StartEngine(slot=LANE, config=CANDIDATE), "r1")
    with pytest.raises(Temporary, match="not running"):
        await house.executor.do(SetWeight(weight=5), "r1")
    assert [outcome for _, outcome in house.ledger()] == [
        "failed: There is no such executable.",
        "failed: The gateway is not running.",
    ]


async def test_a_stop_is_a_job_that_is_begun_once_while_it_lasts(
    store: Store, tmp_path: Path
) -> None:
    house = House(store, tmp_path, Behaviour(busy=True))
    await house.executor.do(StartEngine(slot=LANE, config=CANDIDATE), "r1")
    first = await house.executor.do(StopEngine(slot=LANE), "r1")
    assert await house.executor.do(StopEngine(slot=LANE), "r1") is None
    assert first.kind is EventKind.ENGINE_STOPPED
    assert house.ledger()[1:] == [("Drain and stop the engine in canary-0.", None)]
    await turns()
    assert house.launcher.stops == [(LANE, 30.0)]
    assert house.ledger()[1:] == [("Drain and stop the engine in canary-0.", "done")]


async def test_a_dead_engine_is_ended_without_waiting_for_its_streams(house: House) -> None:
    await house.executor.do(StartEngine(slot=LANE, config=CANDIDATE), "r1")
    await house.executor.do(StopEngine(slot=LANE, drain=False), "r1")
    await turns()
    assert house.launcher.stops == [(LANE, 0.0)]


async def test_after_a_stop_the_slot_can_be_stopped_again(house: House) -> None:
    for _ in range(2):
        await house.executor.do(StartEngine(slot=LANE, config=CANDIDATE), "r1")
        assert await house.executor.do(StopEngine(slot=LANE), "r1") is not None
        await turns()
    assert len(house.launcher.stops) == 2


async def test_closing_gives_up_the_wait_and_leaves_the_rest_to_the_next(
    store: Store, tmp_path: Path
) -> None:
    house = House(store, tmp_path, Behaviour(busy=True))
    await house.executor.do(StartEngine(slot=LANE, config=CANDIDATE), "r1")
    await house.executor.do(StopEngine(slot=LANE), "r1")
    await asyncio.sleep(0)
    await house.executor.close()
    (replica,) = await house.launcher.observe()
    assert replica.state is ReplicaState.STOPPING
    assert house.ledger()[-1] == ("Drain and stop the engine in canary-0.", None)


async def test_a_deposed_controller_cannot_even_begin(house: House) -> None:
    assert Leadership(house.store, holder="two", ttl_s=60.0).renew(house.clock.now() + 61)
    with pytest.raises(LeaseLost):
        await house.executor.do(StartEngine(slot=LANE, config=CANDIDATE), "r1")
    assert house.launcher.starts == []
    assert house.ledger() == []


async def test_a_start_that_is_refused_is_asked_for_ever_more_seldom(house: House) -> None:
    house.behaviour = Behaviour(refusal=BadInput("There is no such executable."))
    for _ in range(60):
        with pytest.raises(BadInput, match="no such executable"):
            await house.executor.do(StartEngine(slot=LANE, config=CANDIDATE), "r1")
        house.clock.advance(1.0)
    assert len(house.ledger()) == 5, "after 0, 2, 6, 14 and 30 s"


@pytest.mark.parametrize("jump_s", [MOST_RETRY_S, -3600.0])
async def test_a_refused_start_is_asked_for_again_in_time_or_once_the_clock_was_set_back(
    house: House, jump_s: float
) -> None:
    house.behaviour = Behaviour(refusal=BadInput("There is no such executable."))
    start = StartEngine(slot=LANE, config=CANDIDATE)
    with pytest.raises(BadInput):
        await house.executor.do(start, "r1")
    house.behaviour = Behaviour()
    house.clock.advance(jump_s)
    assert await house.executor.do(start, "r1") is not None


async def test_what_a_controller_left_open_is_closed_by_the_next(house: House) -> None:
    with house.leadership.work() as uow:
        uow.actions.begin("Set the candidate's weight to 25 %.", "r1", 1.0)
        uow.commit()
    house.executor.settle()
    assert house.ledger() == [("Set the candidate's weight to 25 %.", LEFT_OPEN)]


async def test_a_stop_under_way_is_not_closed(store: Store, tmp_path: Path) -> None:
    house = House(store, tmp_path, Behaviour(busy=True))
    await house.executor.do(StartEngine(slot=LANE, config=CANDIDATE), "r1")
    await house.executor.do(StopEngine(slot=LANE), "r1")
    house.executor.settle()
    assert house.ledger()[-1] == ("Drain and stop the engine in canary-0.", None)
    await house.executor.close()


async def test_a_stop_that_cannot_learn_how_long_to_wait_is_not_under_way(house: House) -> None:
    """It was once kept so in the ledger for as long as its controller ran."""
    await house.executor.do(StartEngine(slot=LANE, config=CANDIDATE), "r1")
    await house.executor.do(StopEngine(slot=LANE), "r1")
    with closing(sqlite3.connect(house.path)) as database:
        database.execute("ALTER TABLE state RENAME TO hidden")
        await turns()
        database.execute("ALTER TABLE hidden RENAME TO state")
    house.executor.settle()
    assert house.ledger()[-1][1] == LEFT_OPEN
    with pytest.raises(OperationalError):
        await house.executor.do(StopEngine(slot=LANE), "r1")
    await house.executor.do(StopEngine(slot=LANE), "r1")
    await turns()
    assert house.ledger()[-1][1] == "done"


async def test_an_outcome_that_the_store_does_not_take_is_recorded_later(tmp_path: Path) -> None:
    """What was done stays done: a database that is locked makes no failure of it."""
    opened(tmp_path).close()
    path = tmp_path / "serinus.db"
    with (
        open_store(f"sqlite:///{path}", busy_timeout_s=0.05) as impatient,
        closing(sqlite3.connect(path, isolation_level=None)) as other,
    ):
        house = House(impatient, tmp_path, Behaviour())
        house.executor.settle()
        house.meanwhile = lambda: other.execute("BEGIN IMMEDIATE").close()
        event = await house.executor.do(StartEngine(slot=LANE, config=CANDIDATE), "r1")
        assert event is not None and house.ledger()[0][1] is None
        other.execute("ROLLBACK").close()
        house.executor.settle()
        assert house.ledger()[0][1] == "done"


async def test_a_deposed_controller_that_acts_again_does_not_stumble_over_its_old_stop(
    store: Store, tmp_path: Path
) -> None:
    house = House(store, tmp_path, Behaviour(busy=True))
    await house.executor.do(StartEngine(slot=LANE, config=CANDIDATE), "r1")
    await house.executor.do(StopEngine(slot=LANE), "r1")
    with store.work() as uow:
        (stop,) = uow.actions.unfinished()
        uow.actions.finish(stop.id, LEFT_OPEN, house.clock.now())
        uow.commit()
    await turns()
    assert await house.executor.do(StartEngine(slot=LANE, config=CANDIDATE), "r1") is not None
    assert await house.executor.do(StopEngine(slot=LANE), "r1") is not None
    await house.executor.close()
