"""Runs one node of a graph that LangSmith would trace, as a program of its own.

Its variables are read once in a process. ``study`` runs a study as Serinus does, ``bare`` a graph
of LangGraph's alone: the control that shows that such variables do send a state away.
"""

from __future__ import annotations

import asyncio
import sys

from langgraph.graph import END, START, StateGraph
from langsmith import Client
from langsmith.run_trees import get_cached_client

from agent.graph import StudyGraph
from agent.planner.rulebook import Rulebook
from agent.rehearsals import unresolved
from domain.engine import EngineConfig, SearchSpace
from domain.study import Study, Trial
from tests.fakes.clock import FakeClock
from tests.fakes.records import knob, study


class Stopped(Exception):
    """Ends the study at its first trial."""


class NoTrials:
    def trials(self, study_id: str) -> tuple[Trial, ...]:
        return ()

    def add(self, trial: Trial) -> None:
        raise Stopped

    save = add


async def run_study() -> None:
    def unused(*given: object) -> object:
        raise AssertionError("the study ends before")

    graph = StudyGraph(
        diagnose=lambda *asked: "Nothing limits it.",
        planner=Rulebook(),
        space=SearchSpace(knobs=(knob("async_scheduling", (False, True)),)),
        log=NoTrials(),
        rehearse=unused,  # type: ignore[arg-type]
        resolve=unresolved,
        ask=unused,  # type: ignore[arg-type]
        best=unused,  # type: ignore[arg-type]
        judge=unused,  # type: ignore[arg-type]
        judge_quality=unused,  # type: ignore[arg-type]
        compare=unused,  # type: ignore[arg-type]
        fidelity_limit=None,
        rounds=1,
        clock=FakeClock(),
        new_id=lambda: "t1",
    )
    try:
        await graph.run(study(baseline=EngineConfig(), reason="A secret of ours."))
    except Stopped:
        print("stopped at its first trial")


async def run_bare() -> None:
    async def node(state: dict[str, Study]) -> dict[str, Study]:
        return state

    graph = StateGraph(dict)
    graph.add_node("node", node)
    graph.add_edge(START, "node")
    graph.add_edge("node", END)
    asked = study(baseline=EngineConfig(), reason="A secret of ours.")
    await graph.compile().ainvoke({"study": asked})


if __name__ == "__main__":
    asyncio.run({"study": run_study, "bare": run_bare}[sys.argv[1]]())
    client: Client = get_cached_client()
    client.flush()
