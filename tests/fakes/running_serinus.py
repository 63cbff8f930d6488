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
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias, TypedDict, TypeVar, Unpack

import psutil

from agent import approvals, gateways
from agent.demo.ports import free_ports
from agent.demo.scenario import SIMULATED
from agent.demo.traffic import Agents, Traffic, read_traffic
from agent.settings import Settings
from agent.store import Store, UnitOfWork, open_store
from domain.approval import Command, CommandKind
from domain.engine import EngineConfig
from domain.errors import SerinusError
from domain.events import Event
from domain.fleet import Split
from domain.rollout import Phase, Rollout, RolloutPlan, StallAction, Step, carried
from tests.fakes.controller_forks import ControllerForks, Death, ForkedController

ROOT = Path(__file__).parents[2]
TOKEN = "SERINUS_ENGINE_TOKEN"
POLL_S = 0.02
START_S = 120.0
"""Within which a controller, and then an engine, is up, also on a machine that is busy."""
LEASE_S = 6.0
Found = TypeVar("Found")


class Forked(TypedDict, total=False):
    """What ``ControllerForks.up`` takes beside files."""

    death: Death | None
    environment: Mapping[str, str]
    ahead: Path


Controller: TypeAlias = subprocess.Popen[bytes] | ForkedController


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
    """One state folder, its ports and its settings file; times are short, engines simulated.

    With ``forks`` a controller begins at once, else it is the command line's.
    """

    def __init__(
        self, folder: Path, *, forks: ControllerForks | None = None, **changes: Any
    ) -> None:
        self.folder = folder
        self._forks = forks
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
            "engine_start_s": START_S,
            "drain_s": 15.0,
            **changes,
        }
        self.controllers: list[Controller] = []
        self._traffic: subprocess.Popen[bytes] | None = None
        self._clients: list[subprocess.Popen[bytes]] = []
        self._store: Store | None = None
        self.config = self.write("serinus.toml")

    def write(self, name: str, **changes: Any) -> Path:
        """A settings file with these changes."""
        path = self.folder / name
        given = {**self.settings, **changes}
        path.write_text("".join(f"{k} = {_toml(v)}\n" for k, v in given.items()))
        return path

    def up(self, config: Path | None = None, **forked: Unpack[Forked]) -> Controller:
        """Start a controller and return at once; what it says goes to a log of its own."""
        path = self.folder / f"controller-{len(self.controllers):03d}.log"
        controller: Controller
        if self._forks is not None:
            state = self.folder / "state"
            controller = self._forks.up(config or self.config, path, state, **forked)
        else:
            assert not forked, "only a forked controller can be told more than its settings"
            with path.open("wb") as log:
                words = ["up", "--config", str(config or self.config)]
                controller = subprocess.Popen(
                    [sys.executable, "-m", "agent.cli", *words],
                    cwd=ROOT,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
        self.controllers.append(controller)
        return controller

    def begun(self) -> None:
        """Wait until the newest controller has taken its ports and goes on to its loop."""
        newest = len(self.controllers) - 1
        begins = "the controller begins"
        until(lambda: "Serinus serves" in self.heard(newest), begins, START_S, self.said)

    def heard(self, controller: int) -> str:
        """What the controller of this number, from 0, has said."""
        log = self.folder / f"controller-{controller:03d}.log"
        return log.read_text() if log.exists() else ""

    def end(self) -> None:
        """Ask the newest controller to end, as Ctrl-C does; its lease is free then."""
        controller = self.controllers[-1]
        controller.send_signal(signal.SIGTERM)
        # One that has not come to its loop yet holds no lease, and has no more to end.
        assert controller.wait(20) in (0, -signal.SIGTERM), self.said()

    def kill(self, controller: Controller | None = None) -> None:
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

    def begin_rollout(
        self,
        candidate: EngineConfig,
        baseline: EngineConfig | None = None,
        *,
        name: str = "given",
        bake_s: float = 2.0,
        stall_action: StallAction = StallAction.HOLD,
        stall_s: float = 60.0,
        start_s: float = START_S,
        asks: bool = False,
    ) -> None:
        """As a study would; without traffic it goes to its first step and waits for evidence. In
        place it is as a person has approved it. One that ``asks`` waits for an answer."""
        now = time.time()
        replicas = 1 + len(self.settings.get("further_replicas", []))
        in_place = bool(self.settings.get("in_place"))
        weights = () if in_place else carried((25, 100), replicas)
        rollout = Rollout(
            id=name,
            study_id="",
            version=1,
            created_s=now,
            baseline=baseline or EngineConfig(),
            candidate=candidate,
            plan=RolloutPlan(
                steps=tuple(Step(weight=weight, bake_s=bake_s) for weight in weights),
                min_requests=8,
                stall_s=stall_s,
                stall_action=stall_action,
                start_s=start_s,
                replicas=replicas,
                in_place=in_place,
            ),
            phase=Phase.CONVERTING if in_place else Phase.STARTING,
            phase_since_s=now,
        )
        if asks:
            rollout = replace(rollout, phase=Phase.WAITING_APPROVAL)
        with self.store.work() as uow:
            uow.rollouts.add(rollout)
            if asks:
                uow.approvals.add(approvals.ask(rollout, f"question-{name}", 600.0, now))
            uow.commit()

    def answer(self, actor: str, answer: str, api_port: int | None = None) -> int:
        """The status that a person gets who answers the newest question over HTTP."""
        with self.store.view() as uow:
            rollout = uow.rollouts.latest(1)[0]
            question = uow.approvals.of(rollout.id)[-1]
        port, token = api_port or self.settings["api_port"], self.settings["api_tokens"][actor]
        body = {
            "answer": answer,
            "digest": question.digest,
            "rollout_version": question.rollout_version,
        }
        return status(f"http://127.0.0.1:{port}/api/approvals/{question.id}", token, body)

    def order(self, kind: CommandKind) -> None:
        """As the API stores an order; one for a rollout is for the newest."""
        with self.store.work() as uow:
            given = Command(
                id=uuid.uuid4().hex,
                kind=kind,
                rollout_id=uow.rollouts.latest(1)[0].id if kind.of_rollout else "",
                actor="ada",
                created_s=time.time(),
            )
            uow.commands.add(given)
            uow.commit()

    def send_traffic(
        self, agents: Agents = SIMULATED.agents, longest_s: float = SIMULATED.longest_s
    ) -> None:
        """Begin live traffic through the gateway, once it serves."""
        self.serves()
        self._traffic = self.sending(self.folder / "traffic.jsonl", agents, longest_s)

    def sending(self, path: Path, agents: Agents, longest_s: float) -> subprocess.Popen[bytes]:
        """Agents that send, and keep their records in the file; ended with all else."""
        sending = subprocess.Popen(
            [sys.executable, "-m", "agent.demo.traffic", "--url", self.url,
             "--model", "demo-hybrid", "--records", str(path),
             "--agents", agents.written(), "--longest", str(longest_s)],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        self._clients.append(sending)
        return sending

    def sent(self) -> Traffic:
        """What has been answered so far."""
        path = self.folder / "traffic.jsonl"
        begun = path.exists() and path.read_text()
        return read_traffic(path) if begun else Traffic(started_s=0.0, records=())

    def until_answered(self, requests: int) -> None:
        """Wait until so many requests of the live traffic have ended."""
        what = f"{requests} requests have ended"
        until(lambda: len(self.sent().records) >= requests, what, START_S, self.said)

    def end_traffic(self) -> Traffic:
        """All that was sent, once it has ended."""
        assert self._traffic is not None
        return self.ended(self._traffic, self.folder / "traffic.jsonl")

    @staticmethod
    def ended(sending: subprocess.Popen[bytes], path: Path) -> Traffic:
        """All that these agents sent, once they have ended."""
        sending.send_signal(signal.SIGTERM)
        assert sending.wait(20) == 0
        return read_traffic(path)

    def weight(self) -> int:
        """The candidate's weight as the gateway has it on disk."""
        kept = json.loads((self.folder / "state" / "gateway" / "state.json").read_text())
        return int(kept["weight"])

    def split(self) -> Split:
        """The split as the running HAProxy has it, which must be up."""
        settings = Settings(**self.settings)
        gateway = gateways.gateway(settings, self.folder / "state" / "gateway")
        return asyncio.run(gateway.read())

    def engine(self, role: str) -> psutil.Process | None:
        """The engine of ``production`` or ``canary``, where one runs."""
        return self.engine_on(int(self.settings[f"{role}_port"]))

    def engine_on(self, port: int) -> psutil.Process | None:
        """The engine on this port, where one runs."""
        return next((e for e in self.engines() if str(port) in _asked(e.cmdline)), None)

    def break_engine(self, role: str, fault: str) -> None:
        """Switch a fault of the simulator on."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.settings[f'{role}_port']}/simulator/fault",
            data=json.dumps({"fault": fault}).encode(),
            headers={"content-type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=5) as answer:
            assert answer.status == 200

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
        for child in [*self.controllers, *self._clients]:
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
        url = self.settings.get("database_url")
        if url is None and not path.exists():
            return None
        with suppress(SerinusError):
            return open_store(str(url or f"sqlite:///{path}"))
        return None


def status(url: str, token: str = "", body: object = None) -> int:
    """The status of an answer, to a POST where there is a body; 0 where nobody answers."""
    request = urllib.request.Request(
        url,
        data=None if body is None else json.dumps(body).encode(),
        headers={"authorization": f"Bearer {token}", "content-type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


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
