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

from canary.gateways.haproxy_config import (
    ARM,
    CONTROL_SOCKET,
    MAP_FILE,
    MAP_KEY,
    Backend,
    Server,
)
from canary.gateways.haproxy_log import RING
from canary.gateways.topology import Topology
from domain.errors import BadInput, Temporary
from domain.fleet import SlotTraffic, Split

_ANSWER_S = 3.0

# HAProxy's own numbers in ``show servers state``.
_STOPPED = "0"
_NO_ADMIN_STATE = "0"


class ControlSocket:
    """Sends one command at a time; every one has a deadline of three seconds."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    async def ask(self, command: str) -> str:
        """HAProxy's answer to ``command``; Temporary where it gives none."""
        try:
            async with asyncio.timeout(_ANSWER_S):
                return await self._exchange(command)
        except (OSError, TimeoutError) as error:
            why = "does not answer in time" if isinstance(error, TimeoutError) else "is closed"
            raise Temporary(
                f"The gateway is not running: its control socket in {self._directory} {why}."
            ) from error

    async def order(self, command: str) -> None:
        """Send a command that answers nothing; Temporary, with the answer, where it objects."""
        if objection := (await self.ask(command)).strip():
            raise Temporary(f"The gateway refused {command!r}: {objection}")

    async def _exchange(self, command: str) -> str:
        # A Unix socket's path holds 107 bytes at most. Named through a handle on its directory it
        # is short, however deep that directory lies.
        handle = os.open(self._directory, os.O_PATH | os.O_DIRECTORY)
        try:
            path = f"/proc/self/fd/{handle}/{CONTROL_SOCKET}"
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
    """One server line as HAProxy runs it. ``up`` is unknown, thus false, before its first check."""

    admitted: bool
    up: bool
    in_flight: int
    requests: int
    errors: int


async def read_weight(control: ControlSocket) -> int:
    """The weight in force, in percent."""
    return weight_in(await control.ask(f"show map {MAP_FILE}"))


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
    _version, _, table = shown_state.strip().partition("\n")
    states = csv.DictReader(table.removeprefix("# ").splitlines(), delimiter=" ")
    stats = {
        f"{row['pxname']}/{row['svname']}": row
        for row in csv.DictReader(shown_stat.removeprefix("# ").splitlines())
    }
    readings: dict[str, ServerReading] = {}
    for state in states:
        name = f"{state['be_name']}/{state['srv_name']}"
        if stat := stats.get(name):
            readings[name] = _reading(state, stat)
    return readings


def _reading(state: Mapping[str, str], stat: Mapping[str, str]) -> ServerReading:
    # An asterisk marks a check under way beside the result of the one before.
    checked = stat["check_status"].removeprefix("* ") != "INI"
    return ServerReading(
        admitted=state["srv_uweight"] != "0" and state["srv_admin_state"] == _NO_ADMIN_STATE,
        up=state["srv_op_state"] != _STOPPED and checked,
        in_flight=int(stat["scur"]),
        requests=int(stat["lbtot"]),
        errors=int(stat["hrsp_5xx"]) + int(stat["eresp"]),
    )


def split_of(topology: Topology, weight: int, servers: Mapping[str, ServerReading]) -> Split:
    """The split by slots: state from a slot's own arm, counts from both places it serves in."""
    slots = []
    for slot in topology.slots:
        places = {backend: str(Server(backend, slot)) for backend in Backend}
        if any(place not in servers for place in places.values()):
            raise Temporary(f"The running gateway does not know slot {slot.name}.")
        own = servers[places[ARM[slot.role]]]
        lines = [servers[place] for place in places.values()]
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
