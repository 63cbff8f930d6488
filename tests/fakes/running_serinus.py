"""A whole Serinus in a folder of its own, as a person runs it: for tests that kill its controllers.

Nothing is faked here but the engines, which are simulated. Every process that it leads to is ended
by ``close``, also after a test that failed.
"""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import psutil

from agent import interpretation
from agent.demo.run import free_ports
from agent.demo.scenario import SIMULATED
from agent.demo.traffic import Traffic, read_traffic
from agent.settings import Settings
from agent.store import Store, UnitOfWork, open_store
from canary.gateways.haproxy import HAProxyGateway
from domain.engine import EngineConfig
from domain.errors import SerinusError
from domain.events import Event
from domain.fleet import Split
from domain.rollout import Phase, Rollout, RolloutPlan, StallAction, Step, carried

ROOT = Path(__file__).parents[2]
TOKEN = "SERINUS_ENGINE_TOKEN"
POLL_S = 0.02
START_S = 120.0
"""Within which a controller, and then an engine, is up, also on a machine that is busy."""
LEASE_S = 6.0
Found = TypeVar("Found")


def until(
    look: Callable[[], Found], what: str, within_s: float, said: Callable[[], str] = str
) -> Found:
    """The first true answer of ``look``; fails with ``said`` where none comes in time."""
    end_s = time.monotonic() + within_s
    while not (found := look()):
        assert time.monotonic() < end_s, f"Not within {within_s:.0f} s: {what}.\n{said()}"
        time.sleep(POLL_S)
    return found


def _toml(value: Any) -> str:
    """The value as TOML, which has JSON's words for all but tables."""
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_toml(each)}" for key, each in value.items()) + "}"
    return json.dumps(value)


