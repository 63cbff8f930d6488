"""One controller may act at a time; one that was deposed cannot write."""

import pytest

from agent.leadership import Leadership
from agent.orders import Orders
from agent.store import Store, open_store
from domain.approval import CommandKind
from domain.errors import LeaseLost, Temporary
from domain.events import Event, EventKind
from tests.fakes import records

TTL_S = 6.0


def leader(store: Store, holder: str) -> Leadership:
    return Leadership(store, holder=holder, ttl_s=TTL_S)


def write(leadership: Leadership, value: str) -> None:
    with leadership.work() as uow:
        uow.state.set("by", value)
        uow.commit()


def written(leadership: Leadership) -> object:
    with leadership.view() as uow:
        return uow.state.get("by")


def test_only_the_holder_may_write(store: Store) -> None:
    one, two = leader(store, "one"), leader(store, "two")
    assert one.renew(0.0)
    assert not two.renew(TTL_S - 0.1)
    write(one, "one")
    with pytest.raises(LeaseLost, match="does not hold"):
        write(two, "two")
    assert written(two) == "one"


def test_it_is_kept_as_long_as_it_is_renewed(store: Store) -> None:
    one, two = leader(store, "one"), leader(store, "two")
    for now in range(0, 30, 5):
        assert one.renew(float(now))
        assert not two.renew(now + 1.0)


def test_a_holder_that_paused_too_long_is_told_once_and_cannot_write(store: Store) -> None:
    one, two = leader(store, "one"), leader(store, "two")
    assert one.renew(0.0)
    assert two.renew(TTL_S)
    with pytest.raises(LeaseLost, match="nothing was written"):
        write(one, "one")
    with pytest.raises(LeaseLost, match="went to another controller"):
        one.renew(TTL_S + 1)
    assert not one.renew(TTL_S + 2)
    with pytest.raises(LeaseLost, match="does not hold"):
        write(one, "one")
    assert written(one) is None


def test_it_may_act_until_another_took_over_and_not_after(store: Store) -> None:
    one, two = leader(store, "one"), leader(store, "two")
    assert not one.may_act()
    assert one.renew(0.0)
    assert one.may_act()
    assert two.renew(TTL_S)
    assert not one.may_act()
    assert two.may_act()
    two.release()
    assert not two.may_act()


def test_a_lapsed_lease_that_nobody_took_is_simply_renewed(store: Store) -> None:
    one = leader(store, "one")
    assert one.renew(0.0)
    assert one.renew(TTL_S * 10)
    write(one, "one")
    assert written(one) == "one"


def test_one_that_was_lost_and_is_free_again_is_announced_as_lost_first(store: Store) -> None:
    one, two = leader(store, "one"), leader(store, "two")
    assert one.renew(0.0)
    assert two.renew(TTL_S)
    two.release()
    with pytest.raises(LeaseLost):
        one.renew(TTL_S + 1)
    assert one.renew(TTL_S + 2)
    write(one, "one")
    assert written(one) == "one"


def test_released_it_can_be_taken_at_once(store: Store) -> None:
    one, two = leader(store, "one"), leader(store, "two")
    assert one.renew(0.0)
    one.release()
    assert two.renew(0.1)
    write(two, "two")


def test_releasing_what_another_holds_takes_nothing_from_it(store: Store) -> None:
    one, two = leader(store, "one"), leader(store, "two")
    assert one.renew(0.0)
    assert two.renew(TTL_S)
    one.release()
    leader(store, "three").release()
    assert not leader(store, "three").renew(TTL_S + 1)
    write(two, "two")


def test_a_leader_that_slept_commits_nothing_of_what_it_had_begun(store: Store) -> None:
    """It paused between its writes and its commit, and another took over meanwhile."""
    one, two = leader(store, "one"), leader(store, "two")
    assert one.renew(0.0)
    with one.work() as uow:
        begun = uow.state.get("by")
    assert begun is None
    asleep = one.work()
    assert two.renew(TTL_S)
    write(two, "two")
    with asleep:
        asleep.state.set("by", "one, after it woke")
        asleep.events.add(Event(at_s=TTL_S, kind=EventKind.HELD, sentence="Late."))
        with pytest.raises(LeaseLost, match="nothing was written"):
            asleep.commit()
    assert written(two) == "two"
    with two.view() as uow:
        assert uow.events.latest(9) == ()


def test_while_a_leader_commits_none_takes_the_lease_from_under_it(url: str) -> None:
    """The fence holds from its check to the end of the commit."""
    with open_store(url) as store, open_store(url, busy_timeout_s=0.2) as impatient:
        one, two = leader(store, "one"), leader(impatient, "two")
        assert one.renew(0.0)
        with one.work() as uow:
            uow.lease.require(1)
            with pytest.raises(Temporary, match="locked"):
                two.renew(TTL_S)
            uow.state.set("by", "one")
            uow.commit()
        assert two.renew(TTL_S)
        assert written(two) == "one"


def test_of_two_that_lead_in_turn_each_order_is_taken_once(store: Store) -> None:
    one, two = leader(store, "one"), leader(store, "two")
    assert one.renew(0.0)

    def order(number: int) -> None:
        with store.work() as uow:
            uow.commands.add(records.command(id=f"c{number}", kind=CommandKind.TUNE))
            uow.commit()

    order(1)
    with pytest.raises(LeaseLost):
        Orders(two).take(1.0)
    assert len(Orders(one).take(1.0)) == 1
    assert two.renew(TTL_S)
    assert Orders(two).take(TTL_S) == ()
    order(2)
    with pytest.raises(LeaseLost):
        Orders(one).take(TTL_S)
    assert len(Orders(two).take(TTL_S)) == 1
