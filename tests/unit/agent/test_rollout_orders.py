"""Orders for one rollout: bound to its id, taken once, and without effect when given again."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest

from agent import active_config
from agent.leadership import Leadership
from agent.orders import Orders
from agent.store import Store
from domain.approval import Answer, CommandKind
from domain.engine import EngineConfig
from domain.errors import LeaseLost
from domain.events import Event, EventKind
from domain.rollout import Phase, Rollout
from tests.fakes import records
from tests.fakes.controller_world import opened

NOW = 3000.0
PAUSE, RESUME = CommandKind.ROLLOUT_PAUSE, CommandKind.ROLLOUT_RESUME
ABORT, ROLLBACK = CommandKind.ROLLOUT_ABORT, CommandKind.ROLLOUT_ROLLBACK
OLD, NEW = records.BASELINE, records.CANDIDATE
THIRD = EngineConfig.of({"max_num_seqs": 1024})
UNDER_WAY = (Phase.STARTING, Phase.PROGRESSING, Phase.CONVERTING, Phase.RETURNING)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with opened(tmp_path) as store:
        yield store


@pytest.fixture
def orders(store: Store) -> Orders:
    leadership = Leadership(store, holder="one", ttl_s=60.0)
    assert leadership.renew(NOW)
    return Orders(leadership)


def add(store: Store, phase: Phase, *, id: str = "r1", **changes: object) -> Rollout:
    """A rollout; where it is promoted, production runs its candidate."""
    with store.work() as uow:
        created_s = 1000.0 + len(uow.rollouts.latest(99))
        rollout = records.rollout(
            id=id, study_id="", created_s=created_s, phase=phase, phase_since_s=2000.0, **changes
        )
        uow.rollouts.add(rollout)
        if phase is Phase.PROMOTED:
            active_config.changed(uow, rollout.candidate, 2000.0)
        uow.commit()
    return rollout


def order(store: Store, kind: CommandKind, rollout_id: str = "r1", actor: str = "ada") -> None:
    with store.work() as uow:
        command = records.command(id=uuid4().hex, kind=kind, rollout_id=rollout_id, actor=actor)
        uow.commands.add(command)
        uow.commit()


def taken(store: Store, orders: Orders, kind: CommandKind, rollout_id: str = "r1") -> Event:
    """The one event that tells of the order, as it is stored."""
    order(store, kind, rollout_id)
    (event,) = orders.take(NOW)
    with store.view() as uow:
        assert uow.events.latest(1) == (event,)
        assert uow.commands.pending() == ()
    assert (event.kind, event.subject) == (EventKind.COMMAND_TAKEN, rollout_id)
    return event


def outcome(store: Store, orders: Orders, kind: CommandKind, rollout_id: str = "r1") -> str:
    said = taken(store, orders, kind, rollout_id).sentence
    begin = f"ada ordered {kind.words} of {rollout_id}: "
    assert said.startswith(begin)
    return said.removeprefix(begin)


def stored(store: Store, rollout_id: str = "r1") -> Rollout:
    with store.view() as uow:
        return uow.rollouts.get(rollout_id)


def active(store: Store) -> EngineConfig | None:
    with store.view() as uow:
        return active_config.stored(uow)


def test_pause_and_resume_are_for_that_rollout_alone(store: Store, orders: Orders) -> None:
    add(store, Phase.PROGRESSING)
    assert outcome(store, orders, PAUSE) == f"config {NEW.digest} stays at its weight."
    assert (stored(store).paused, stored(store).reason) == (True, "by ada")
    with store.view() as uow:
        assert not uow.state.get("paused")
    assert outcome(store, orders, RESUME) == (
        f"config {NEW.digest} goes on, and its step is baked anew."
    )
    assert not stored(store).paused


@pytest.mark.parametrize("kind", [ABORT, ROLLBACK])
@pytest.mark.parametrize("phase", UNDER_WAY)
def test_one_under_way_goes_back(
    store: Store, orders: Orders, kind: CommandKind, phase: Phase
) -> None:
    add(store, phase, paused=True)
    assert outcome(store, orders, kind) == (
        f"config {NEW.digest} goes back to config {OLD.digest}."
    )
    back = stored(store)
    assert (back.phase, back.paused, back.reason) == (
        Phase.ROLLING_BACK,
        False,
        "ada asked for it.",
    )
    assert back.promoted_s is None


@pytest.mark.parametrize("kind", [ABORT, ROLLBACK])
def test_one_that_waits_is_rejected_and_its_question_void(
    store: Store, orders: Orders, kind: CommandKind
) -> None:
    add(store, Phase.WAITING_APPROVAL)
    with store.work() as uow:
        uow.approvals.add(records.request(rollout_id="r1"))
        uow.approvals.answer("approval-1", Answer.APPROVE, "bob", NOW)
        uow.commit()
    assert outcome(store, orders, kind) == f"config {NEW.digest} is rejected."
    assert stored(store).phase is Phase.REJECTED
    assert orders.take(NOW) == ()


def test_a_promoted_one_goes_back_and_production_shall_run_its_baseline(
    store: Store, orders: Orders
) -> None:
    add(store, Phase.PROMOTED)
    assert outcome(store, orders, ROLLBACK) == f"production goes back to config {OLD.digest}."
    back = stored(store)
    assert (back.phase, back.phase_since_s) == (Phase.ROLLING_BACK, NOW)
    assert (back.promoted_s, back.reason) == (2000.0, "ada asked for it.")
    assert active(store) == OLD
    with store.view() as uow:
        assert uow.state.get(active_config.TUNED_SHAPE) is None
        assert uow.state.get(active_config.TUNED_AT) == NOW


@pytest.mark.parametrize(
    ("phase", "kind", "why"),
    [
        (Phase.PROMOTED, ABORT, "it is promoted; `serinus rollout rollback r1` takes it back."),
        (Phase.PROMOTED, PAUSE, "it has ended as promoted."),
        (Phase.ROLLED_BACK, ROLLBACK, "it has ended as rolled_back."),
        (Phase.REJECTED, ABORT, "it has ended as rejected."),
        (Phase.ROLLED_BACK, RESUME, "it has ended as rolled_back."),
        (Phase.ROLLING_BACK, ABORT, "it goes back already."),
        (Phase.ROLLING_BACK, ROLLBACK, "it goes back already."),
        (Phase.ROLLING_BACK, PAUSE, "it goes back already."),
        (Phase.WAITING_APPROVAL, PAUSE, "it waits for approval and does not move before."),
        (Phase.PROGRESSING, RESUME, "it is not paused."),
    ],
)
def test_where_nothing_is_to_be_done_that_is_said(
    store: Store, orders: Orders, phase: Phase, kind: CommandKind, why: str
) -> None:
    before = add(store, phase)
    assert outcome(store, orders, kind) == f"nothing was to be done, {why}"
    assert stored(store) == before


@pytest.mark.parametrize("kind", [PAUSE, ABORT, ROLLBACK])
def test_ordered_again_it_changes_nothing(store: Store, orders: Orders, kind: CommandKind) -> None:
    add(store, Phase.PROGRESSING)
    outcome(store, orders, kind)
    once = stored(store)
    assert outcome(store, orders, kind).startswith("nothing was to be done, it ")
    assert stored(store) == once


def test_ordered_again_it_never_goes_back_two_generations(store: Store, orders: Orders) -> None:
    add(store, Phase.PROMOTED)
    add(store, Phase.PROMOTED, id="r2", baseline=NEW, candidate=THIRD)
    outcome(store, orders, ROLLBACK, "r2")
    for phase in (Phase.ROLLING_BACK, Phase.ROLLED_BACK):
        with store.work() as uow:
            uow.rollouts.save(replace(uow.rollouts.get("r2"), phase=phase))
            uow.commit()
        assert outcome(store, orders, ROLLBACK, "r2").startswith("nothing was to be done, it ")
    assert active(store) == NEW
    assert stored(store).phase is Phase.PROMOTED


def test_what_production_no_longer_runs_does_not_go_back(store: Store, orders: Orders) -> None:
    add(store, Phase.PROMOTED)
    add(store, Phase.PROMOTED, id="r2", baseline=NEW, candidate=THIRD)
    add(store, Phase.PROMOTED, id="r3", baseline=THIRD, candidate=NEW)
    assert outcome(store, orders, ROLLBACK) == (
        f"nothing was to be done, production runs config {NEW.digest} by now."
    )
    assert outcome(store, orders, ROLLBACK, "r2").startswith("nothing was to be done, production")
    assert [stored(store, id).phase for id in ("r1", "r2", "r3")] == [Phase.PROMOTED] * 3
    assert active(store) == NEW


def test_a_promoted_one_is_not_taken_back_from_under_a_newer_one(
    store: Store, orders: Orders
) -> None:
    add(store, Phase.PROMOTED)
    newer = add(store, Phase.PROGRESSING, id="r2", baseline=NEW, candidate=THIRD)
    assert outcome(store, orders, ROLLBACK) == (
        "nothing was done, for rollout r2 began after it and is under way; "
        "`serinus rollout abort r2` ends that one first."
    )
    assert (stored(store, "r2"), active(store)) == (newer, NEW)


def test_while_a_newer_one_goes_back_it_is_to_be_ordered_later(
    store: Store, orders: Orders
) -> None:
    """It once named an order that would have changed nothing."""
    add(store, Phase.PROMOTED)
    add(store, Phase.ROLLING_BACK, id="r2", baseline=NEW, candidate=THIRD)
    assert outcome(store, orders, ROLLBACK) == (
        "nothing was done, for rollout r2 goes back; order it when that has ended."
    )
    assert (stored(store).phase, active(store)) == (Phase.PROMOTED, NEW)


def test_a_question_on_top_of_what_is_taken_back_is_rejected_with_it(
    store: Store, orders: Orders
) -> None:
    add(store, Phase.PROMOTED)
    add(store, Phase.WAITING_APPROVAL, id="r2", baseline=NEW, candidate=THIRD)
    assert outcome(store, orders, ROLLBACK) == (
        f"production goes back to config {OLD.digest}. "
        "Rollout r2, which waited to follow it, is rejected."
    )
    assert stored(store).phase is Phase.ROLLING_BACK
    assert stored(store, "r2").phase is Phase.REJECTED


@pytest.mark.parametrize("phase", [Phase.WAITING_APPROVAL, Phase.REJECTED, Phase.ROLLED_BACK])
def test_a_rollback_that_leaves_production_as_it_is_names_the_one_that_can_be_taken_back(
    store: Store, orders: Orders, phase: Phase
) -> None:
    """Who types no id while a newer one waits, or after it ended, once did not learn of it."""
    add(store, Phase.PROMOTED)
    add(store, phase, id="r2", baseline=NEW, candidate=THIRD)
    there = f"Production runs config {NEW.digest}; `serinus rollout rollback r1` takes that back."
    assert outcome(store, orders, ROLLBACK, "r2").endswith(f". {there}")
    assert there not in outcome(store, orders, ABORT, "r2")
    assert (stored(store).phase, active(store)) == (Phase.PROMOTED, NEW)


@pytest.mark.parametrize("kind", [PAUSE, ABORT, ROLLBACK])
def test_an_order_for_one_that_ended_in_between_reaches_no_other(
    store: Store, orders: Orders, kind: CommandKind
) -> None:
    add(store, Phase.PROGRESSING)
    order(store, kind)
    with store.work() as uow:
        uow.rollouts.save(replace(uow.rollouts.get("r1"), phase=Phase.ROLLED_BACK))
        uow.commit()
    other = add(store, Phase.PROGRESSING, id="r2")
    (event,) = orders.take(NOW)
    assert event.sentence == (
        f"ada ordered {kind.words} of r1: nothing was to be done, it has ended as rolled_back."
    )
    assert stored(store, "r2") == other


def test_a_rollback_of_one_that_was_promoted_in_between_takes_it_back(
    store: Store, orders: Orders
) -> None:
    add(store, Phase.RETURNING)
    order(store, ROLLBACK)
    with store.work() as uow:
        uow.rollouts.save(replace(uow.rollouts.get("r1"), phase=Phase.PROMOTED))
        active_config.changed(uow, NEW, NOW)
        uow.commit()
    orders.take(NOW)
    assert (stored(store).phase, active(store)) == (Phase.ROLLING_BACK, OLD)


def test_twice_before_it_is_taken_is_one_and_another_order_is_another(
    store: Store, orders: Orders
) -> None:
    add(store, Phase.PROGRESSING)
    for kind in (PAUSE, PAUSE, ABORT):
        order(store, kind)
    told = sorted(event.sentence.split(":")[0] for event in orders.take(NOW))
    assert told == ["ada ordered rollout abort of r1", "ada ordered rollout pause of r1"]
    assert stored(store).phase is Phase.ROLLING_BACK


def test_without_the_lease_none_is_taken_and_the_leader_takes_it_once(
    store: Store, orders: Orders
) -> None:
    add(store, Phase.PROMOTED)
    order(store, ROLLBACK)
    deposed = Leadership(store, holder="late", ttl_s=60.0)
    assert not deposed.renew(NOW + 1)
    with pytest.raises(LeaseLost):
        Orders(deposed).take(NOW + 1)
    assert active(store) == NEW
    assert len(orders.take(NOW + 1)) == 1
    assert active(store) == OLD
    assert orders.take(NOW + 2) == ()


def test_pausing_one_that_stands_with_the_controller_keeps_it_when_that_goes_on(
    store: Store, orders: Orders
) -> None:
    add(store, Phase.PROGRESSING)
    for kind, rollout_id in ((CommandKind.PAUSE, ""), (PAUSE, "r1"), (CommandKind.RESUME, "")):
        order(store, kind, rollout_id)
        events = orders.take(NOW)
    assert stored(store).paused
    assert "Rollout r1 was paused by itself" in events[0].sentence
    assert outcome(store, orders, RESUME).startswith(f"config {NEW.digest} goes on")


def test_one_that_stood_with_the_controller_and_goes_back_is_not_paused_again(
    store: Store, orders: Orders
) -> None:
    add(store, Phase.PROGRESSING)
    order(store, CommandKind.PAUSE, "")
    order(store, ABORT)
    orders.take(NOW)
    assert outcome(store, orders, PAUSE) == "nothing was to be done, it goes back already."
    assert not stored(store).paused
