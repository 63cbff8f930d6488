"""What must hold before anything is started: folders, executable, model, free ports.

Each check raises BadInput with one sentence that names what is wrong and how to mend it, so that
nothing is ever half-started. Nothing here starts or changes anything but the state folder
and that of the requests' log.
"""

from __future__ import annotations

import errno
import shutil
import socket
import sys
from collections.abc import Iterable
from pathlib import Path

from domain.errors import BadInput

_SIMULATOR = (sys.executable, "-m", "serving.simulator")
_NEEDED_BYTES = 16 * 1024 * 1024


def state_folder(path: Path) -> Path:
    """The folder, made where needed, proven writable and not full."""
    try:
        _prove_writable(path)
        readable = path.stat().st_mode & 0o077
        free = shutil.disk_usage(path).free
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise _full(path) from None
        why = error.strerror or "it cannot be used"
        raise BadInput(
            f"The state folder {path} cannot be written ({why}); set state_dir to another."
        ) from None
    if readable:
        raise BadInput(
            f"The state folder {path} is open to other users; close it (chmod 700), or set "
            "state_dir to another."
        )
    if free < _NEEDED_BYTES:
        raise _full(path)
    return path.absolute()


def requests_folder(path: Path) -> Path:
    """The folder of the requests' log, made where needed and proven writable."""
    try:
        _prove_writable(path)
    except OSError as error:
        why = error.strerror or "it cannot be used"
        raise BadInput(
            f"The folder {path} cannot be written ({why}); set requests_log to another, or leave "
            "it out."
        ) from None
    return path.absolute()


def _prove_writable(path: Path) -> None:
    """Make the folder where needed and write a file there; OSError where that cannot be."""
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    probe = path / ".writable"
    probe.write_bytes(b"serinus")
    probe.unlink()


def executable(name: str) -> tuple[str, ...]:
    """The command that starts an engine: the simulator's, or the path of a vLLM executable."""
    if name == "simulator":
        return _SIMULATOR
    found = shutil.which(name)
    if found is None:
        state = "is not executable" if Path(name).exists() else "does not exist"
        raise BadInput(
            f"The engine's executable {name!r} {state}; set executable to the path of `vllm`, "
            "or to `simulator`."
        )
    return (str(Path(found).absolute()),)


def ports_free(ports: Iterable[tuple[str, int]]) -> None:
    """Refuse where something else already listens on one of the named loopback ports."""
    for name, port in ports:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                raise BadInput(
                    f"Port {port} ({name}) is in use; end what uses it or set {name} to another."
                ) from None


def _full(path: Path) -> BadInput:
    return BadInput(f"The disk of {path} is full; free some space or set state_dir.")
