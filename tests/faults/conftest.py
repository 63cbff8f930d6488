"""A whole Serinus in a folder of its own: controllers that can be killed, and live traffic."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TypeVar

import psutil
import pytest

from agent.demo.traffic import Traffic, read_traffic
from agent.store import Store, UnitOfWork, open_store
from domain.events import Event

ROOT = Path(__file__).parents[2]
TOKEN = "SERINUS_ENGINE_TOKEN"
POLL_S = 0.02
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


class House:
    """One state folder with its settings; ``close`` ends every process that it ever led to."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state_dir = folder / "state"
        self.gateway_port, self.api_port, self.production_port, self.canary_port = _free_ports()
        self.controllers: list[subprocess.Popen[bytes]] = []
        self._traffic: subprocess.Popen[bytes] | None = None
        self._store: Store | None = None
        self.config = self.settings_file("serinus.toml", self.api_port)

    def settings_file(self, name: str, api_port: int) -> Path:
        settings = {
            "state_dir": str(self.state_dir),
            "model": "demo-hybrid",
            "gateway_port": self.gateway_port,
            "api_port": api_port,
            "production_port": self.production_port,
            "canary_port": self.canary_port,
            "slo": "ttft<=500ms, e2el<=2s, share>=90%",
            "autonomy": "autonomous",
            "cycle_s": 0.3,
            "scrape_interval_s": 0.5,
            "window_s": 5.0,
            "min_requests": 8,
            "step_requests": 8,
            "trial_budget": 2,
            "trial_warm_up_s": 1.0,
            "trial_s": 3.0,
            "quality_questions": 0,
            "cooldown_s": 0.0,
            "engine_start_s": 20.0,
            "drain_s": 15.0,
            "bake_s": 2.0,
            "stall_s": 60.0,
        }
        path = self.folder / name
        path.write_text("".join(f"{k} = {json.dumps(v)}\n" for k, v in settings.items()))
        return path

    def up(self, config: Path | None = None) -> subprocess.Popen[bytes]:
        """Start a controller and return at once."""
        log = (self.folder / f"controller-{len(self.controllers)}.log").open("wb")
        with log:
            controller = subprocess.Popen(
                [sys.executable, "-m", "agent.cli", "up", "--config", str(config or self.config)],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self.controllers.append(controller)
        return controller

    def kill(self) -> None:
        """End the newest controller by SIGKILL, whatever it is doing."""
        self.controllers[-1].kill()
        self.controllers[-1].wait()

    def command(self, *words: str, within_s: float = 40.0) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "agent.cli", *words, "--config", str(self.config)],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=within_s,
            check=False,
        )

    @property
    def store(self) -> Store:
        """Opened once a controller has made it."""
        if self._store is None:
            path = self.state_dir / "serinus.db"
            until(path.exists, "there is a store", 20, self.said)
            self._store = until(lambda: _opened(path), "the store is migrated", 20, self.said)
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
        """All events, oldest first."""
        with self.store.view() as uow:
            return uow.events.latest(1000)[::-1]

    def send_traffic(self) -> None:
        """Live traffic through the gateway, once production answers there."""
        until(lambda: _answers(self.gateway_port), "production takes requests", 30, self.said)
        self._traffic = subprocess.Popen(
            [sys.executable, "-m", "agent.demo.traffic",
             "--url", f"http://127.0.0.1:{self.gateway_port}", "--model", "demo-hybrid",
             "--records", str(self.folder / "traffic.jsonl"), "--streams", "48"],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip

    def end_traffic(self) -> Traffic:
        assert self._traffic is not None
        self._traffic.send_signal(signal.SIGTERM)
        assert self._traffic.wait(20) == 0
        return read_traffic(self.folder / "traffic.jsonl")

    def engines(self) -> list[psutil.Process]:
        """Every engine on this house's ports, whoever knows of it or not."""
        ports = {str(self.production_port), str(self.canary_port)}
        return [
            process
            for process in _processes()
            if ports & set(_asked(process.cmdline)) and TOKEN in _asked(process.environ)
        ]

    def processes(self) -> list[psutil.Process]:
        """All that this house has running: engines, gateway, load clients, controllers."""
        known = [p for p in _processes() if str(self.folder) in " ".join(_asked(p.cmdline))]
        return [*known, *(engine for engine in self.engines() if engine not in known)]

    def said(self) -> str:
        """The last words of each controller, for a test that fails."""
        logs = sorted(self.folder.glob("controller-*.log"))
        return "\n".join(f"--- {log.name}\n{log.read_text()[-1500:]}" for log in logs)

    def close(self) -> None:
        for process in [*self.controllers, *filter(None, [self._traffic])]:
            if process.poll() is None:
                process.kill()
            process.wait()
        left = self.processes()
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, 10)
        if self._store is not None:
            self._store.close()


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    made = House(tmp_path)
    try:
        yield made
    finally:
        made.close()


def _opened(path: Path) -> Store | None:
    from domain.errors import SerinusError

    with suppress(SerinusError):
        return open_store(f"sqlite:///{path}")
    return None


def _answers(port: int) -> bool:
    """Whether the gateway has somebody to ask."""
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 2) as asked:
        asked.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        return asked.recv(64).startswith(b"HTTP/1.1 200")
    return False


def _processes() -> list[psutil.Process]:
    return [p for p in psutil.process_iter() if _asked(p.status) != psutil.STATUS_ZOMBIE]


def _asked(look: Callable[[], Found]) -> Found | tuple[()]:
    try:
        return look()
    except psutil.Error:
        return ()


def _free_ports() -> tuple[int, int, int, int]:
    """Four ports that are free now, the first with a free neighbour for the gateway's metrics."""
    with ExitStack() as held:

        def bound(port: int) -> int:
            probe = held.enter_context(socket.socket())
            probe.bind(("127.0.0.1", port))
            return int(probe.getsockname()[1])

        while True:
            first = bound(0)
            with suppress(OSError, OverflowError):
                bound(first + 1)
                return first, bound(0), bound(0), bound(0)