class RunningSerinus:
    """One state folder, its ports and its settings file; times are short, engines simulated."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        self.folder = folder
        gateway, api, production, canary = free_ports()
        self.settings = {
            "state_dir": str(folder / "state"),
            "model": "demo-hybrid",
            "gateway_port": gateway,
            "api_port": api,
            "production_port": production,
            "canary_port": canary,
            # Runs of three seconds prove little of a tail; one within its limit is no harm.
            "slo": "ttft<=500ms, tpot<=250ms, e2el<=2s, share>=90%",
            "autonomy": "autonomous",
            "cycle_s": 0.3,
            "scrape_interval_s": 0.5,
            "window_s": 5.0,
            "min_requests": 8,
            "step_requests": 8,
            "steps": [25, 100],
            "bake_s": 2.0,
            "stall_s": 60.0,
            "trial_budget": 2,
            "trial_warm_up_s": 1.0,
            "trial_s": 3.0,
            "confirm_rounds": 2,
            "quality_questions": 0,
            "cooldown_s": 0.0,
            "engine_start_s": 20.0,
            "drain_s": 15.0,
            **changes,
        }
        self.controllers: list[subprocess.Popen[bytes]] = []
        self._traffic: subprocess.Popen[bytes] | None = None
        self._store: Store | None = None
        self.config = self.write("serinus.toml")

    def write(self, name: str, **changes: Any) -> Path:
        """A settings file with these changes."""
        path = self.folder / name
        given = {**self.settings, **changes}
        path.write_text("".join(f"{k} = {_toml(v)}\n" for k, v in given.items()))
        return path

    def up(self, config: Path | None = None) -> subprocess.Popen[bytes]:
        """Start a controller and return at once; what it says goes to a log of its own."""
        with (self.folder / f"controller-{len(self.controllers)}.log").open("wb") as log:
            controller = subprocess.Popen(
                [sys.executable, "-m", "agent.cli", "up", "--config", str(config or self.config)],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self.controllers.append(controller)
        return controller

    def kill(self, controller: subprocess.Popen[bytes] | None = None) -> None:
        """End a controller (the newest) by SIGKILL. What only it needs must end by itself."""
        killed = controller or self.controllers[-1]
        children = psutil.Process(killed.pid).children(recursive=True)
        engines = self.engines()
        killed.kill()
        killed.wait()
        helpers = [child for child in children if child not in engines]
        until(lambda: not any(map(_runs, helpers)), f"{helpers} ended with the controller", 10)

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run ``serinus`` with these words to its end."""
        return subprocess.run(
            [sys.executable, "-m", "agent.cli", *words, "--config", str(self.config)],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=START_S,
            check=False,
        )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.settings['gateway_port']}"

    @property
    def store(self) -> Store:
        """The store, once a controller has made it."""
        if self._store is None:
            self._store = until(self._opened, "there is a store", START_S, self.said)
        return self._store

    def until(
        self, true: Callable[[UnitOfWork], Found], what: str, within_s: float = 60.0
    ) -> Found:
        """Look at the store every 20 ms; the first true answer."""

        def look() -> Found:
            with self.store.view() as uow:
                return true(uow)

        return until(look, what, within_s, self.said)

    def events(self) -> tuple[Event, ...]:
        """Oldest first."""
        with self.store.view() as uow:
            return uow.events.latest(1000)[::-1]

    def serves(self) -> None:
        """Wait until a request through the gateway meets an engine."""
        port = int(self.settings["gateway_port"])
        until(lambda: _answers(port), "production takes requests", START_S, self.said)

    def begin_rollout(self, candidate: EngineConfig) -> None:
        """As a study would; without traffic it goes to its first step and waits for evidence. In
        place it is as a person has approved it."""
        now = time.time()
        replicas = 1 + len(self.settings.get("further_replicas", []))
        in_place = bool(self.settings.get("in_place"))
        weights = () if in_place else carried((25, 100), replicas)
        rollout = Rollout(
            id="given",
            study_id="",
            version=1,
            created_s=now,
            baseline=EngineConfig(),
            candidate=candidate,
            plan=RolloutPlan(
                steps=tuple(Step(weight=weight, bake_s=2.0) for weight in weights),
                min_requests=8,
                stall_s=60.0,
                stall_action=StallAction.HOLD,
                start_s=float(self.settings["engine_start_s"]),
                replicas=replicas,
                in_place=in_place,
            ),
            phase=Phase.CONVERTING if in_place else Phase.STARTING,
            phase_since_s=now,
        )
        with self.store.work() as uow:
            uow.rollouts.add(rollout)
            uow.commit()

    def send_traffic(self) -> None:
        """Begin live traffic through the gateway, once it serves."""
        self.serves()
        self._traffic = subprocess.Popen(
            [sys.executable, "-m", "agent.demo.traffic", "--url", self.url,
             "--model", "demo-hybrid", "--records", str(self.folder / "traffic.jsonl"),
             "--agents", SIMULATED.agents.written(), "--longest", str(SIMULATED.longest_s)],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip

    def sent(self) -> list[bytes]:
        """A line for each request of the live traffic that has ended."""
        path = self.folder / "traffic.jsonl"
        return path.read_bytes().splitlines()[1:] if path.exists() else []

    def until_answered(self, requests: int) -> None:
        """Wait until so many requests of the live traffic have ended."""
        what = f"{requests} requests have ended"
        until(lambda: len(self.sent()) >= requests, what, START_S, self.said)

    def end_traffic(self) -> Traffic:
        """All that was sent, once it has ended."""
        assert self._traffic is not None
        self._traffic.send_signal(signal.SIGTERM)
        assert self._traffic.wait(20) == 0
        return read_traffic(self.folder / "traffic.jsonl")

    def weight(self) -> int:
        """The candidate's weight as the gateway has it on disk."""
        kept = json.loads((self.folder / "state" / "gateway" / "state.json").read_text())
        return int(kept["weight"])

    def split(self) -> Split:
        """The split as the running HAProxy has it, which must be up."""
        settings = Settings(**self.settings)
        slots = (*interpretation.production(settings), interpretation.lanes(settings)[0])
        gateway = HAProxyGateway(
            directory=self.folder / "state" / "gateway", port=settings.gateway_port, slots=slots
        )
        return asyncio.run(gateway.read())

    def engine(self, port: int) -> psutil.Process | None:
        """The engine on this port."""
        return next((found for found in self.engines() if str(port) in found.cmdline()), None)

    def engines(self) -> list[psutil.Process]:
        """Every engine that runs on these ports, whoever knows of it or not."""
        ports = {str(self.settings[f"{role}_port"]) for role in ("production", "canary")}
        for name in ("further_replicas", "search_lanes"):
            ports |= {str(place["port"]) for place in self.settings.get(name, [])}
        return [
            process
            for process in filter(_runs, psutil.process_iter())
            if ports & set(_asked(process.cmdline)) and TOKEN in _asked(process.environ)
        ]

    def processes(self) -> list[psutil.Process]:
        """All that runs of this Serinus: engines, gateway, controllers, traffic."""
        named = [
            process
            for process in filter(_runs, psutil.process_iter())
            if str(self.folder) in " ".join(_asked(process.cmdline))
        ]
        return [*named, *(engine for engine in self.engines() if engine not in named)]

    def said(self) -> str:
        """All events and the last words of each controller, for a test that fails."""
        events = [event.sentence for event in self.events()] if self._store else []
        logs = sorted(self.folder.glob("controller-*.log"))
        return "\n".join([*events, *(f"--- {log.name}\n{log.read_text()[-1500:]}" for log in logs)])

    def close(self) -> None:
        for child in [*self.controllers, *filter(None, [self._traffic])]:
            child.kill()
            child.wait()
        left = self.processes()
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, 10)
        if self._store is not None:
            self._store.close()

    def _opened(self) -> Store | None:
        path = self.folder / "state" / "serinus.db"
        with suppress(SerinusError):
            return open_store(f"sqlite:///{path}") if path.exists() else None
        return None


def _answers(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 2) as asked:
        asked.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        return asked.recv(64).startswith(b"HTTP/1.1 200")
    return False


def _runs(process: psutil.Process) -> bool:
    return process.is_running() and _asked(process.status) != psutil.STATUS_ZOMBIE


def _asked(look: Callable[[], Any]) -> Any:
    """What a process says of itself; nothing where it is gone."""
    try:
        return look()
    except psutil.Error:
        return ()
