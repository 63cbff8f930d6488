"""A fleet that serves under live traffic, on which faults are played one after the other.

Gateway, controller, store and Prometheus are real, engines are simulated. A stage knows what is
there and what became of it; which faults there are is said elsewhere.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from agent.active_config import ACTIVE_CONFIG
from agent.demo.traffic import Agents
from agent.store import UnitOfWork, decode
from domain.engine import EngineConfig
from domain.load import RequestRecord
from domain.rollout import Phase, Rollout
from domain.study import Study, Trial
from tests.fakes.controller_forks import ControllerForks
from tests.fakes.json_server import Answer, Asked, served
from tests.fakes.prometheus import PrometheusServer
from tests.fakes.prometheus_proxy import PrometheusProxy
from tests.fakes.running_serinus import Forked, RunningSerinus, until

AGENTS = Agents(
    streams=12, think_s=0.3, system_tokens=64, message_tokens=40.0, osl=16.0, most_rps=20.0
)
LONG = Agents(
    streams=4, think_s=0.1, system_tokens=64, message_tokens=40.0, osl=700.0, most_rps=1.0
)
LONGEST_S = 900.0
BEFORE = 60
DISK_MB = 48
PAIR = (EngineConfig(), EngineConfig.of({"async_scheduling": True}))
NOT_STARTING = EngineConfig.of({"max_num_seqs": 64, "max_num_batched_tokens": 32})
TOKENS = {"ada": "token-of-ada", "bob": "token-of-bob"}
SETTINGS = {
    "autonomy": "approve",
    "slo": "ttft<=500ms, tpot<=60ms, share>=90%",
    "stuck_s": 3.0,
    "drain_s": 60.0,
    "api_tokens": TOKENS,
}
SCRAPES = """
global: {scrape_interval: 500ms, scrape_timeout: 400ms}
scrape_configs:
  - job_name: engines
    file_sd_configs: [{files: [targets.json], refresh_interval: 200ms}]
