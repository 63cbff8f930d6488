"""One controller may act at a time; one that was deposed cannot write."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.leadership import Leadership
from agent.store import Store
from domain.errors import LeaseLost
from tests.fakes.controller_world import opened

TTL_S = 6.0


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with opened(tmp_path) as store:
        yield store


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
