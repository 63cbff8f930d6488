"""Studies that are killed at one point after another, and gone on with by a successor.

Run as a program: ``killed_study.py STORE DIRECTORY``. Points lie before and after each question to
the planner, each rehearsal, each write of a trial and each checkpoint. For the n-th of them a
process of its own runs the study on a copy of STORE and ends itself there by SIGKILL; another goes
on with it. Prints a JSON line for each, the last one for a study that nothing interrupted.
"""

import asyncio
import itertools
import json
import os
import shutil
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver

from agent.graph import Look, StudyGraph, checkpoints
from agent.leadership import Leadership
from agent.rehearsals import StoredTrials, unresolved
from agent.store import open_store
from domain.engine import EngineConfig, SearchSpace
from domain.fidelity import Fidelity, Grade
from domain.ports import Proposal, Proposals
from domain.study import Measurement, QualityScore, Study, Trial, TrialState
from domain.verdict import Outcome, Verdict
from tests.fakes.clock import FakeClock
from tests.fakes.records import knob, measured

SPACE = SearchSpace(knobs=(knob("speed", (1, 3)),))
SPEEDS = (3,)
LEASE_S = 10.0


class Points:
    """Ends this process at the n-th point, from 0; keeps what was done on the way in a file."""

    def __init__(self, last: int, heard: Path) -> None:
        self._last = last
        self._heard = heard
        self._passed = 0

    def passed(self) -> None:
        if self._passed == self._last:
            os.kill(os.getpid(), signal.SIGKILL)
        self._passed += 1

    def note(self, word: str) -> None:
        with self._heard.open("a") as file:
            file.write(f"{word}\n")


class Planner:
    """Proposes each speed, fastest first; an answer costs, so each one is noted."""

    def __init__(self, points: Points) -> None:
        self._points = points

    async def propose(
        self, study: Study, space: SearchSpace, trials: Sequence[Trial], limit: int
    ) -> Proposals:
        self._points.passed()
        self._points.note("asked")
        configs = [EngineConfig.of({"speed": speed}) for speed in SPEEDS]
        ranked = [Proposal(config=c, hypothesis="It is faster.", metric="") for c in configs]
        self._points.passed()
        return Proposals("planner", tuple(ranked))


class Log(StoredTrials):
    def __init__(self, leadership: Leadership, points: Points) -> None:
        super().__init__(leadership)
        self._points = points

    def add(self, trial: Trial) -> None:
        self._points.passed()
        super().add(trial)
        self._points.passed()

    def save(self, trial: Trial) -> None:
        self._points.passed()
        super().save(trial)
        self._points.passed()


def ask(
    trials: Sequence[Trial], configs: Sequence[EngineConfig], without: Collection[EngineConfig]
) -> EngineConfig | None:
    return next((config for config in configs if config not in without), None)


def judge(baseline: Sequence[Measurement], candidate: Sequence[Measurement]) -> Look:
    return Look(Verdict(outcome=Outcome.PASS, reason="It is faster."), open=False)


def judge_quality(baseline: QualityScore, candidate: QualityScore) -> Verdict:
    raise AssertionError("nothing here is lossy")


def worth(config: EngineConfig) -> float:
    return 1000.0 * float(config.get("speed") or 1)


async def run(url: str, points: Points, clock: FakeClock) -> None:
    """The study under way in this store, to its conclusion."""
    store = open_store(url)
    leadership = Leadership(store, holder=str(os.getpid()), ttl_s=LEASE_S)
    assert leadership.renew(clock.now())
    with store.view() as uow:
        study = uow.studies.running()
    assert study is not None
    opened = checkpoints(url)

    @asynccontextmanager
    async def watched() -> AsyncIterator[BaseCheckpointSaver[Any]]:
        async with opened() as saver:
            put = saver.aput

            async def aput(*what: Any) -> Any:
                points.passed()
                kept = await put(*what)
                points.passed()
                return kept

            saver.aput = aput  # type: ignore[method-assign]
            yield saver

    async def rehearse(trial: Trial, quality: bool) -> Trial:
        points.passed()
        found = measured(worth(trial.config))
        points.passed()
        return replace(trial, state=TrialState.MEASURED, measurement=found)

    ids = itertools.count()
    graph = StudyGraph(
        planner=Planner(points),
        diagnose=lambda *asked: "Decoding limits it.",
        space=SPACE,
        log=Log(leadership, points),
        rehearse=rehearse,
        resolve=unresolved,
        ask=ask,
        best=lambda trials, objective: max(trials, key=lambda t: worth(t.config), default=None),
        judge=judge,
        judge_quality=judge_quality,
        compare=lambda shape, found: Fidelity(grade=Grade.A, rows=(), reasons=()),
        fidelity_limit=Grade.C,
        rounds=1,
        checkpoints=watched,
        clock=clock,
        new_id=lambda: f"t{os.getpid()}-{next(ids)}",
    )
    conclusion = await graph.run(study)
    with store.view() as uow:
        trials = uow.trials.of(study.id)
    found = conclusion.recommendation
    ended = {
        "recommended": None if found is None else str(found.config),
        "measured": _counted(t for t in trials if t.state is TrialState.MEASURED),
        "others": [t.failure.kind.value if t.failure else t.state.value
                   for t in trials if t.state is not TrialState.MEASURED],
        "diagnoses": sorted({t.diagnosis for t in trials}),
    }  # fmt: skip
    points.note(json.dumps(ended))
    store.close()


def _counted(trials: Any) -> dict[str, int]:
    return dict(sorted(Counter(f"{t.purpose.value} {t.config}" for t in trials).items()))


def _in_child(url: str, points: Points, at_s: float) -> int:
    """How a process ends that runs the study up to the last of these points."""
    child = os.fork()
    if child == 0:
        asyncio.run(run(url, points, FakeClock(at_s)))
        os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def main() -> None:
    store, directory = map(Path, sys.argv[1:])
    for point in itertools.count():
        folder = directory / str(point)
        folder.mkdir()
        shutil.copy(store, folder / store.name)
        url, heard = f"sqlite:///{folder / store.name}", folder / "heard"
        ended = _in_child(url, Points(point, heard), 1000.0)
        if ended == -signal.SIGKILL:
            successor = _in_child(url, Points(-1, heard), 1000.0 + 2 * LEASE_S)
            assert successor == 0, f"the successor ended with {successor}"
        else:
            assert ended == 0, f"the study ended with {ended}"
        *words, last = heard.read_text().splitlines()
        said = {**json.loads(last), "asked": words.count("asked")}
        print(json.dumps(said), flush=True)
        if ended == 0:
            break


if __name__ == "__main__":
    main()
