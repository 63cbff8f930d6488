"""The gateway that the settings ask for, and what a HAProxy of the user's own needs for it. Nothing
here is started, and the only thing asked is that HAProxy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from agent import interpretation
from agent.settings import Settings
from canary.gateways.envoy import EnvoyGateway
from canary.gateways.haproxy import HAProxyGateway
from canary.gateways.haproxy_pasted import Part, behind_users, render_part, render_pasted
from canary.gateways.haproxy_users import UsersHAProxyGateway
from canary.gateways.topology import Listening
from domain.errors import BadInput
from domain.fleet import Slot

AnyGateway: TypeAlias = HAProxyGateway | UsersHAProxyGateway | EnvoyGateway
_SOCKET = Path("/run/haproxy/admin.sock")


def arms(settings: Settings) -> tuple[Slot, ...]:
    """The slots behind the gateway."""
    return (*interpretation.production(settings), interpretation.lanes(settings)[0])


def gateway(settings: Settings, directory: Path) -> AnyGateway:
    """The gateway, which keeps its state in ``directory``."""
    if (socket := settings.haproxy_socket) is not None:
        return _users(settings, directory, socket)
    gateways: dict[str, Callable[[], AnyGateway]] = {
        "haproxy": lambda: HAProxyGateway(directory=directory, topology=_listening(settings)),
        "envoy": lambda: EnvoyGateway(directory=directory, topology=_listening(settings)),
    }
    return gateways[settings.gateway]()


def url(settings: Settings) -> str:
    """Where clients send their requests to a gateway that Serinus runs."""
    return _listening(settings).url


def pasted(settings: Settings, part: Part | None) -> str:
    """What the user of a HAProxy puts in its configuration; BadInput with another gateway."""
    if settings.gateway != "haproxy":
        raise BadInput(
            f"gateway is {settings.gateway}, and only a HAProxy of your own can be driven; set"
            " gateway to haproxy."
        )
    topology = behind_users(arms(settings), settings.session_header)
    if part is not None:
        return render_part(part, topology)
    return render_pasted(topology, str(settings.haproxy_socket or _SOCKET))


async def check_users(settings: Settings) -> None:
    """BadInput or Temporary says what the user's own HAProxy lacks; nothing where there is none."""
    if (socket := settings.haproxy_socket) is not None:
        await _users(settings, settings.state_dir / "gateway", socket).check()


def _users(settings: Settings, directory: Path, socket: Path) -> UsersHAProxyGateway:
    topology = behind_users(arms(settings), settings.session_header)
    return UsersHAProxyGateway(directory=directory, socket=socket, topology=topology)


def _listening(settings: Settings) -> Listening:
    return Listening(
        port=settings.gateway_port,
        metrics_port=settings.gateway_port + 1,
        slots=arms(settings),
        session_header=settings.session_header,
        log_requests=settings.gateway_log,
    )
