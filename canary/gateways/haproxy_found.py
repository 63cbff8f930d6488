"""What a HAProxy that its user runs has of all that Serinus drives it by, and what it forgot. Pure.

Whether its frontend sends requests to these backends, no command tells.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from canary.gateways.haproxy_config import Server, servers_of
from canary.gateways.haproxy_pasted import MAP_NAME
from canary.gateways.haproxy_runtime import ServerReading, states_in, stats_in
from canary.gateways.kept_state import KeptState
from canary.gateways.topology import Topology
from domain.errors import BadInput

_MAP = re.compile(r"^\S+ \((.+)\) pattern loaded from ", re.MULTILINE)
_FIELD = re.compile(r"^(\w+): (\S+)", re.MULTILINE)
_LOOPBACK = "127.0.0.1"
_PRINTED = "`serinus gateway config` prints what belongs in haproxy.cfg"


class NoMap(BadInput):
    """The HAProxy reads no map of the weight, so it sends nothing to the candidate by it."""


def process_in(info: str) -> str:
    """Which process answers, by its id and its start; BadInput where no HAProxy does."""
    fields = dict(_FIELD.findall(info))
    try:
        return f"{fields['Pid']} of {fields['Start_time_sec']}"
    except KeyError as error:
        raise BadInput(
            "haproxy_socket is no `stats socket` of a HAProxy that tells when it started, as 2.8"
            " does; name such a one."
        ) from error


def check_level(shown: str) -> None:
    """BadInput where the socket may not change anything."""
    if (level := shown.strip()) != "admin":
        raise BadInput(
            f"haproxy_socket has the level {level or 'of nobody'!r}, and Serinus changes weights;"
            " write `level admin` into its `stats socket` line."
        )


def check_servers(topology: Topology, shown_state: str, shown_stat: str) -> None:
    """BadInput names the first backend or server that is missing or unlike what is needed."""
    states, stats = states_in(shown_state), stats_in(shown_stat)
    backends = {name.partition("/")[0] for name in states}
    for server in servers_of(topology):
        if server.proxy not in backends:
            raise _missing(f"has no backend {server.proxy} with a server")
        state, stat = states.get(str(server)), stats.get(str(server))
        if state is None or stat is None:
            raise _missing(f"has no server {server}")
        wanted = f"{_LOOPBACK}:{server.slot.port}"
        found = f"{state['srv_addr']}:{state['srv_port']}"
        if found != wanted:
            raise _missing(f"has {server} at {found}, and its engine listens at {wanted}")
        if (stat["bck"] == "1") is not server.backup:
            raise _missing(f"has {server} {'not ' if server.backup else ''}as a backup")
        if not server.backup and not stat["check_status"]:
            raise _missing(f"does not check the health of {server}")


def map_in(shown_maps: str) -> str:
    """The path of the weight's map, as HAProxy knows it; NoMap where it reads none."""
    found: list[str] = [path for path in _MAP.findall(shown_maps) if path.endswith(MAP_NAME)]
    if not found:
        raise NoMap(f"Your HAProxy reads no map whose file is named {MAP_NAME}; {_PRINTED}.")
    if found[1:]:
        raise BadInput(
            f"Your HAProxy reads {len(found)} maps whose files are named {MAP_NAME}"
            f" ({', '.join(found)}); leave the one of Serinus."
        )
    return found[0]


def as_word(path: str) -> str:
    """A path as one word of a command."""
    return re.sub(r"([\\ ;])", r"\\\1", path)


class Forgotten(NamedTuple):
    """What has to be set again: server lines to admit, a weight, and then lines to drain."""

    admit: Sequence[Server]
    weight: int | None
    drain: Sequence[Server]


def forgotten(
    topology: Topology, kept: KeptState, weight: int, servers: Mapping[str, ServerReading]
) -> Forgotten:
    """What a process that has just been started does otherwise than was kept.

    Only what is still as the configuration begins with: the rest was set by hand since then.
    """
    unlike = [
        server
        for server in servers_of(topology)
        if not (reading := servers[str(server)]).touched
        and reading.admitted is not (server.slot.name in kept.admitted)
    ]
    return Forgotten(
        admit=[server for server in unlike if server.slot.name in kept.admitted],
        weight=kept.weight if weight == 0 != kept.weight else None,
        drain=[server for server in unlike if server.slot.name not in kept.admitted],
    )


def _missing(what: str) -> BadInput:
    return BadInput(f"Your HAProxy {what}; {_PRINTED}.")
