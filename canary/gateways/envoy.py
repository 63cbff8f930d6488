"""The split of live requests by Envoy, which carries them while controllers come and go.

A change is kept on disk, in files that Envoy watches, then awaited and read back. Nothing here
decides a weight, and no request passes through this process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from canary.gateways import envoy_process
from canary.gateways.envoy_admin import Admin
from canary.gateways.envoy_config import (
    ADMIN_SOCKET,
    CONFIG_FILE,
    render_changes,
    render_config,
    render_files,
)
from canary.gateways.kept_state import KeptState, StateDirectory
from canary.gateways.topology import Listening
from domain.errors import BadInput, GatewayUnverified, Temporary
from domain.fleet import Split

_START_S = 15.0
_CHANGE_S = 2.0
_POLL_S = 0.005


class EnvoyGateway:
    """``domain.ports.Gateway`` on one Envoy, started here or found running in ``directory``.

    Requests enter at the topology's ``port``; Envoy's metrics for Prometheus listen on its
    ``metrics_port``. A session, named by its ``session_header``, stays on its arm; requests without
    that header draw their arm each time. A slot gets no request before it is admitted for the first
    time.

    An answer's ``x-serinus-arm`` (production, candidate) and ``x-serinus-slot`` tell who gave it.
    ``requests`` of a slot count when they are sent to it, ``errors`` each failed attempt: a request
    that is tried again can count more than one.
    """

    def __init__(self, *, directory: Path, topology: Listening, binary: Path | None = None) -> None:
        self._directory = directory.absolute()
        self._topology = topology
        self._kept = StateDirectory(self._directory, topology)
        self._admin = Admin(self._directory)
        self._binary = binary

    async def start(self) -> None:
        """Adopt the Envoy that runs in the directory, else start one with the kept state.

        BadInput where a port is taken, the binary does not run, the directory cannot be written,
        or the one that runs was started for other slots or ports; Temporary while another
        controller starts it. Idempotent.
        """
        with self._kept.alone():
            if not await self._adopted():
                await self._until_live(await asyncio.to_thread(self._launch))
        await self.read()

    async def stop(self) -> None:
        """End Envoy at once, with the streams it carries. Idempotent."""
        await asyncio.to_thread(envoy_process.end, self._directory)
        (self._directory / ADMIN_SOCKET).unlink(missing_ok=True)

    async def set_weight(self, weight: int) -> None:
        """Send ``weight`` percent of the sessions to the candidate, 0 to 100."""
        if not 0 <= weight <= 100:
            raise BadInput(f"A weight is 0 to 100 percent, not {weight}.")
        await self._change(lambda state: replace(state, weight=weight))
        found = await self._awaited(lambda split: split.weight == weight)
        if found.weight != weight:
            raise GatewayUnverified(
                f"The gateway was set to {weight} % and reads {found.weight} %."
            )

    async def admit(self, slot: str) -> None:
        """Let new requests go to ``slot``, which its health checks may still hold back."""
        self._topology.slot(slot)
        await self._change(lambda state: replace(state, admitted=state.admitted | {slot}))
        await self._verify_admission(slot, wanted=True)

    async def drain(self, slot: str) -> None:
        """Send no new request to ``slot``; its streams go on."""
        self._topology.slot(slot)
        await self._change(lambda state: replace(state, admitted=state.admitted - {slot}))
        await self._verify_admission(slot, wanted=False)

    async def read(self) -> Split:
        """The split in force; Temporary where Envoy does not run."""
        return await self._admin.split(self._topology)

    def _launch(self) -> int:
        if envoy_process.find(self._directory):
            raise Temporary(
                f"Envoy runs in {self._directory} and does not answer; stop it if it stays so."
            )
        state = self._kept.load()
        self._kept.keep(state, render_files(self._topology, state))
        binary = self._binary or envoy_process.bundled_binary()
        return envoy_process.launch(binary, self._directory)

    async def _until_live(self, pid: int) -> None:
        """Wait until the Envoy just launched takes requests, once it has checked each slot."""
        try:
            async with asyncio.timeout(_START_S):
                while not await self._live():
                    if not await asyncio.to_thread(envoy_process.running, pid):
                        raise envoy_process.refusal(self._directory)
                    await asyncio.sleep(_POLL_S)
        except TimeoutError as error:
            await self.stop()
            raise Temporary(f"Envoy did not start within {_START_S:.0f} s.") from error

    async def _live(self) -> bool:
        try:
            return await self._admin.live()
        except Temporary:
            return False

    async def _adopted(self) -> bool:
        if not await self._live():
            return False
        wanted = render_config(self._topology)
        await asyncio.to_thread(
            self._kept.refuse_others, CONFIG_FILE, lambda config: config == wanted
        )
        return True

    async def _change(self, change: Callable[[KeptState], KeptState]) -> None:
        """Keep the changed state on disk, unless Envoy could not take the change anyway.

        What Envoy reads is what is in force with this change, so that nothing else is undone that
        somebody did by hand.
        """
        split = await self.read()
        admitted = frozenset(slot.slot for slot in split.slots if slot.admitted)
        wanted = change(KeptState(weight=split.weight, admitted=admitted))
        read = render_changes(self._topology, wanted)
        await asyncio.to_thread(self._kept.change, change, lambda _: read)

    async def _awaited(self, met: Callable[[Split], bool]) -> Split:
        """The split once ``met``, or as it is when the time for a change is over."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _CHANGE_S
        while True:
            split = await self.read()
            if met(split) or loop.time() >= deadline:
                return split
            await asyncio.sleep(_POLL_S)

    async def _verify_admission(self, name: str, *, wanted: bool) -> None:
        def met(split: Split) -> bool:
            slot = split.slot(name)
            return slot is not None and slot.admitted is wanted

        if not met(await self._awaited(met)):
            asked = "admit" if wanted else "drain"
            raise GatewayUnverified(f"The gateway was asked to {asked} {name} and did not.")
