"""An engine as the system sees it: launched, found again, signalled; by identity, never by pid.

A pid alone proves nothing once its process may have ended. An engine is known by the token of its
start, which every process that it spawns inherits in its environment; where that cannot be read,
by its pid together with the time at which the system created it. Nothing here knows a slot, a
record or a decision.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import psutil

from serving.launchers.environment import TOKEN_VARIABLE

# Half of the hundredths of a second in which the system counts creation times.
_SAME_MOMENT_S = 0.005


class Identity(NamedTuple):
    """What tells one engine's process from every other; ``created_s`` is Unix seconds."""

    token: str
    pid: int
    created_s: float


def launch(
    executable: Path, arguments: Sequence[str], environment: Mapping[str, str], log: Path
) -> int:
    """Launch a process of its own session and give its pid; OSError where it cannot run.

    It inherits no open file: its input is empty, its output is appended to ``log``. It is a child
    of this process and does not end with it.
    """
    opened = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    closed = [(os.POSIX_SPAWN_CLOSE, handle) for handle in _inheritable()]
    return os.posix_spawn(
        executable,
        [str(executable), *arguments],
        environment,
        file_actions=[*opened, *closed],
        setsid=True,
        setsigmask=(),
        setsigdef=(signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE),
    )


def identify(token: str, pid: int) -> Identity | None:
    """The identity of a process just launched; ``None`` if it is gone without a trace."""
    try:
        return Identity(token, pid, psutil.Process(pid).create_time())
    except psutil.Error:
        return None


def find(token: str) -> Identity | None:
    """The eldest process that carries ``token``, if any runs."""
    carriers = [process for process in psutil.process_iter() if _token(process) == token]
    identities = filter(None, (identify(token, process.pid) for process in carriers))
    return min(identities, key=lambda identity: identity.created_s, default=None)


def running(engine: Identity) -> psutil.Process | None:
    """The engine's first process, unless it ended or its pid is another's by now."""
    try:
        process = psutil.Process(engine.pid)
        if process.status() == psutil.STATUS_ZOMBIE or not _is(process, engine):
            return None
        return process
    except psutil.Error:
        return None


def family(engine: Identity) -> set[psutil.Process]:
    """Every running process of the engine: itself, its session, its descendants, and those that
    carry its token after their parent ended."""
    first = running(engine)
    found: set[psutil.Process] = set()
    if first is not None:
        found.add(first)
        with suppress(psutil.Error):
            found.update(first.children(recursive=True))
    for process in psutil.process_iter():
        if _token(process) == engine.token or (first and _session(process) == first.pid):
            found.add(process)
    return still_running(found)


def still_running(processes: set[psutil.Process]) -> set[psutil.Process]:
    return {process for process in processes if _runs(process)}


def signal_all(processes: set[psutil.Process], ask: signal.Signals) -> None:
    """Signal those that still run; psutil sees to it that a reused pid is left alone."""
    for process in processes:
        with suppress(psutil.Error):
            process.send_signal(ask)


def reap(engine: Identity) -> int | None:
    """The exit code, negative for a signal, of an engine that ended as a child of this process."""
    try:
        if abs(psutil.Process(engine.pid).create_time() - engine.created_s) > _SAME_MOMENT_S:
            return None
        pid, status = os.waitpid(engine.pid, os.WNOHANG)
    except (psutil.Error, ChildProcessError):
        return None
    return os.waitstatus_to_exitcode(status) if pid else None


def port_holder(port: int) -> str | None:
    """Who keeps ``port`` from being opened on the loopback address; ``None`` if it is free."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            return _listener(port) or (error.strerror or str(error))
    return None


def _listener(port: int) -> str | None:
    with suppress(psutil.Error):
        for open_socket in psutil.net_connections(kind="tcp"):
            if open_socket.status != psutil.CONN_LISTEN or not open_socket.laddr:
                continue
            if open_socket.laddr.port == port and open_socket.pid:
                return f"{psutil.Process(open_socket.pid).name()}, pid {open_socket.pid}"
    return None


def _is(process: psutil.Process, engine: Identity) -> bool:
    if token := _token(process):
        return token == engine.token
    return abs(process.create_time() - engine.created_s) <= _SAME_MOMENT_S


def _token(process: psutil.Process) -> str:
    try:
        return process.environ().get(TOKEN_VARIABLE, "")
    except (psutil.Error, OSError):
        return ""


def _session(process: psutil.Process) -> int | None:
    try:
        return os.getsid(process.pid)
    except OSError:
        return None


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _inheritable() -> list[int]:
    """Open files beyond the standard three that a new process would be given."""
    handles: list[int] = []
    for entry in Path("/dev/fd").iterdir():
        with suppress(OSError):
            if (handle := int(entry.name)) > 2 and os.get_inheritable(handle):
                handles.append(handle)
    return handles
