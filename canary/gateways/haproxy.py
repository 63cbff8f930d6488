"""The split of live requests by HAProxy, which carries them while controllers come and go.

A change is kept on disk first, then made in the running process, then read back. Nothing here
decides a weight, and no request passes through this process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from canary.gateways import haproxy_process
from canary.gateways.haproxy_config import (
    ADMITTED_WEIGHT,
    CONFIG_FILE,
    CONTROL_SOCKET,
    DRAINED_WEIGHT,
    MAP_FILE,
    MAP_KEY,
    Backend,
    Server,
    render_config,
    render_files,
    same_topology,
)
from canary.gateways.haproxy_log import LoggedRequest, read_log
from canary.gateways.haproxy_runtime import (
    ControlSocket,
    read_kept_log,
    read_servers,
    read_weight,
    split_of,
)
from canary.gateways.kept_state import KeptState, StateDirectory
from canary.gateways.topology import Topology, check_topology
from domain.errors import BadInput, GatewayUnverified, Temporary
from domain.fleet import Slot, Split


class HAProxyGateway:
    """``domain.ports.Gateway`` on one HAProxy, started here or found running in ``directory``.

    Requests enter at ``port``; HAProxy's Prometheus exporter listens on ``metrics_port``, by
    default the next one. All of it is on the loopback address. A session, named by
    ``session_header``, stays on its arm; requests without that header draw their arm each time.
    A slot gets no request before it is admitted for the first time.

    An answer's ``x-serinus-arm`` (production, candidate) and ``x-serinus-slot`` tell who gave it.
    ``requests`` of a slot count when they are sent to it, ``errors`` each failed attempt: a request
    that is tried again can count more than one.

    With ``log_requests`` HAProxy keeps a line for each of the latest requests in its memory,
    without content, addresses or names; ``logged`` reads them.
    """

    def __init__(
        self,
        *,
        directory: Path,
        port: int,
        slots: tuple[Slot, ...],
        session_header: str = "x-session-id",
        metrics_port: int | None = None,
        binary: Path | None = None,
        log_requests: bool = False,
    ) -> None:
        self._topology = Topology(
            port=port,
            metrics_port=port + 1 if metrics_port is None else metrics_port,
            slots=slots,
            session_header=session_header,
            log_requests=log_requests,
        )
        check_topology(self._topology)
        self._directory = directory.absolute()
        self._kept = StateDirectory(self._directory, self._topology)
        self._control = ControlSocket(self._directory)
        self._binary = binary

    @property
    def url(self) -> str:
        """Where clients send their requests."""
        return f"http://127.0.0.1:{self._topology.port}"

    @property
    def metrics_url(self) -> str:
        """HAProxy's own Prometheus exporter."""
        return f"http://127.0.0.1:{self._topology.metrics_port}/metrics"

    async def start(self) -> None:
        """Adopt the HAProxy that runs in the directory, else start one with the kept state.

        BadInput where a port is taken, the binary does not run, the directory cannot be written,
        or the one that runs was started for other slots or ports; Temporary while another
        controller starts it. Idempotent.
        """
        try:
            with self._kept.alone():
                if not await self._adopted():
                    await asyncio.to_thread(self._launch)
        except OSError as error:
            raise BadInput(
                f"The gateway cannot use {self._directory}: {error.strerror}."
            ) from error
        await self.read()

    async def stop(self) -> None:
        """End HAProxy at once, with the streams it carries. Idempotent."""
        await asyncio.to_thread(haproxy_process.end, self._directory)
        (self._directory / CONTROL_SOCKET).unlink(missing_ok=True)

    async def set_weight(self, weight: int) -> None:
        """Send ``weight`` percent of the sessions to the candidate, 0 to 100."""
        if not 0 <= weight <= 100:
            raise BadInput(f"A weight is 0 to 100 percent, not {weight}.")
        await self._keep(lambda state: replace(state, weight=weight))
        await self._control.order(f"set map {MAP_FILE} {MAP_KEY} {weight}")
        found = await read_weight(self._control)
        if found != weight:
            raise GatewayUnverified(f"The gateway was set to {weight} % and reads {found} %.")

    async def admit(self, slot: str) -> None:
        """Let new requests go to ``slot``, which its health checks may still hold back."""
        place = self._topology.slot(slot)
        await self._keep(lambda state: replace(state, admitted=state.admitted | {slot}))
        await self._set_admission(place, ADMITTED_WEIGHT)

    async def drain(self, slot: str) -> None:
        """Send no new request to ``slot``; its streams go on."""
        place = self._topology.slot(slot)
        await self._keep(lambda state: replace(state, admitted=state.admitted - {slot}))
        await self._set_admission(place, DRAINED_WEIGHT)

    async def read(self) -> Split:
        """The split in force; Temporary where HAProxy does not run."""
        weight = await read_weight(self._control)
        return split_of(self._topology, weight, await read_servers(self._control))

    async def logged(self) -> tuple[LoggedRequest, ...]:
        """The latest requests that have ended, by their begin; Temporary without an answer.

        BadInput where the gateway was not asked to log.
        """
        return read_log(await read_kept_log(self._control))

    def _launch(self) -> None:
        if haproxy_process.find(self._directory):
            raise Temporary(
                f"HAProxy runs in {self._directory} and does not answer; stop it if it stays so."
            )
        self._write(self._kept.load())
        haproxy_process.launch(self._binary or haproxy_process.bundled_binary(), self._directory)

    def _write(self, state: KeptState) -> None:
        self._kept.keep(state, render_files(self._topology, state))

    async def _adopted(self) -> bool:
        try:
            await self._control.ask("show info")
        except Temporary:
            return False
        config = await asyncio.to_thread(self._kept.written, CONFIG_FILE)
        if not same_topology(config, render_config(self._topology, KeptState())):
            raise BadInput(
                f"The gateway that runs in {self._directory} was started for other slots or ports;"
                " stop it before starting it with these."
            )
        return True

    async def _keep(self, change: Callable[[KeptState], KeptState]) -> None:
        """Keep the changed state on disk, unless HAProxy could not take the change anyway."""
        await self._control.ask("show info")
        try:
            await asyncio.to_thread(lambda: self._write(change(self._kept.load())))
        except OSError as error:
            raise Temporary(
                f"The gateway cannot keep its state in {self._directory}: {error.strerror}."
            ) from error

    async def _set_admission(self, slot: Slot, weight: int) -> None:
        servers = [str(Server(backend, slot)) for backend in Backend]
        wanted = weight != DRAINED_WEIGHT
        for server in servers:
            await self._control.order(f"set server {server} weight {weight}")
            if wanted:
                await self._control.order(f"set server {server} state ready")
        found = await read_servers(self._control)
        if any(s not in found or found[s].admitted != wanted for s in servers):
            asked = "admit" if wanted else "drain"
            raise GatewayUnverified(f"The gateway was asked to {asked} {slot.name} and did not.")
