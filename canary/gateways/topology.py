"""What a gateway stands between: its ports, its slots, and the header that names a session. Pure.

Every gateway takes the same topology and refuses the same mistakes in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from domain.errors import BadInput
from domain.fleet import Role, Slot

ARMS = (Role.PRODUCTION, Role.CANARY)

_NAME = re.compile(r"[A-Za-z0-9_.-]+")
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """What stays the same for the life of a gateway. All ports are on the loopback address.

    With ``log_requests`` HAProxy keeps a line for each request in its memory; Envoy cannot.
    """

    port: int
    metrics_port: int
    slots: tuple[Slot, ...]
    session_header: str
    log_requests: bool = False

    def slot(self, name: str) -> Slot:
        """The slot of that name; BadInput, with the known ones, where there is none."""
        for slot in self.slots:
            if slot.name == name:
                return slot
        known = ", ".join(slot.name for slot in self.slots)
        raise BadInput(f"The gateway has no slot {name!r} (known: {known}).")


def check_topology(topology: Topology) -> None:
    """BadInput, in one sentence, for a topology that no gateway could serve."""
    names = [slot.name for slot in topology.slots]
    ports = [topology.port, topology.metrics_port, *(slot.port for slot in topology.slots)]
    for name in names:
        if not _NAME.fullmatch(name):
            raise BadInput(f"Slot name {name!r} may hold letters, digits, '_', '.' and '-' only.")
    if twice := _repeated(names):
        raise BadInput(f"Two slots are named {twice!r}; give each its own name.")
    for port in ports:
        if not 1 <= port <= 65535:
            raise BadInput(f"Port {port} is outside 1 to 65535.")
    if twice := _repeated(ports):
        raise BadInput(f"Port {twice} is given twice among the gateway, its metrics and the slots.")
    if not _HEADER.fullmatch(topology.session_header):
        raise BadInput(f"{topology.session_header!r} is not a name of an HTTP header.")


def _repeated(values: Iterable[object]) -> object | None:
    seen: set[object] = set()
    for value in values:
        if value in seen:
            return value
        seen.add(value)
    return None
