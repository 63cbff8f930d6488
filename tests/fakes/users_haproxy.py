"""A real HAProxy as somebody runs it for themselves: what Serinus prints is pasted into a
configuration with a frontend, defaults and a backend of their own."""

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

from canary.gateways.haproxy_pasted import MAP_NAME, Part, behind_users, render_part
from canary.gateways.haproxy_process import bundled_binary
from canary.gateways.haproxy_runtime import ControlSocket
from canary.gateways.haproxy_users import UsersHAProxyGateway
from canary.gateways.topology import Listening, Topology
from domain.errors import Temporary
from domain.fleet import Slot

_DEADLINE_S = 15.0
_HEADER = "x-session-id"

# Their defaults hold traps: none of them may reach the arms.
CONFIG = """\
global
    stats socket unix@admin.sock mode 600 level admin
    server-state-file servers.state
defaults
    mode http
    timeout connect 5s
    timeout client 50s
    timeout server 50s
    balance leastconn
    retries 0
    default-server maxconn 1 disabled
frontend entrance
    bind 127.0.0.1:{port}
    use_backend theirs if {{ path_beg /theirs }}
{frontend}
backend theirs
    http-request return status 200 content-type text/plain string theirs
{backends}
"""


class UsersHAProxy:
    """Master and worker, as systemd runs them; nothing here but ``launch`` starts one."""

    def __init__(self, directory: Path, *, port: int, slots: tuple[Slot, ...]) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.socket = directory / "admin.sock"
        self.control = ControlSocket(self.socket)
        self.topology = behind_users(slots, _HEADER)
        self.port = port
        self.write()

    def write(self, edited: Callable[[str], str] = str) -> None:
        """Write the map, and the configuration as it is ``edited``."""
        config = CONFIG.format(
            port=self.port,
            frontend=render_part(Part.FRONTEND, self.topology, MAP_NAME),
            backends=render_part(Part.BACKENDS, self.topology),
        )
        (self.directory / "haproxy.cfg").write_text(edited(config))
        (self.directory / MAP_NAME).write_text(render_part(Part.MAP, self.topology))

    def launch(self) -> None:
        """Start it; it listens when this returns."""
        words = ["-W", "-D", "-C", str(self.directory), "-f", "haproxy.cfg", "-p", "master.pid"]
        subprocess.run(
            [bundled_binary(), *words],
            check=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._until_other(None)

    def reload(self) -> None:
        """Let another worker take over; the one before ends with its streams."""
        before = self._worker()
        os.kill(self._master(), signal.SIGUSR2)
        self._until_other(before)

    def kill(self) -> None:
        """Kill all of it at once; none is no error."""
        with suppress(FileNotFoundError, psutil.NoSuchProcess):
            master = psutil.Process(self._master())
            all_of_it = [master, *master.children(recursive=True)]
            for process in all_of_it:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            _until(lambda: not any(map(_runs, all_of_it)), "it is ended")
            (self.directory / "master.pid").unlink()

    def gateway(self, directory: Path) -> UsersHAProxyGateway:
        return UsersHAProxyGateway(directory=directory, socket=self.socket, topology=self.topology)

    async def by_hand(self, weight: int, drained: str) -> None:
        """What a person does past the controller."""
        await self.control.order(f"set map {MAP_NAME} weight {weight}")
        for backend in ("serinus_production", "serinus_candidate"):
            await self.control.order(f"set server {backend}/{drained} state drain")

    def _master(self) -> int:
        return int((self.directory / "master.pid").read_text())

    def _worker(self) -> str | None:
        """The line with the worker's process; ``None`` where none answers."""
        try:
            info = asyncio.run(self.control.ask("show info"))
        except Temporary:
            return None
        return next(line for line in info.splitlines() if line.startswith("Pid:"))

    def _until_other(self, before: str | None) -> None:
        _until(lambda: self._worker() not in (None, before), "another HAProxy answers")


class TendedGateway(UsersHAProxyGateway):
    """The gateway, and the user who starts the HAProxy before it and ends it after it."""

    def __init__(self, *, directory: Path, topology: Listening) -> None:
        self.theirs = UsersHAProxy(directory / "theirs", port=topology.port, slots=topology.slots)
        users: Topology = self.theirs.topology
        super().__init__(directory=directory, socket=self.theirs.socket, topology=users)

    async def start(self) -> None:
        await asyncio.to_thread(self.theirs.launch)
        await super().start()

    async def stop(self) -> None:
        await super().stop()
        await asyncio.to_thread(self.theirs.kill)


def _until(met: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _DEADLINE_S
    while not met():
        assert time.monotonic() < deadline, f"Not in time: {what}."
        time.sleep(0.02)


def _runs(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
