"""What a gateway stands between: its slots, the header that names a session, its ports. Pure.

Every gateway takes the same topology and refuses the same mistakes in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from domain.errors import BadInput
from domain.fleet import Role, Slot

ARMS = (Role.PRODUCTION, Role.CANARY)

_NAME = re.compile(r"[A-Za-z0-9_.-]+")
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """What stands behind a gateway, and stays the same for its life; BadInput where none could
    serve it. Slots listen on the loopback address.

    HAProxy's names of what is Serinus' begin with ``prefix``.
    """

    slots: tuple[Slot, ...]
    session_header: str = "x-session-id"
    prefix: str = ""

    def __post_init__(self) -> None:
        names = [slot.name for slot in self.slots]
        for name in names:
            if not _NAME.fullmatch(name):
                raise BadInput(
                    f"Slot name {name!r} may hold letters, digits, '_', '.' and '-' only."
                )
        if twice := _repeated(names):
            raise BadInput(f"Two slots are named {twice!r}; give each its own name.")
        _check_ports([slot.port for slot in self.slots], "the slots")
        if not _HEADER.fullmatch(self.session_header):
            raise BadInput(f"{self.session_header!r} is not a name of an HTTP header.")

    def slot(self, name: str) -> Slot:
        """The slot of that name; BadInput, with the known ones, where there is none."""
        for slot in self.slots:
            if slot.name == name:
                return slot
        known = ", ".join(slot.name for slot in self.slots)
        raise BadInput(f"The gateway has no slot {name!r} (known: {known}).")


@dataclass(frozen=True, slots=True, kw_only=True)
class Listening(Topology):
    """The topology of a gateway that Serinus runs, whose ports are on the loopback address too.

    With ``log_requests`` HAProxy keeps a line for each request in its memory; Envoy cannot.
    """

    port: int
    metrics_port: int
    log_requests: bool = False

    def __post_init__(self) -> None:
        # Of a class with slots, ``super()`` does not find the parent.
        Topology.__post_init__(self)
        ports = [self.port, self.metrics_port, *(slot.port for slot in self.slots)]
        _check_ports(ports, "the gateway, its metrics and the slots")

    @property
    def url(self) -> str:
        """Where clients send their requests."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def metrics_url(self) -> str:
        """The gateway's own metrics, as Prometheus reads them."""
        return f"http://127.0.0.1:{self.metrics_port}/metrics"


def _check_ports(ports: Sequence[int], of: str) -> None:
    for port in ports:
        if not 1 <= port <= 65535:
            raise BadInput(f"Port {port} is outside 1 to 65535.")
    if twice := _repeated(ports):
        raise BadInput(f"Port {twice} is given twice among {of}.")


def _repeated(values: Iterable[object]) -> object | None:
    seen: set[object] = set()
    for value in values:
        if value in seen:
            return value
        seen.add(value)
    return None