"""


class Unavailable(Exception):
    """This machine lacks what the fault needs; says what."""


class Told(NamedTuple):
    """What became of one fault. ``recovery_s`` is from the fault, or its end where it ends, until
    all was as the store says; ``broken`` are the arms whose answers failed."""

    client_errors: int
    requests: int
    recovery_s: float
    ended: str
    wrong_promotions: int
    broken: frozenset[str]


class Stage:
    """``forks`` starts controllers. Close it at the end."""

    def __init__(self, folder: Path, forks: ControllerForks, **settings: Any) -> None:
        self.serinus = RunningSerinus(folder, forks=forks, **{**SETTINGS, **settings})
        self.fault_s = 0.0
        self._number = 0

    def open(self) -> None:
        """Until production serves under traffic."""
        self.serinus.up()
        self.serinus.send_traffic(AGENTS, LONGEST_S)
        # A step at 100 % is judged by the time before the rollout.
        enough = f"{BEFORE} requests were answered"
        until(lambda: len(self.serinus.sent().records) >= BEFORE, enough, 90, self.serinus.said)

    def restarted(self, config: Path | None = None, **forked: Any) -> None:
        """Another controller in place of the one that acts, at once."""
        if self.serinus.controllers[-1].poll() is None:
            self.serinus.end()
        self.serinus.up(config, **Forked(**forked))
        self.serinus.begun()

    def settled(self) -> None:
        """A controller as it should be, over a fleet that is."""
        self.restarted()
        self.serinus.serves()
        until(self.at_rest, "the fleet is at rest", 60, self.serinus.said)

    def at_rest(self) -> bool:
        """Whether the gateway does as the store says where nothing is under way: all to a
        production that serves with its config, and nothing else there."""
        split = self.serinus.split()
        serving = {slot.slot for slot in split.slots if slot.admitted and slot.up}
        engines = self.serinus.engines()
        weights = (split.weight, self.serinus.weight())
        return weights == (0, 0) and serving == {"production-0"} and len(engines) == 1

    def active(self) -> EngineConfig:
        """What production should run."""
        with self.serinus.store.view() as uow:
            kept = uow.state.get(ACTIVE_CONFIG)
        return PAIR[0] if kept is None else decode(EngineConfig, kept)

    def begin(self, candidate: EngineConfig | None = None, **plan: Any) -> None:
        """A rollout, of a good candidate where none is given."""
        self._number += 1
        active = self.active()
        other = next(config for config in PAIR if config != active)
        name = f"rollout-{self._number}"
        self.serinus.begin_rollout(candidate or other, active, name=name, **plan)

    def rollout(self) -> Rollout:
        with self.serinus.store.view() as uow:
            return uow.rollouts.latest(1)[0]

    def bakes(self, step: int = 0) -> None:
        """Wait until that step bakes."""

        def look(uow: UnitOfWork) -> bool:
            rollout = uow.rollouts.latest(1)[0]
            assert not rollout.phase.ended, rollout.reason
            at = rollout.phase is Phase.PROGRESSING and rollout.step == step
            return at and rollout.baking_since_s is not None

        self.serinus.until(look, f"step {step} bakes", 60)

    def in_phase(self, phase: Phase) -> None:
        wanted = f"the rollout is {phase.value}"
        self.serinus.until(lambda uow: uow.rollouts.latest(1)[0].phase is phase, wanted, 60)

    def fault(self) -> None:
        """Now it happened, or now it is over: recovery begins."""
        self.fault_s = time.time()

    def holds(self, seconds: float) -> None:
        """Watch the rollout stay at its step for so long."""
        before = self.rollout()
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            now = self.rollout()
            assert (now.phase, now.step) == (before.phase, before.step), now.reason
            time.sleep(0.1)

    def ended(self) -> str:
        """How the rollout ended. A step whose scrapes were lost waits ten times as long as they
        were, which on a busy machine is long."""
        self.serinus.until(lambda uow: uow.rollouts.latest(1)[0].phase.ended, "it ends", 300)
        return self.rollout().phase.value

    def failed(self, since_s: float) -> tuple[int, list[RequestRecord]]:
        """How many requests ended since then (Unix seconds), and those that failed."""
        traffic = self.serinus.sent()
        ended = [r for r in traffic.records if traffic.started_s + r.end_s >= since_s]
        return len(ended), [record for record in ended if record.failed]

    def long_streams(self) -> LongStreams:
        return LongStreams(self.serinus)

    def close(self) -> None:
        self.serinus.close()


class LongStreams:
    """Streams of half a minute, longer than any phase, beside the short ones."""

    def __init__(self, serinus: RunningSerinus) -> None:
        self._path = serinus.folder / f"long-{time.time()}.jsonl"
        self._sending = serinus.sending(self._path, LONG, LONGEST_S)

    def begun(self) -> None:
        until(lambda: self._path.exists() and self._path.read_text(), "they are sent", 30)

    def end(self) -> tuple[RequestRecord, ...]:
        """All of them; those under way now are cancelled by their client."""
        return RunningSerinus.ended(self._sending, self._path).records


def played(stage: Stage, play: Callable[[Stage], str], bad: bool) -> Told:
    """Play one fault and tell what became of it; ``bad`` is that nothing may be promoted."""
    stage.settled()
    since_s = time.time()
    ended = play(stage)
    until(stage.at_rest, "the fleet is at rest", 60, stage.serinus.said)
    recovery_s = time.time() - stage.fault_s
    requests, failed = stage.failed(since_s)
    return Told(
        client_errors=len(failed),
        requests=requests,
        recovery_s=round(recovery_s, 1),
        ended=ended,
        wrong_promotions=int(bad and ended == Phase.PROMOTED.value),
        broken=frozenset(record.arm or "none" for record in failed),
    )


@contextmanager
def small_disk(path: Path) -> Iterator[None]:
    """A disk of ``DISK_MB`` at ``path``, in memory."""
    path.mkdir(mode=0o700)
    kind = f"size={DISK_MB}m,mode=700"
    given = ["mount", "-t", "tmpfs", "-o", kind, "serinus-test", str(path)]
    try:
        subprocess.run(given, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        yield
        return
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


class Plain(Stage):
    """Metrics by the controller's own scrapes; its state is on a small disk where one is to be
    had."""

    @classmethod
    @contextmanager
    def opened(cls, forks: ControllerForks) -> Iterator[Stage]:
        with ExitStack() as held:
            folder = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="serinus-f-")))
            held.enter_context(small_disk(folder / "state"))
            stage = cls(folder, forks)
            held.callback(stage.close)
            stage.open()
            yield stage


class Studied(Stage):
    """Its planner is a language model, which gives ``answers`` in turn."""

    answers: Sequence[Answer]
    asked: list[Asked]

    @classmethod
    @contextmanager
    def opened(cls, forks: ControllerForks) -> Iterator[Stage]:
        asked: list[Asked] = []
        with ExitStack() as held:
            folder = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="serinus-f-")))

            def answer(one: Asked) -> Answer:
                asked.append(one)
                return stage.answers[(len(asked) - 1) % len(stage.answers)]

            url = held.enter_context(served(answer))
            stage = cls(
                folder,
                forks,
                autonomy="recommend",
                planner="model",
                model_base_url=f"{url}/v1",
                model_name="small",
                trial_budget=3,
                fidelity_limit="D",
            )
            stage.answers, stage.asked = (Answer(503, b"{}"),), asked
            held.callback(stage.close)
            stage.open()
            yield stage

    def study(self, since_s: float) -> Study:
        """The study that was ordered then, once it has ended."""

        def look(uow: UnitOfWork) -> Study | None:
            latest = next(iter(uow.studies.latest(1)), None)
            over = latest is not None and latest.created_s >= since_s and latest.state.ended
            return latest if over else None

        found = self.serinus.until(look, "the study ends", 240)
        assert found is not None
        return found

    def trials(self, study: Study) -> tuple[Trial, ...]:
        with self.serinus.store.view() as uow:
            return uow.trials.of(study.id)


class Watched(Stage):
    """Metrics by a real Prometheus, behind a proxy."""

    prometheus: PrometheusServer
    proxy: PrometheusProxy
    home: Path

    @classmethod
    @contextmanager
    def opened(cls, forks: ControllerForks) -> Iterator[Stage]:
        binary = shutil.which("prometheus")
        if binary is None:
            raise Unavailable("no prometheus executable")
        with ExitStack() as held:
            folder = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="serinus-f-")))
            home = folder / "prometheus"
            home.mkdir()
            prometheus = PrometheusServer(binary, home, SCRAPES)
            held.callback(prometheus.stop)
            proxy = PrometheusProxy(prometheus.url)
            url = held.enter_context(proxy.running())
            stage = cls(folder, forks, metrics="prometheus", prometheus_url=url)
            held.callback(stage.close)
            stage.prometheus, stage.proxy, stage.home = prometheus, proxy, home
            stage.scrapes()
            stage.open()
            yield stage

    def scrapes(self, canary_port: int | None = None, others: dict[str, int] | None = None) -> None:
        """Let Prometheus scrape both slots, and ``others`` of the candidate's arm. A slot stays the
        same target, wherever it is asked for."""
        ports = {
            "production-0": int(self.serinus.settings["production_port"]),
            "canary-0": canary_port or int(self.serinus.settings["canary_port"]),
            **(others or {}),
        }
        arms = {name: "production" if name == "production-0" else "candidate" for name in ports}
        targets = [
            {
                "targets": [f"127.0.0.1:{port}"],
                "labels": {"arm": arms[name], "replica": name, "instance": name},
            }
            for name, port in ports.items()
        ]
        fresh = self.home / "targets.new"
        fresh.write_text(json.dumps(targets))
        fresh.replace(self.home / "targets.json")
