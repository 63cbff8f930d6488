"""What a gateway keeps on disk: its state, and the files that its data plane reads.

``state.json`` is the truth; what the data plane starts with is rendered from it, so that it comes
back the same however it is started. Each file is replaced whole. Nothing here speaks to a running
gateway.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from canary.gateways.topology import Topology
from domain.errors import BadInput, Temporary

STATE_FILE = "state.json"
LOCK_FILE = "start.lock"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptState:
    """What must survive a restart of a gateway: the weight in percent and the admitted slots.

    ``process`` names the process that it was set in, where that is not Serinus' own.
    """

    weight: int = 0
    admitted: frozenset[str] = frozenset()
    process: str = ""


class StateDirectory:
    """The files of one gateway. What is not said to raise otherwise raises OSError where the
    directory cannot be used."""

    def __init__(self, path: Path, topology: Topology) -> None:
        self.path = path
        self._topology = topology

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep other controllers from starting a gateway here; Temporary where one is at it.

        The lock ends with its holder, also where that is killed. An OSError, also of what is done
        under it, becomes BadInput.
        """
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            with (self.path / LOCK_FILE).open("w") as lock:
                _lock(lock, self.path)
                yield
        except OSError as error:
            raise BadInput(f"The gateway cannot use {self.path}: {error.strerror}.") from error

    def load(self) -> KeptState:
        """The state last kept, without slots that are no more; a fresh one where there is none."""
        file = self.path / STATE_FILE
        try:
            kept = json.loads(file.read_text())
            weight, admitted = int(kept["weight"]), frozenset(map(str, kept["admitted"]))
            process = str(kept.get("process", ""))
            if not 0 <= weight <= 100:
                raise ValueError(weight)
        except FileNotFoundError:
            return KeptState()
        except (ValueError, KeyError, TypeError) as error:
            raise BadInput(
                f"{file} is not a state that the gateway wrote; remove it to start at weight 0."
            ) from error
        known = {slot.name for slot in self._topology.slots}
        return KeptState(weight=weight, admitted=admitted & known, process=process)

    def keep(self, state: KeptState, rendered: Mapping[str, str]) -> None:
        """Write the state first, then the files rendered, by name; durable when this returns."""
        kept = {
            "weight": state.weight,
            "admitted": sorted(state.admitted),
            "process": state.process,
        }
        self._replace(STATE_FILE, json.dumps(kept) + "\n")
        for name, text in rendered.items():
            self._replace(name, text)
        handle = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def change(
        self,
        change: Callable[[KeptState], KeptState],
        rendered: Callable[[KeptState], Mapping[str, str]],
    ) -> None:
        """Keep the changed state and what is rendered of it; Temporary where that cannot be."""
        try:
            state = change(self.load())
            self.keep(state, rendered(state))
        except OSError as error:
            raise Temporary(
                f"The gateway cannot keep its state in {self.path}: {error.strerror}."
            ) from error

    def refuse_others(self, name: str, same: Callable[[str], bool]) -> None:
        """BadInput where what runs read another configuration from the file of that name."""
        if not same(self.written(name)):
            raise BadInput(
                f"The gateway that runs in {self.path} was started for other slots or ports; stop"
                " it before starting it with these."
            )

    def written(self, name: str) -> str:
        """The file of that name as it was last written; empty where it never was."""
        try:
            return (self.path / name).read_text()
        except FileNotFoundError:
            return ""

    def _replace(self, name: str, text: str) -> None:
        written = self.path / f"{name}.new"
        with written.open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        written.replace(self.path / name)


def _lock(file: TextIO, directory: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise Temporary(
            f"Another controller is starting the gateway in {directory}.", retry_after_s=1.0
        ) from error
