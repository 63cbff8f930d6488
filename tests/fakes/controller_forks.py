"""Controllers forked from a process that has imported them once, so that each begins at once.

``ControllerForks`` is what tests and benchmarks hold. Run as a program this module is that process:
it reads an order a line, forks a controller for each, and tells pids and ends. A controller may be
given a ``Death``: it then ends itself by SIGKILL at a chosen effect on files, processes or the
gateway.
"""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
REAPED_S = 0.02
FORK_S = 600.0
_HERE = {"open", "os.rename", "os.remove", "os.mkdir"}
_ANYWHERE = {"os.posix_spawn", "subprocess.Popen", "os.kill"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """SIGKILL before the effect of this number, counted from 0, or ``after_s`` after its begin.

    With a ``weight`` it comes where that is in force and nothing is stored of it yet, whatever
    ``effect`` says.
    """

    effect: int = 0
    after_s: float = 0.0
    weight: int | None = None


@dataclass(eq=False, slots=True)
class ForkedController:
    """What ``subprocess.Popen`` would tell of a controller that runs."""

    pid: int
    returncode: int | None = None
    _over: threading.Event = field(default_factory=threading.Event)

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, negative for a signal; TimeoutExpired where it does not end in time."""
        if not self._over.wait(timeout):
            raise subprocess.TimeoutExpired(f"controller {self.pid}", timeout or 0.0)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        # Its parent reaps it some time after this process knows: the pid is its own until then.
        if self.returncode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def ended(self, code: int) -> None:
        self.returncode = code
        self._over.set()


class ControllerForks:
    """Safe to share between threads. ``close`` at the end: it ends no controller."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.fakes.controller_forks"],
            cwd=ROOT,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._forked: dict[int, ForkedController] = {}
        self._lock = threading.Lock()
        self._answers = threading.Condition()
        self._newest: ForkedController | None = None
        self._reader = threading.Thread(target=self._read, name="controller forks", daemon=True)
        self._reader.start()

    def up(
        self,
        config: Path,
        log: Path,
        state: Path,
        *,
        death: Death | None = None,
        environment: Mapping[str, str] | None = None,
        ahead: Path | None = None,
    ) -> ForkedController:
        """A controller with this settings file, as ``serinus up`` runs one, and these variables.

        Its clock is as many seconds ahead as the file ``ahead`` says.
        """
        order = {
            "config": str(config),
            "log": str(log),
            "state": str(state),
            "death": None if death is None else asdict(death),
            "environment": dict(environment or {}),
            "ahead": None if ahead is None else str(ahead),
        }
        assert self._process.stdin is not None
        with self._lock, self._answers:
            self._newest = None
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
            told = self._answers.wait_for(lambda: self._newest is not None, timeout=FORK_S)
            assert told and self._newest is not None, "no controller could be forked"
            return self._newest

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(20)
        self._reader.join(20)
        self._process.stdout.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            said = json.loads(line)
            with self._answers:
                if "code" in said:
                    self._forked.pop(said["pid"]).ended(said["code"])
                else:
                    self._newest = self._forked[said["pid"]] = ForkedController(said["pid"])
                    self._answers.notify_all()


def _watched(death: Death, state: str) -> Callable[[str, tuple[Any, ...]], None]:
    """An audit hook that counts effects and ends this process at the one of its death.

    Two connections to the gateway after something was written are effects as well: the first
    carries a change, the second reads it back.
    """
    done, asks, dying = 0, 0, False
    fatal = threading.Event()

    def die() -> None:
        fatal.wait()
        time.sleep(death.after_s)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=die, daemon=True).start()

    def is_effect(event: str, args: tuple[Any, ...]) -> bool:
        nonlocal asks
        if event == "socket.connect" and str(args[1]).endswith("control.sock"):
            asks -= 1
            return asks >= 0
        if event in _ANYWHERE:
            return event != "os.kill" or args[1] != 0
        if event not in _HERE or not str(args[0]).startswith(state):
            return False
        if event == "open" and not int(args[2]) & (os.O_WRONLY | os.O_RDWR):
            return False
        asks = 2
        return True

    def is_due(event: str) -> bool:
        if death.weight is None:
            return done == death.effect
        # The second time that the gateway is asked: the change was made, and is being read back.
        if event != "socket.connect" or asks != 0:
            return False
        kept = Path(state, "gateway", "weight.map").read_text()
        return kept.split()[-1] == str(death.weight)

    def hook(event: str, args: tuple[Any, ...]) -> None:
        nonlocal done, dying
        if dying or not is_effect(event, args):
            return
        if is_due(event):
            dying = True
            os.write(2, f"Dies at effect {done}: {event} {args[:2]}\n".encode())
            fatal.set()
            if death.after_s == 0.0:
                time.sleep(60)
        done += 1

    return hook


class AheadClock:
    """The system's clock, as many seconds ahead as a file says at the moment."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def now(self) -> float:
        return time.time() + float(self._path.read_text())

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def _control(order: dict[str, Any]) -> None:
    """Be the controller, in a process that was just forked; never returns."""
    from agent.service import serve
    from agent.settings import load

    code = 1
    try:
        log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        for stream in (1, 2):
            os.dup2(log, stream)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.environ.update(order["environment"])
        settings = load(Path(order["config"]))
        clock = None if order["ahead"] is None else AheadClock(Path(order["ahead"]))
        if order["death"] is not None:
            sys.addaudithook(_watched(Death(**order["death"]), order["state"]))
        asyncio.run(serve(settings, clock))
        code = 0
    except BaseException as error:
        os.write(2, f"{error!r}\n".encode())
    finally:
        os._exit(code)


def main() -> None:
    from agent import service  # noqa: F401

    forked: set[int] = set()
    asking = True
    while asking or forked:
        readable, _, _ = select.select([sys.stdin] if asking else [], [], [], REAPED_S)
        if readable:
            line = sys.stdin.readline()
            asking = bool(line)
            if line:
                pid = os.fork()
                if pid == 0:
                    _control(json.loads(line))
                forked.add(pid)
                print(json.dumps({"pid": pid}), flush=True)
        for pid in list(forked):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                forked.remove(pid)
                code = os.waitstatus_to_exitcode(status)
                print(json.dumps({"pid": pid, "code": code}), flush=True)


if __name__ == "__main__":
    main()
