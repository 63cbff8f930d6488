"""What HAProxy is told: the fixed topology and the kept state, rendered to its configuration.

Pure: nothing here reads a file, a clock or a socket. The reasons for the settings stand beside
them, because a setting that is dropped here loses requests in production.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import NamedTuple

from canary.gateways import haproxy_log
from canary.gateways.kept_state import KeptState
from canary.gateways.topology import Listening, Topology
from domain.fleet import Role, Slot

CONFIG_FILE = "haproxy.cfg"
MAP_FILE = "weight.map"
CONTROL_SOCKET = "control.sock"
MAP_KEY = "weight"

# Admission is the server's weight: unlike maintenance, a weight of 0 keeps the health checks
# running, so that it is known whether an engine is healthy before it is admitted.
ADMITTED_WEIGHT = 100
DRAINED_WEIGHT = 0


class Backend(Enum):
    """HAProxy's name for each arm."""

    PRODUCTION = "production"
    CANDIDATE = "candidate"


ARM = {Role.PRODUCTION: Backend.PRODUCTION, Role.CANARY: Backend.CANDIDATE}


class Server(NamedTuple):
    """One line ``server`` of HAProxy: a slot stands in its own backend and, as backup, in the
    other's. ``str`` gives it as the runtime commands name it."""

    backend: Backend
    slot: Slot
    prefix: str

    @property
    def backup(self) -> bool:
        return self.backend is not ARM[self.slot.role]

    @property
    def proxy(self) -> str:
        """HAProxy's name of the backend."""
        return f"{self.prefix}{self.backend.value}"

    def __str__(self) -> str:
        return f"{self.proxy}/{self.slot.name}"


def servers_of(topology: Topology, slot: Slot | None = None) -> tuple[Server, ...]:
    """Every server line, or those of one slot; a backend's own slots before its backups."""
    slots = topology.slots if slot is None else (slot,)
    lines = (Server(backend, each, topology.prefix) for backend in Backend for each in slots)
    return tuple(sorted(lines, key=lambda line: (line.backend.value, line.backup)))


def render_files(topology: Listening, state: KeptState) -> dict[str, str]:
    """Every file that HAProxy reads, by its name."""
    return {MAP_FILE: render_map(state), CONFIG_FILE: render_config(topology, state)}


def render_map(state: KeptState) -> str:
    """The map file that holds the weight, in percent."""
    return f"{MAP_KEY} {state.weight}\n"


def render_config(topology: Listening, state: KeptState) -> str:
    """The whole configuration; file names in it are relative to the gateway's directory."""
    backends = "\n".join(render_backend(backend, topology, state) for backend in Backend)
    salt, ring = "", ""
    if topology.log_requests:
        salt, ring = haproxy_log.global_lines(), f"{haproxy_log.ring_section()}\n"
    fixed = f"{_GLOBAL}{salt}\ndefaults\n{DEFAULTS}\n{ring}"
    return f"{fixed}{_frontend(topology)}\n{backends}\n{_exporter(topology)}"


def same_topology(one: str, other: str) -> bool:
    """Whether two rendered configurations differ in nothing but the admitted slots."""

    def stripped(config: str) -> str:
        return re.sub(r" weight \d+", "", config)

    return stripped(one) == stripped(other)


_GLOBAL = f"""\
# Written by Serinus and rewritten with each change; edits are lost.
global
    stats socket unix@{CONTROL_SOCKET} mode 600 level admin
    stats timeout 10s
    # A second HAProxy on the same port must fail instead of taking every other connection.
    noreuseport
    nbthread 4
    fd-hard-limit 65536
    # A request that got no answer is sent again only if it fits one buffer.
    tune.bufsize 65536
"""

