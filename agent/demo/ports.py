"""Ports on which a show's servers may listen, on a machine that others use too."""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack

PORTS = range(10_240, 32_766, 2)
"""None is ephemeral, where an outgoing connection might take it before it is listened on."""


def free_ports() -> tuple[int, int, int, int]:
    """Four ports that are free now, each with a free neighbour, which a gateway's metrics need."""
    with ExitStack() as held:
        free = (port for port in random.sample(PORTS, len(PORTS)) if _taken(held, port, port + 1))
        return next(free), next(free), next(free), next(free)


def _taken(held: ExitStack, *ports: int) -> bool:
    """Whether all of them were free; those that were are taken for as long as ``held`` lasts."""
    try:
        for port in ports:
            held.enter_context(socket.socket()).bind(("127.0.0.1", port))
    except OSError:
        return False
    return True
