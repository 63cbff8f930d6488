"""A data plane's process as the system sees it: found again by its command line, and ended.

The command line names the gateway's directory: unlike a pid file, that cannot be stale or lost.
Nothing here knows which data plane it is.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import psutil

from domain.errors import Temporary

_END_S = 2.0
_POLL_S = 0.02


def find(arguments: Sequence[str]) -> list[psutil.Process]:
    """Every process that runs with these arguments. Blocks for some milliseconds."""
    wanted = list(arguments)
    found = []
    for process in psutil.process_iter():
        try:
            if process.cmdline()[1:] == wanted:
                found.append(process)
        except psutil.Error:
            continue
    return found


def end(arguments: Sequence[str], name: str) -> None:
    """End every process that runs with these arguments, at once; none is no error. Blocks.

    Temporary, with its ``name``, where one survives even being killed.
    """
    for ask in (psutil.Process.terminate, psutil.Process.kill):
        deadline = time.monotonic() + _END_S
        for process in find(arguments):
            try:
                ask(process)
            except psutil.NoSuchProcess:
                continue
        while find(arguments):
            if time.monotonic() > deadline:
                break
            time.sleep(_POLL_S)
        else:
            return
    raise Temporary(f"{name} could not be ended.")
