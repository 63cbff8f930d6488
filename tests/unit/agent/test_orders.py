"""People's orders and answers: each is taken once, and changes what it says."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest

from agent.leadership import Leadership
from agent.orders import TAKEN_UP_S, TUNE_ASKED, Orders
from agent.pausing import PAUSED
from agent.store import Store
from domain.approval import Answer, CommandKind
from domain.errors import LeaseLost
from domain.rollout import Phase, Rollout
from tests.fakes import records
from tests.fakes.controller_world import opened

NOW = 3000.0


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with opened(tmp_path) as store:
        yield store


@pytest.fixture
def orders(store: Store) -> Orders:
    leadership = Leadership(store, holder="one", ttl_s=60.0)
    assert leadership.renew(NOW)
    return Orders(leadership)


def add(
    store: Store, *, commands: tuple[CommandKind, ...] = (), phase: Phase | None = None
) -> None:
    with store.work() as uow:
        for number, kind in enumerate(commands):
            uow.commands.add(records.command(id=f"c{number}", kind=kind, created_s=NOW + number))
        if phase is not None:
            uow.studies.add(records.study())
            uow.rollouts.add(records.rollout(phase=phase))
        if phase is Phase.WAITING_APPROVAL:
            uow.approvals.add(records.request())
        uow.commit()


def answer(store: Store, given: Answer, at_s: float = NOW) -> None:
    with store.work() as uow:
        uow.approvals.answer("approval-1", given, "ada", at_s)
        uow.commit()


def said(store: Store, orders: Orders, kind: CommandKind) -> str:
    """What is told when an order for the controller is taken."""
    with store.work() as uow:
        uow.commands.add(records.command(id=uuid4().hex, kind=kind))
        uow.commit()
    (event,) = orders.take(NOW)
    return event.sentence


def rollout(store: Store) -> Rollout:
    with store.view() as uow:
        return uow.rollouts.get("rollout-1")


def state(store: Store, key: str) -> object:
    with store.view() as uow:
        return uow.state.get(key)


def test_each_command_is_taken_once_in_its_order(store: Store, orders: Orders) -> None:
    add(store, commands=(CommandKind.TUNE, CommandKind.PAUSE))
    said = [event.sentence for event in orders.take(NOW)]
    assert said == [
        "ada ordered tune: a study begins as soon as the lane is free.",
        "ada ordered pause: nothing new begins and a rollout stays at its weight.",
    ]
    assert (state(store, TUNE_ASKED), state(store, PAUSED)) == ("ada", True)
    assert orders.take(NOW) == ()
    with store.view() as uow:
        assert [event.sentence for event in uow.events.latest(9)] == said[::-1]


def test_pause_and_resume_reach_the_rollout_under_way(store: Store, orders: Orders) -> None:
    add(store, commands=(CommandKind.PAUSE,), phase=Phase.PROGRESSING)
    orders.take(NOW)
    assert (rollout(store).paused, rollout(store).reason) == (True, "by ada")
    with store.work() as uow:
        uow.commands.add(records.command(id="again", kind=CommandKind.RESUME))
        uow.commit()
    orders.take(NOW)
    assert (rollout(store).paused, state(store, PAUSED)) == (False, False)


def test_the_controllers_resume_leaves_a_rollout_that_was_paused_by_itself(
    store: Store, orders: Orders
) -> None:
    add(store, commands=(CommandKind.PAUSE, CommandKind.RESUME), phase=Phase.PROGRESSING)
    with store.work() as uow:
        uow.rollouts.save(replace(uow.rollouts.get("rollout-1"), paused=True, reason="by bob"))
        uow.commit()
    assert [event.sentence for event in orders.take(NOW)][1] == (
        "ada ordered resume: the controller goes on. Rollout rollout-1 was paused by itself and "
        "stays so."
    )
    assert (rollout(store).paused, rollout(store).reason) == (True, "by bob")


def test_the_controllers_orders_again_change_nothing_and_say_so(
    store: Store, orders: Orders
) -> None:
    add(store, phase=Phase.PROGRESSING)
    for kind, is_so in ((CommandKind.PAUSE, "paused already"), (CommandKind.RESUME, "not paused")):
        again = [said(store, orders, kind) for _ in range(2)][1]
        assert again == (
            f"ada ordered {kind.value}: nothing was to be done, the controller is {is_so}."
        )


def test_an_open_question_waits(store: Store, orders: Orders) -> None:
    add(store, phase=Phase.WAITING_APPROVAL)
    assert orders.take(NOW) == ()
    assert rollout(store).phase is Phase.WAITING_APPROVAL


def test_an_approved_rollout_starts(store: Store, orders: Orders) -> None:
    add(store, phase=Phase.WAITING_APPROVAL)
    answer(store, Answer.APPROVE)
    (event,) = orders.take(NOW)
    assert event.sentence == f"ada approved config {records.CANDIDATE.digest}."
    assert rollout(store).phase is Phase.STARTING
    assert orders.take(NOW) == ()


def test_a_rollout_approved_during_a_pause_starts_paused(store: Store, orders: Orders) -> None:
    add(store, commands=(CommandKind.PAUSE,), phase=Phase.WAITING_APPROVAL)
    answer(store, Answer.APPROVE)
    orders.take(NOW)
    assert (rollout(store).phase, rollout(store).paused) == (Phase.STARTING, True)


def test_a_rejected_rollout_has_ended(store: Store, orders: Orders) -> None:
    add(store, phase=Phase.WAITING_APPROVAL)
    answer(store, Answer.REJECT)
    (event,) = orders.take(NOW)
    assert event.sentence == f"ada rejected config {records.CANDIDATE.digest}."
    assert (rollout(store).phase, rollout(store).reason) == (Phase.REJECTED, "ada declined it.")


def test_a_question_that_nobody_answers_expires(store: Store, orders: Orders) -> None:
    add(store, phase=Phase.WAITING_APPROVAL)
    assert orders.take(records.request().expires_s - 1) == ()
    (event,) = orders.take(records.request().expires_s)
    assert event.sentence == f"The question about config {records.CANDIDATE.digest} expired."
    assert rollout(store).phase is Phase.REJECTED


def test_an_answer_given_in_time_counts_though_it_is_read_late(
    store: Store, orders: Orders
) -> None:
    add(store, phase=Phase.WAITING_APPROVAL)
    answer(store, Answer.APPROVE, records.request().expires_s - 1)
    orders.take(records.request().expires_s + 60)
    assert rollout(store).phase is Phase.STARTING


def test_an_answer_left_lying_beyond_its_questions_time_starts_nothing(
    store: Store, orders: Orders
) -> None:
    """No controller ran meanwhile, and the evidence that was agreed to is old."""
    add(store, phase=Phase.WAITING_APPROVAL)
    answer(store, Answer.APPROVE)
    (event,) = orders.take(records.request().expires_s + TAKEN_UP_S)
    assert "no controller took it up" in event.sentence
    assert rollout(store).phase is Phase.REJECTED


def test_an_approval_of_another_config_starts_nothing(store: Store, orders: Orders) -> None:
    with store.work() as uow:
        uow.studies.add(records.study())
        uow.rollouts.add(records.rollout())
        uow.approvals.add(replace(records.request(), digest="0" * 12))
        uow.commit()
    answer(store, Answer.APPROVE)
    orders.take(NOW)
    assert rollout(store).phase is Phase.REJECTED


def test_without_the_lease_no_order_is_taken(store: Store) -> None:
    add(store, commands=(CommandKind.TUNE,))
    deposed = Leadership(store, holder="old", ttl_s=1.0)
    assert deposed.renew(NOW)
    assert Leadership(store, holder="new", ttl_s=60.0).renew(NOW + 2)
    with pytest.raises(LeaseLost):
        Orders(deposed).take(NOW)
    with store.view() as uow:
        assert len(uow.commands.pending()) == 1
