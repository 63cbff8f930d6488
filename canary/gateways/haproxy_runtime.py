"""HAProxy's control socket: how a command is sent, and what its answers mean.

Commands change the running process only; what must survive a restart is ``kept_state``'s. The
readings are pure functions of the answers' text.
"""

from __future__ import annotations

import asyncio
import csv
import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from canary.gateways.haproxy_config import MAP_KEY, servers_of
from canary.gateways.haproxy_log import RING
from canary.gateways.topology import Topology
from domain.errors import BadInput, Temporary
from domain.fleet import SlotTraffic, Split

_ANSWER_S = 3.0

# HAProxy's own numbers in ``show servers state``.
_STOPPED = "0"
_NO_ADMIN_STATE = "0"


class SocketClosed(Temporary):
    """Nobody listens at the control socket."""


class ControlSocket:
    """Sends one command at a time; every one has a deadline of three seconds."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def ask(self, command: str) -> str:
        """HAProxy's answer to ``command``; Temporary where it gives none, as SocketClosed where
        nobody listens, and BadInput where this user may not ask."""
        try:
            async with asyncio.timeout(_ANSWER_S):
                return await self._exchange(command)
        except TimeoutError as error:
            raise Temporary(f"{self._silent} does not answer in time.") from error
        except PermissionError as error:
            raise BadInput(
                f"The user of Serinus may not use the control socket {self._path}; its line in"
                " haproxy.cfg gives the right by `user`, `group` and `mode`."
            ) from error
        except OSError as error:
            raise SocketClosed(f"{self._silent} is closed.") from error

    @property
    def _silent(self) -> str:
        return f"The gateway is not running: its control socket {self._path}"

    async def order(self, command: str) -> None:
        """Send a command that answers nothing; Temporary, with the answer, where it objects."""
        if objection := (await self.ask(command)).strip():
            raise Temporary(f"The gateway refused {command!r}: {objection}")

    async def _exchange(self, command: str) -> str:
        # A Unix socket's path holds 107 bytes at most. Named through a handle on its directory it
        # is short, however deep that directory lies.
        handle = os.open(self._path.parent, os.O_PATH | os.O_DIRECTORY)
        try:
            path = f"/proc/self/fd/{handle}/{self._path.name}"
            reader, writer = await asyncio.open_unix_connection(path)
        finally:
            os.close(handle)
        try:
            writer.write(f"{command}\n".encode())
            return (await reader.read()).decode()
        finally:
            writer.close()
            await writer.wait_closed()


class ServerReading(NamedTuple):
    """One server line as HAProxy runs it. ``up`` is unknown, thus false, before its first check.

    ``touched`` says that its admission is not what the configuration began with.
    """

    admitted: bool
    touched: bool
    up: bool
    in_flight: int
    requests: int
    errors: int


async def read_weight(control: ControlSocket, map_name: str) -> int:
    """The weight in force, in percent; ``map_name`` as commands name the map."""
    return weight_in(await control.ask(f"show map {map_name}"))


async def read_kept_log(control: ControlSocket) -> tuple[str, ...]:
    """The log's lines as they were written; BadInput where the running gateway keeps none."""
    shown = (await control.ask(f"show events {RING}")).strip()
    lines = tuple(line for line in shown.splitlines() if line.strip())
    if any(not line.startswith("{") for line in lines):
        raise BadInput("This gateway logs no requests; start it with gateway_log on.")
    return lines


async def read_servers(control: ControlSocket) -> dict[str, ServerReading]:
    """Every server by its name, for example ``"production/slot-0"``."""
    return servers_in(await control.ask("show servers state"), await control.ask("show stat"))


def weight_in(shown_map: str) -> int:
    """The weight in the answer to ``show map``: lines of an address, a key and a value."""
    for line in shown_map.splitlines():
        match line.split():
            case [_, key, value] if key == MAP_KEY and value.isdecimal():
                return int(value)
    raise Temporary(f"The gateway does not tell its weight: {shown_map.strip() or 'no answer'}")


def servers_in(shown_state: str, shown_stat: str) -> dict[str, ServerReading]:
    """Both answers joined by backend and server."""
    stats = stats_in(shown_stat)
    return {
        name: _reading(state, stats[name])
        for name, state in states_in(shown_state).items()
        if name in stats
    }


def states_in(shown_state: str) -> dict[str, dict[str, str]]:
    """The rows of ``show servers state``, by backend and server."""
    _version, _, table = shown_state.strip().partition("\n")
    rows = csv.DictReader(table.removeprefix("# ").splitlines(), delimiter=" ")
    return {f"{row['be_name']}/{row['srv_name']}": row for row in rows}


def stats_in(shown_stat: str) -> dict[str, dict[str, str]]:
    """The rows of ``show stat``, by proxy and server."""
    rows = csv.DictReader(shown_stat.removeprefix("# ").splitlines())
    return {f"{row['pxname']}/{row['svname']}": row for row in rows}


def _reading(state: Mapping[str, str], stat: Mapping[str, str]) -> ServerReading:
    # An asterisk marks a check under way beside the result of the one before.
    checked = stat["check_status"].removeprefix("* ") != "INI"
    undisturbed = state["srv_admin_state"] == _NO_ADMIN_STATE
    return ServerReading(
        admitted=state["srv_uweight"] != "0" and undisturbed,
        touched=state["srv_uweight"] != state["srv_iweight"] or not undisturbed,
        up=state["srv_op_state"] != _STOPPED and checked,
        in_flight=int(stat["scur"]),
        requests=int(stat["lbtot"]),
        errors=int(stat["hrsp_5xx"]) + int(stat["eresp"]),
    )


def split_of(topology: Topology, weight: int, servers: Mapping[str, ServerReading]) -> Split:
    """The split by slots: state from a slot's own arm, counts from both places it serves in."""
    slots = []
    for slot in topology.slots:
        places = servers_of(topology, slot)
        if any(str(place) not in servers for place in places):
            raise Temporary(f"The running gateway does not know slot {slot.name}.")
        [own] = [servers[str(place)] for place in places if not place.backup]
        lines = [servers[str(place)] for place in places]
        slots.append(
            SlotTraffic(
                slot=slot.name,
                role=slot.role,
                admitted=own.admitted,
                up=own.up,
                in_flight=sum(line.in_flight for line in lines),
                requests=sum(line.requests for line in lines),
                errors=sum(line.errors for line in lines),
            )
        )
    return Split(weight=weight, slots=tuple(slots))
