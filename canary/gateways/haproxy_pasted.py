"""What the users of a HAProxy of their own put in its configuration, so that it can be driven.

It is rendered from what Serinus' own HAProxy runs with. Its names begin with ``serinus_``, and what
it starts with is safe by itself: production admitted, the candidate at 0 %. Pure.
"""

from __future__ import annotations

from enum import Enum
from typing import assert_never

from canary.gateways.haproxy_config import (
    DEFAULTS,
    Backend,
    bucket_lines,
    choice_lines,
    render_backend,
    render_map,
    told_lines,
)
from canary.gateways.kept_state import KeptState
from canary.gateways.topology import Topology
from domain.fleet import Role, Slot

PREFIX = "serinus_"
MAP_NAME = "serinus-weight.map"
MAP_PATH = f"/etc/haproxy/{MAP_NAME}"
_DEFAULTS_NAME = "serinus"


class Part(Enum):
    """Where a part belongs: the map's file, the user's frontend, the end of haproxy.cfg."""

    MAP = "map"
    FRONTEND = "frontend"
    BACKENDS = "backends"


def behind_users(slots: tuple[Slot, ...], session_header: str) -> Topology:
    """The topology behind a HAProxy that its user runs."""
    return Topology(slots=slots, session_header=session_header, prefix=PREFIX)


def state_at_start(topology: Topology) -> KeptState:
    """What such a HAProxy does before Serinus has told it anything."""
    production = (slot.name for slot in topology.slots if slot.role is Role.PRODUCTION)
    return KeptState(admitted=frozenset(production))


def render_part(part: Part, topology: Topology, map_path: str = MAP_PATH) -> str:
    """One part, to be pasted as it is."""
    state = state_at_start(topology)
    match part:
        case Part.MAP:
            return render_map(state)
        case Part.FRONTEND:
            return f"{_CLIENT}{bucket_lines(topology, map_path)}{choice_lines(topology)}"
        case Part.BACKENDS:
            told = told_lines(topology)
            sections = (
                render_backend(backend, topology, state, defaults=_DEFAULTS_NAME, first=told)
                for backend in Backend
            )
            return "\n".join((f"defaults {_DEFAULTS_NAME}\n{DEFAULTS}", *sections))
        case _:
            assert_never(part)


def render_pasted(topology: Topology, socket: str) -> str:
    """All parts, with words that say where each belongs."""
    return "\n".join(
        (
            f"# 1. The file {MAP_PATH}; another folder will do, another name will not.\n",
            render_part(Part.MAP, topology),
            f"""\
# 2. In `global`. With the larger buffer, requests up to 64 KB are sent again where an engine died
# of or with them, instead of 16 KB.
    stats socket {socket} mode 660 level admin
    tune.bufsize 65536
""",
            """\
# 3. In your frontend, which is in `mode http`; the last two lines behind its own `use_backend`
# lines, since they take every request that comes to them.
""",
            render_part(Part.FRONTEND, topology),
            """\
# 4. At the end of haproxy.cfg, since `defaults` hold for what follows them.
""",
            render_part(Part.BACKENDS, topology),
        )
    )


_CLIENT = """\
    # A stream may be silent for so long, and a token leaves as soon as it comes.
    timeout client 1h
    option http-no-delay
"""
