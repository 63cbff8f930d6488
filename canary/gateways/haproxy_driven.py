"""A HAProxy that runs, driven through its control socket, whoever started it.

A change is kept on disk first, then made in the running process, then read back. Nothing here
decides a weight, and no request passes through this process.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from canary.gateways.haproxy_config import (
    ADMITTED_WEIGHT,
    DRAINED_WEIGHT,
    MAP_KEY,
    Server,
    servers_of,
)
from canary.gateways.haproxy_runtime import ControlSocket, read_servers, read_weight, split_of
from canary.gateways.kept_state import KeptState, StateDirectory
from canary.gateways.topology import Topology
from domain.errors import BadInput, GatewayUnverified
from domain.fleet import Split


class DrivenHAProxy(ABC):
    """``domain.ports.Gateway`` on a HAProxy that runs.

    An answer's ``x-serinus-arm`` (production, candidate) and ``x-serinus-slot`` tell who gave it.
    ``requests`` of a slot count when they are sent to it, ``errors`` each failed attempt: a request
    that is tried again can count more than one.
    """

    def __init__(self, topology: Topology, control: ControlSocket, kept: StateDirectory) -> None:
        self._topology = topology
        self._control = control
        self._kept = kept

    async def set_weight(self, weight: int) -> None:
        """Send ``weight`` percent of the sessions to the candidate, 0 to 100."""
        if not 0 <= weight <= 100:
            raise BadInput(f"A weight is 0 to 100 percent, not {weight}.")
        await self._keep(lambda state: replace(state, weight=weight))
        await self._weigh(weight)

    async def admit(self, slot: str) -> None:
        """Let new requests go to ``slot``, which its health checks may still hold back."""
        places = servers_of(self._topology, self._topology.slot(slot))
        await self._keep(lambda state: replace(state, admitted=state.admitted | {slot}))
        await self._set_admission(places, admitted=True)

    async def drain(self, slot: str) -> None:
        """Send no new request to ``slot``; its streams go on."""
        places = servers_of(self._topology, self._topology.slot(slot))
        await self._keep(lambda state: replace(state, admitted=state.admitted - {slot}))
        await self._set_admission(places, admitted=False)

    async def read(self) -> Split:
        """The split in force; Temporary where HAProxy does not run."""
        weight = await read_weight(self._control, await self._map())
        return split_of(self._topology, weight, await read_servers(self._control))

    @abstractmethod
    async def _check_running(self) -> None:
        """Temporary where no HAProxy runs that changes can be made in."""

    @abstractmethod
    async def _map(self) -> str:
        """The map of the weight, as commands name it."""

    @abstractmethod
    def _rendered(self, state: KeptState) -> Mapping[str, str]:
        """The files that HAProxy reads the state from when it starts."""

    async def _keep(self, change: Callable[[KeptState], KeptState]) -> None:
        """Keep the changed state on disk, unless HAProxy could not take the change anyway."""
        await self._check_running()
        await asyncio.to_thread(self._kept.change, change, self._rendered)

    async def _weigh(self, weight: int) -> None:
        name = await self._map()
        await self._control.order(f"set map {name} {MAP_KEY} {weight}")
        found = await read_weight(self._control, name)
        if found != weight:
            raise GatewayUnverified(f"The gateway was set to {weight} % and reads {found} %.")

    async def _set_admission(self, servers: Sequence[Server], *, admitted: bool) -> None:
        weight = ADMITTED_WEIGHT if admitted else DRAINED_WEIGHT
        for server in servers:
            await self._control.order(f"set server {server} weight {weight}")
            if admitted:
                await self._control.order(f"set server {server} state ready")
        found = await read_servers(self._control)
        for server in servers:
            if str(server) not in found or found[str(server)].admitted != admitted:
                asked = "admit" if admitted else "drain"
                name = server.slot.name
                raise GatewayUnverified(f"The gateway was asked to {asked} {name} and did not.")