DEFAULTS = """\
    mode http
    timeout connect 2s
    timeout check 2s
    # Times of silence, not of length: a stream may wait this long between two chunks.
    timeout client 1h
    timeout server 1h
    # A token leaves as soon as it comes.
    option http-no-delay
    # A client's cancel reaches the engine, also before the first byte of the answer.
    option abortonclose
    # No idle connection to an engine, so none that the engine closes just as it is used again.
    option http-server-close
    # Before the first byte, a failed request is tried elsewhere.
    retries 2
    retry-on conn-failure empty-response
    option redispatch 1
"""


def _frontend(topology: Listening) -> str:
    logged = ""
    if topology.log_requests:
        logged = haproxy_log.frontend_lines(_session(topology))
    return f"""\
frontend traffic
    bind 127.0.0.1:{topology.port}
{logged}{bucket_lines(topology, MAP_FILE)}{told_lines(topology)}{choice_lines(topology)}"""


def bucket_lines(topology: Topology, map_name: str) -> str:
    """What gives a request its bucket and the limit below which the candidate serves it."""
    session, at = _session(topology), f"txn.{topology.prefix}"
    named = f"{{ {session} -m len ge 1 }}"
    return f"""\
    # The bucket of a session never changes: a higher weight only adds sessions to the candidate,
    # a lower one only takes some away.
    http-request set-var({at}bucket) {session},xxh32,mod(10000) if {named}
    http-request set-var({at}bucket) rand(10000) unless {named}
    http-request set-var({at}limit) str({MAP_KEY}),map_str_int({map_name},0),mul(100)
"""


def told_lines(topology: Topology) -> str:
    """What tells in an answer's headers who gave it."""
    arms = "".join(
        f"    http-after-response set-header x-serinus-arm {arm.value} if {{ srv_name {names} }}\n"
        for arm in Backend
        if (names := " ".join(slot.name for slot in topology.slots if ARM[slot.role] is arm))
    )
    return f"""\
{arms}    http-after-response set-header x-serinus-slot %[srv_name] if {{ srv_name -m found }}
"""


def choice_lines(topology: Topology) -> str:
    """What sends a request to the backend of its arm."""
    at, before = f"txn.{topology.prefix}", topology.prefix
    return f"""\
    use_backend {before}{Backend.CANDIDATE.value} if {{ var({at}bucket),sub({at}limit) lt 0 }}
    default_backend {before}{Backend.PRODUCTION.value}
"""


def render_backend(
    backend: Backend, topology: Topology, state: KeptState, *, defaults: str = "", first: str = ""
) -> str:
    """One arm's section, with the ``first`` lines; it takes the ``defaults`` of that name."""
    servers = "".join(
        f"    {_server(server, state)}\n"
        for server in servers_of(topology)
        if server.backend is backend
    )
    return f"""\
backend {topology.prefix}{backend.value}{f" from {defaults}" if defaults else ""}
{first}\
    option httpchk GET /health
    # Turns of one session meet the prefix cache that they filled, unless that engine is
    # overloaded against the others.
    balance hdr({topology.session_header})
    hash-type consistent
    hash-balance-factor 150
    # The other arm's slots serve when none of this arm's can.
    option allbackups
{servers}"""


def _session(topology: Topology) -> str:
    return f"req.fhdr({topology.session_header})"


def _server(server: Server, state: KeptState) -> str:
    slot = server.slot
    weight = ADMITTED_WEIGHT if slot.name in state.admitted else DRAINED_WEIGHT
    line = f"server {slot.name} 127.0.0.1:{slot.port} weight {weight}"
    if server.backup:
        return f"{line} track {server.prefix}{ARM[slot.role].value}/{slot.name} backup"
    # A refused connection marks the engine down at once; a slow health check only at the third.
    health = "check inter 500ms fastinter 200ms rise 1 fall 3"
    return f"{line} {health} observe layer4 error-limit 1 on-error mark-down"


def _exporter(topology: Listening) -> str:
    return f"""\
frontend exporter
    bind 127.0.0.1:{topology.metrics_port}
    http-request use-service prometheus-exporter if {{ path /metrics }}
    http-request return status 404
"""
