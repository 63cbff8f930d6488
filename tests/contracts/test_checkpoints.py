"""What every place for checkpoints keeps: plain JSON, by study, and nothing that could run."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TypedDict

import pytest
from langgraph.graph import END, START, StateGraph

from agent.graph import Checkpoints, checkpoints, forgotten
from agent.graph.checkpoints import FILE, forget_all
from domain.errors import Temporary
from domain.slo import SLO


class Counted(TypedDict, total=False):
    count: object


@pytest.fixture
def place(url: str) -> Checkpoints:
    """Beside a store, in both databases."""
    return checkpoints(url)


async def kept(place: Checkpoints, thread: str, value: object, *, stop: bool = False) -> object:
    """What a graph of one node that keeps ``value`` finds in its thread afterwards."""

    def node(state: Counted) -> Counted:
        return {"count": value}

    def broken(state: Counted) -> Counted:
        raise RuntimeError("cut off")

    graph = StateGraph(Counted)
    graph.add_node("one", node)
    graph.add_node("two", broken if stop else node)
    graph.add_edge(START, "one")
    graph.add_edge("one", "two")
    graph.add_edge("two", END)
    config = {"configurable": {"thread_id": thread}}
    async with place() as saver:
        compiled = graph.compile(checkpointer=saver)
        try:
            await compiled.ainvoke({"count": 0}, config, durability="sync")
        except RuntimeError:
            assert stop
        return (await compiled.aget_state(config)).values["count"]


async def test_json_comes_back_as_it_was(place: Checkpoints) -> None:
    value = {"a": [1, 2.5, None, True, "ü"], "b": {"c": []}}
    assert await kept(place, "s1", value) == value


@pytest.mark.parametrize("in_memory", [False, True])
async def test_an_object_does_not_come_back_as_one(place: Checkpoints, in_memory: bool) -> None:
    place = forgotten if in_memory else place
    assert not isinstance(await kept(place, "s1", SLO.parse("ttft<=1s")), SLO)


async def test_what_was_kept_before_the_cut_is_found_by_another_run(place: Checkpoints) -> None:
    await kept(place, "s1", 7, stop=True)
    async with place() as saver:
        graph = StateGraph(Counted)
        graph.add_node("one", lambda state: state)
        graph.add_edge(START, "one")
        compiled = graph.compile(checkpointer=saver)
        found = await compiled.aget_state({"configurable": {"thread_id": "s1"}})
        other = await compiled.aget_state({"configurable": {"thread_id": "s2"}})
    assert (found.values["count"], other.values) == (7, {})


async def test_what_earlier_studies_kept_can_be_forgotten(place: Checkpoints) -> None:
    """Else every study that was cut off for good would stay for ever."""
    for thread in ("s1", "s2"):
        await kept(place, thread, 7, stop=thread == "s1")
    async with place() as saver:
        await forget_all(saver)
        assert [each async for each in saver.alist(None)] == []


async def test_a_file_that_cannot_be_written_is_temporary(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"no database" * 100)
    place = checkpoints(f"sqlite:///{tmp_path / 'serinus.db'}")
    with pytest.raises(Temporary, match=FILE):
        await kept(place, "s1", 1)


async def test_a_server_that_is_not_there_is_temporary() -> None:
    place = checkpoints("postgresql+psycopg://nobody:secret@127.0.0.1:1/serinus")
    with pytest.raises(Temporary) as raised:
        async with asyncio.timeout(30), place():
            raise AssertionError("there is no server")
    assert "secret" not in str(raised.value)
