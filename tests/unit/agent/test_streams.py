"""The longest stream is remembered, and an engine may take as long to drain."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from agent import streams
from agent.store import Store
from tests.fakes.controller_world import opened
from tests.fakes.shapes import shape

LEAST_S = 600.0


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with opened(tmp_path) as store:
        yield store


def seen(store: Store, longest_s: float | None, at_s: float) -> float:
    """A window ends with such a stream; how long a drain may take from then on."""
    window = shape()
    longest_ms = None if longest_s is None else longest_s * 1000
    latencies = replace(window.latencies, e2el_longest_ms=longest_ms)
    with store.work() as uow:
        streams.note(uow, replace(window, latencies=latencies, end_s=at_s))
        uow.commit()
        return streams.drain_s(uow, LEAST_S)


def test_a_drain_lasts_at_least_as_long_as_the_setting_and_as_any_stream(store: Store) -> None:
    assert seen(store, None, 0.0) == LEAST_S
    assert seen(store, 60.0, 10.0) == LEAST_S
    assert seen(store, 1920.0, 20.0) == 1920.0
    assert seen(store, 60.0, 30.0) == 1920.0


def test_a_stream_is_forgotten_a_week_after_the_last_one_as_long(store: Store) -> None:
    assert seen(store, 1920.0, 0.0) == 1920.0
    again_s = streams.REMEMBERED_S - 10
    assert seen(store, 1920.0, again_s) == 1920.0
    assert seen(store, 960.0, again_s + streams.REMEMBERED_S - 1) == 1920.0
    assert seen(store, 960.0, again_s + streams.REMEMBERED_S) == 960.0


def test_where_the_longest_is_forgotten_the_next_one_of_the_week_counts(store: Store) -> None:
    """One window without long streams once was all that was left of the week."""
    assert seen(store, 7200.0, 0.0) == 7200.0
    assert seen(store, 3600.0, streams.REMEMBERED_S - 7200) == 7200.0
    assert seen(store, 10.0, streams.REMEMBERED_S) == 3600.0
    assert seen(store, 10.0, 2 * streams.REMEMBERED_S) == LEAST_S


def test_what_an_older_version_kept_is_learned_anew(store: Store) -> None:
    with store.work() as uow:
        uow.state.set(streams.LONGEST, {"lasting_s": 1920.0, "seen_s": 0.0})
        uow.commit()
        assert streams.drain_s(uow, LEAST_S) == LEAST_S
    assert seen(store, 960.0, 10.0) == 960.0
