"""The split of live requests by a HAProxy that its user runs, which Serinus only sends commands to.

It is never started, stopped, reloaded or configured here. What it forgets when its user reloads it,
it is told again by ``start``, which ``read`` asks for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from canary.gateways.haproxy_driven import DrivenHAProxy
from canary.gateways.haproxy_found import (
    NoMap,
    as_word,
    check_level,
    check_servers,
    forgotten,
    map_in,
    process_in,
)
from canary.gateways.haproxy_runtime import (
    ControlSocket,
    SocketClosed,
    read_servers,
    read_weight,
)
from canary.gateways.kept_state import KeptState, StateDirectory
from canary.gateways.topology import Topology
from domain.errors import Temporary
from domain.fleet import Split


class UsersHAProxyGateway(DrivenHAProxy):
    """``domain.ports.Gateway`` on the HAProxy whose stats socket is ``socket``.

    Its configuration holds what ``haproxy_pasted`` renders for the ``topology``. What Serinus sets
    is kept in ``directory``, with the process that it was set in: another process has forgotten
    it, which is no change by hand.
    """

    def __init__(self, *, directory: Path, socket: Path, topology: Topology) -> None:
        kept = StateDirectory(directory.absolute(), topology)
        super().__init__(topology, ControlSocket(socket), kept)

    async def check(self) -> None:
        """BadInput names the first thing that the running HAProxy lacks; Temporary where none
        answers. Changes nothing."""
        ask = self._control.ask
        await self._process()
        check_level(await ask("show cli level"))
        check_servers(self._topology, await ask("show servers state"), await ask("show stat"))
        await read_weight(self._control, await self._map())

    async def start(self) -> None:
        """Check the HAProxy; where it was started since the last change, set again what it forgot.

        BadInput and Temporary as ``check``; Temporary too while another controller does the same.
        Idempotent.
        """
        await self.check()
        with self._kept.alone():
            process, kept = await self._process(), await asyncio.to_thread(self._kept.load)
            if process != kept.process:
                await self._set_again(kept)
                kept = replace(kept, process=process)
                await asyncio.to_thread(self._kept.keep, kept, {})
        await self.read()

    async def stop(self) -> None:
        """Send everything to production; the HAProxy runs on. Idempotent, also where it does not
        run, or reads the map no longer."""
        if (await asyncio.to_thread(self._kept.load)).weight:
            await asyncio.to_thread(
                self._kept.change, lambda state: replace(state, weight=0), self._rendered
            )
        with suppress(SocketClosed, NoMap):
            await self._weigh(0)

    async def read(self) -> Split:
        """The split in force; Temporary where HAProxy does not run, or has forgotten it."""
        await self._check_running()
        return await super().read()

    async def _check_running(self) -> None:
        kept = await asyncio.to_thread(self._kept.load)
        if await self._process() != kept.process:
            raise Temporary(
                "Your HAProxy was started or reloaded, and has forgotten what Serinus had set."
            )

    async def _map(self) -> str:
        return as_word(map_in(await self._control.ask("show map")))

    def _rendered(self, state: KeptState) -> Mapping[str, str]:
        return {}

    async def _process(self) -> str:
        return process_in(await self._control.ask("show info"))

    async def _set_again(self, kept: KeptState) -> None:
        """No arm is taken out before the other one is in."""
        weight = await read_weight(self._control, await self._map())
        lost = forgotten(self._topology, kept, weight, await read_servers(self._control))
        await self._set_admission(lost.admit, admitted=True)
        if lost.weight is not None:
            await self._weigh(lost.weight)
        await self._set_admission(lost.drain, admitted=False)
