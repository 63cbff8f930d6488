"""The split of live requests by a HAProxy of Serinus' own, which carries them while controllers
come and go. Its process is started, adopted and ended here, and nowhere else."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

from canary.gateways import haproxy_process
from canary.gateways.haproxy_config import (
    CONFIG_FILE,
    CONTROL_SOCKET,
    MAP_FILE,
    render_config,
    render_files,
    same_topology,
)
from canary.gateways.haproxy_driven import DrivenHAProxy
from canary.gateways.haproxy_log import LoggedRequest, read_log
from canary.gateways.haproxy_runtime import ControlSocket, read_kept_log
from canary.gateways.kept_state import KeptState, StateDirectory
from canary.gateways.topology import Listening
from domain.errors import Temporary


class HAProxyGateway(DrivenHAProxy):
    """``domain.ports.Gateway`` on one HAProxy, started here or found running in ``directory``.

    Requests enter at the topology's ``port``; HAProxy's Prometheus exporter listens on its
    ``metrics_port``. A session, named by its ``session_header``, stays on its arm; requests without
    that header draw their arm each time. A slot gets no request before it is admitted for the first
    time.

    With ``log_requests`` HAProxy keeps a line for each of the latest requests in its memory,
    without content, addresses or names; ``logged`` reads them.
    """

    def __init__(self, *, directory: Path, topology: Listening, binary: Path | None = None) -> None:
        self._directory = directory.absolute()
        self._socket = self._directory / CONTROL_SOCKET
        self._listening = topology
        self._binary = binary
        kept = StateDirectory(self._directory, topology)
        super().__init__(topology, ControlSocket(self._socket), kept)

    async def start(self) -> None:
        """Adopt the HAProxy that runs in the directory, else start one with the kept state.

        BadInput where a port is taken, the binary does not run, the directory cannot be written,
        or the one that runs was started for other slots or ports; Temporary while another
        controller starts it. Idempotent.
        """
        with self._kept.alone():
            if not await self._adopted():
                await asyncio.to_thread(self._launch)
        await self.read()

    async def stop(self) -> None:
        """End HAProxy at once, with the streams it carries. Idempotent."""
        await asyncio.to_thread(haproxy_process.end, self._directory)
        self._socket.unlink(missing_ok=True)

    async def logged(self) -> tuple[LoggedRequest, ...]:
        """The latest requests that have ended, by their begin; Temporary without an answer.

        BadInput where the gateway was not asked to log.
        """
        return read_log(await read_kept_log(self._control))

    async def _check_running(self) -> None:
        await self._control.ask("show info")

    async def _map(self) -> str:
        return MAP_FILE

    def _rendered(self, state: KeptState) -> Mapping[str, str]:
        return render_files(self._listening, state)

    def _launch(self) -> None:
        if haproxy_process.find(self._directory):
            raise Temporary(
                f"HAProxy runs in {self._directory} and does not answer; stop it if it stays so."
            )
        state = self._kept.load()
        self._kept.keep(state, self._rendered(state))
        haproxy_process.launch(self._binary or haproxy_process.bundled_binary(), self._directory)

    async def _adopted(self) -> bool:
        try:
            await self._check_running()
        except Temporary:
            return False
        wanted = render_config(self._listening, KeptState())
        await asyncio.to_thread(
            self._kept.refuse_others, CONFIG_FILE, lambda config: same_topology(config, wanted)
        )
        return True
