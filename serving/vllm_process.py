"""Runs ``vllm_side.py`` under vLLM's own Python and exchanges single lines of JSON with it.

The process is no engine, yet it runs what an engine runs, so it gets an engine's environment, none
of the controller's open files, and a session of its own in which it can be ended for certain. What
is asked, and what an answer means, is ``serving.dry_run``'s business.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from domain.errors import BadInput
from serving.launchers.environment import engine_environment

_SCRIPT = Path(__file__).with_name("vllm_side.py")
_LINE_BYTES = 16_777_216


class Silent(Exception):
    """The process died, took too long, or said what is no answer."""


def python_of(executable: Path) -> Path:
    """The Python that a ``vllm`` script runs under; BadInput where it shows none.

    The script's first line names it, or it is the ``python`` in the same folder.
    """
    found = shutil.which(executable)
    if found is None:
        raise BadInput(f"There is no executable {executable}; name the path of vLLM's own script.")
    with Path(found).open("rb") as script:
        first, _, _ = script.read(512).partition(b"\n")
    named = Path(os.fsdecode(first.removeprefix(b"#!").strip()))
    if first.startswith(b"#!") and named.name.startswith("python") and named.is_file():
        return named
    for folder in (Path(found).parent, Path(found).resolve().parent):
        if (beside := folder / "python").is_file():
            return beside
    raise BadInput(
        f"{executable} shows no Python that could be asked; name vLLM's own script, "
        "for example .venv/bin/vllm."
    )


class VllmProcess:
    """One process of ``vllm_side.py``, in a session of its own; its log is kept until it ends."""

    def __init__(self, python: Path, mode: str, *, gpu_ids: tuple[str, ...]) -> None:
        self._command = (python, _SCRIPT, mode)
        self._gpu_ids = gpu_ids
        self._process: asyncio.subprocess.Process | None = None
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115

    async def start(self) -> None:
        """Launch it; Silent where it cannot run."""
        environment = engine_environment(os.environ, {}, gpu_ids=self._gpu_ids, token="")
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=self._log,
                env=environment,
                start_new_session=True,
                limit=_LINE_BYTES,
            )
        except OSError as error:
            raise Silent(f"{self._command[0]} does not start ({error.strerror})") from None

    async def answer(self, limit_s: float, question: Mapping[str, Any] | None = None) -> Any:
        """The next document, after ``question`` where there is one; Silent within ``limit_s``."""
        assert self._process and self._process.stdin and self._process.stdout
        try:
            async with asyncio.timeout(limit_s):
                if question is not None:
                    self._process.stdin.write(json.dumps(question).encode() + b"\n")
                    await self._process.stdin.drain()
                line = await self._process.stdout.readline()
        except TimeoutError:
            raise Silent(f"it has not answered within {limit_s:g} s") from None
        except (OSError, ValueError):
            line = b""
        try:
            return json.loads(line)
        except ValueError:
            raise Silent(f"it ended or gave no answer ({self._last_words()})") from None

    def _last_words(self) -> str:
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")

    async def end(self) -> None:
        """Kill the process and, while it leads its session, whatever it started; at once, since it
        holds nothing of worth."""
        self._log.close()
        if self._process is None:
            return
        # One that ended by itself no longer owns its number: another's group may have it by now.
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        await asyncio.shield(self._process.communicate())
