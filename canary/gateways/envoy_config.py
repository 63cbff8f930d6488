"""What Envoy is told: the fixed topology and the kept state, rendered to its configuration.

Pure: nothing here reads a file, a clock or a socket. The bootstrap says what stays for the life of
a gateway; the routes say the weight and the endpoints say who is admitted, each in a file that
Envoy watches. The reasons for the settings stand beside them, because a setting that is dropped
here loses requests in production.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from canary.gateways.kept_state import KeptState
from canary.gateways.topology import ARMS, Listening, Topology
from domain.fleet import Role, Slot

CONFIG_FILE = "envoy.json"
ROUTES_FILE = "routes.json"
ENDPOINTS_FILE = {role: f"endpoints-{role.arm}.json" for role in ARMS}
ADMIN_SOCKET = "admin.sock"
LOG_FILE = "envoy.log"

ROUTES = "traffic"
EVERY_SESSION = 100
# The last part of a count's name is the slot.
FAILED_PREFIX = "serinus.failed.slot."
# Envoy's words for a slot that may get new requests and for one that may not. Of a draining
# endpoint the health is checked all the same, and the streams under way go on.
ADMITTED = "HEALTHY"
DRAINED = "DRAINING"

_METADATA = "serinus"
_SILENCE = "3600s"
_NEVER = "0s"
# Instead of Envoy's 1,024, of which the last request would be refused; of retries it allows three.
_NO_LIMIT = 1_000_000
_LIMITS = ("max_connections", "max_pending_requests", "max_requests", "max_retries")
_BREAKERS = {"thresholds": [dict.fromkeys(_LIMITS, _NO_LIMIT)]}
# A body up to this size is kept until its answer begins, to be sent again elsewhere.
_KEPT_BODY_BYTES = 8 << 20
_TYPES = "type.googleapis.com/envoy"
_HTTP = f"{_TYPES}.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
_ROUTER = f"{_TYPES}.extensions.filters.http.router.v3.Router"
_PROTOCOLS = f"{_TYPES}.extensions.upstreams.http.v3.HttpProtocolOptions"
_ROUTE_CONFIG = f"{_TYPES}.config.route.v3.RouteConfiguration"
_ASSIGNMENT = f"{_TYPES}.config.endpoint.v3.ClusterLoadAssignment"
_OTHER_HOSTS = f"{_TYPES}.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate"
_OTHER_ARM = f"{_TYPES}.extensions.retry.priority.previous_priorities.v3.PreviousPrioritiesConfig"
_AGGREGATE = f"{_TYPES}.extensions.clusters.aggregate.v3.ClusterConfig"
_STATS_LOG = f"{_TYPES}.extensions.access_loggers.stats.v3.Config"


def render_files(topology: Listening, state: KeptState) -> dict[str, str]:
    """Every file that Envoy reads, by its name; paths in them are relative to its directory."""
    return {CONFIG_FILE: render_config(topology), **render_changes(topology, state)}


def render_changes(topology: Topology, state: KeptState) -> dict[str, str]:
    """The files that a change of the state replaces."""
    files = {ROUTES_FILE: _response(_routes(topology, state.weight), _ROUTE_CONFIG)}
    for role in ARMS:
        files[ENDPOINTS_FILE[role]] = _response(_endpoints(role, topology, state), _ASSIGNMENT)
    return files


def render_config(topology: Listening) -> str:
    """The bootstrap: the same text as long as the topology is the same."""
    slots = [{"name": s.name, "arm": s.role.arm, "port": s.port} for s in topology.slots]
    topology_told = {"slots": slots, "session_header": topology.session_header}
    return _text(
        {
            "node": {"id": "gateway", "cluster": "serinus", "metadata": topology_told},
            "admin": {"address": {"pipe": {"path": ADMIN_SOCKET, "mode": 0o600}}},
            "static_resources": {
                "listeners": [_traffic(topology), _exporter(topology)],
                "clusters": [
                    *(_slots_of(role) for role in ARMS),
                    *(_arm_first(role) for role in ARMS),
                    _admin(),
                ],
            },
        }
    )


def first_of(role: Role) -> str:
    """The cluster that a request of an arm goes to."""
    return f"{role.arm}-first"


def _traffic(topology: Listening) -> dict[str, Any]:
    manager = {
        "stat_prefix": ROUTES,
        "rds": {"route_config_name": ROUTES, "config_source": _file(ROUTES_FILE)},
        # Times of silence, not of length: a stream may wait this long between two chunks.
        "stream_idle_timeout": _SILENCE,
        "common_http_protocol_options": {"idle_timeout": _SILENCE},
        "http_protocol_options": {"accept_http_10": True, "default_host_for_http_10": "localhost"},
        "upgrade_configs": [{"upgrade_type": "websocket"}],
        # A request passes as it came. Only as a remote one it is not obeyed where it asks for
        # other retries or timeouts than the route's.
        "use_remote_address": True,
        "skip_xff_append": True,
        "generate_request_id": False,
        "preserve_external_request_id": True,
        "server_header_transformation": "PASS_THROUGH",
        "http_filters": [
            _named(
                "envoy.filters.http.router",
                _ROUTER,
                suppress_envoy_headers=True,
                upstream_log=[_failed_answers()],
            )
        ],
    }
    return _listener(ROUTES, topology.port, manager)


def _exporter(topology: Listening) -> dict[str, Any]:
    metrics = {
        "match": {"path": "/metrics"},
        "route": {"cluster": "admin", "prefix_rewrite": "/stats/prometheus"},
    }
    elsewhere = {"match": {"prefix": "/"}, "direct_response": {"status": 404}}
    manager = {
        "stat_prefix": "exporter",
        "route_config": {
            "virtual_hosts": [
                {"name": "exporter", "domains": ["*"], "routes": [metrics, elsewhere]}
            ]
        },
        "http_filters": [_named("envoy.filters.http.router", _ROUTER)],
    }
    return _listener("exporter", topology.metrics_port, manager)


def _listener(name: str, port: int, manager: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "name": name,
        "address": _address(port),
        # A second Envoy on the same port must fail instead of taking every other connection.
        "enable_reuse_port": False,
        "connection_balance_config": {"exact_balance": {}},
        "filter_chains": [
            {"filters": [_named("envoy.filters.network.http_connection_manager", _HTTP, **manager)]}
        ],
    }


def _failed_answers() -> dict[str, Any]:
    """Counts, by slot, the attempts that ended in a 5xx or broke, also after their first byte.

    A refused connection is none, and neither is a client that went away.
    """
    broken = {"response_flag_filter": {"flags": ["UC", "UR", "UPE"]}}
    least = {"default_value": 500, "runtime_key": "serinus.least_failure"}
    refused = {"status_code_filter": {"comparison": {"op": "GE", "value": least}}}
    count = {"name": "failed", "tags": [{"name": "slot", "value_format": _of_upstream("slot")}]}
    return {
        "name": "failed",
        "filter": {"or_filter": {"filters": [broken, refused]}},
        "typed_config": {
            "@type": _STATS_LOG,
            "stats_scope": {"prefix": "serinus"},
            "counters": [{"stat": count, "value_fixed": 1}],
        },
    }


def _slots_of(role: Role) -> dict[str, Any]:
    """The cluster of an arm's own slots."""
    return {
        "name": role.arm,
        "type": "EDS",
        "eds_cluster_config": {"eds_config": _file(ENDPOINTS_FILE[role])},
        "connect_timeout": "2s",
        # Turns of one session meet the prefix cache that they filled, unless that engine is
        # overloaded against the others.
        "lb_policy": "RING_HASH",
        "common_lb_config": {
            "consistent_hashing_lb_config": {"hash_balance_factor": 150},
            # Where no slot of an arm is healthy, none of its unhealthy ones is tried.
            "healthy_panic_threshold": {"value": 0},
            # A drain holds at once, not when a second has passed since the change before.
            "update_merge_window": _NEVER,
        },
        "circuit_breakers": _BREAKERS,
        "outlier_detection": _outliers(),
        "health_checks": [
            {
                "timeout": "2s",
                "interval": "0.5s",
                "unhealthy_interval": "0.2s",
                # Also of an engine that has not carried any request yet.
                "no_traffic_interval": "0.5s",
                "no_traffic_healthy_interval": "0.5s",
                "healthy_threshold": 1,
                "unhealthy_threshold": 3,
                "reuse_connection": False,
                "http_health_check": {"path": "/health"},
            }
        ],
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                "@type": _PROTOCOLS,
                "explicit_http_config": {"http_protocol_options": {}},
                # No idle connection to an engine, so none that it closes just as it is used again.
                "common_http_protocol_options": {"max_requests_per_connection": 1},
            }
        },
    }


def _outliers() -> dict[str, Any]:
    """A refused connection marks a slot down at once, for its siblings to take over.

    Until a health check finds it well. The last slot of an arm is never marked so: the other arm
    serves for it only when its health checks fail.
    """
    unused = ("consecutive_5xx", "consecutive_gateway_failure", "success_rate")
    unused_too = ("local_origin_success_rate", "failure_percentage")
    return {
        "split_external_local_origin_errors": True,
        "consecutive_local_origin_failure": 1,
        "enforcing_consecutive_local_origin_failure": 100,
        # An answer of 500 or 503 is the engine's own word, and no reason to go elsewhere.
        **{f"enforcing_{name}": 0 for name in (*unused, *unused_too)},
        "max_ejection_percent": 99,
    }


def _arm_first(role: Role) -> dict[str, Any]:
    """What a request of an arm goes to: the arm's own slots, then the other arm's.

    The ring of hashes knows no order of places on a retry, a cluster of clusters does.
    """
    order = [role.arm, *(other.arm for other in ARMS if other is not role)]
    return {
        "name": first_of(role),
        "connect_timeout": "2s",
        "lb_policy": "CLUSTER_PROVIDED",
        "cluster_type": _named("envoy.clusters.aggregate", _AGGREGATE, clusters=order),
        "circuit_breakers": _BREAKERS,
    }


def _admin() -> dict[str, Any]:
    pipe = {"endpoint": {"address": {"pipe": {"path": ADMIN_SOCKET}}}}
    return {
        "name": "admin",
        "type": "STATIC",
        "load_assignment": {"cluster_name": "admin", "endpoints": [{"lb_endpoints": [pipe]}]},
    }


def _routes(topology: Topology, weight: int) -> dict[str, Any]:
    header = topology.session_header
    nameless = {
        "prefix": "/",
        "headers": [
            {"name": header, "string_match": {"exact": ""}, "treat_missing_header_as_empty": True}
        ],
    }
    named = [{"header": {"header_name": header}}]
    return {
        "name": ROUTES,
        "virtual_hosts": [
            {
                "name": ROUTES,
                "domains": ["*"],
                "routes": [
                    {"match": nameless, "route": _split(topology, weight)},
                    {
                        "match": {"prefix": "/"},
                        "route": {**_split(topology, weight, by_hash=True), "hash_policy": named},
                    },
                ],
                "request_body_buffer_limit": _KEPT_BODY_BYTES,
            }
        ],
        "request_headers_to_remove": ["x-envoy-external-address", "x-forwarded-proto"],
        "response_headers_to_add": [
            {
                "header": {"key": f"x-serinus-{name}", "value": _of_upstream(name)},
                "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
            }
            for name in ("arm", "slot")
        ],
    }


def _split(topology: Topology, weight: int, *, by_hash: bool = False) -> dict[str, Any]:
    # The bucket of a session never changes, and the candidate has the lowest ones: a higher weight
    # only adds sessions to the candidate, a lower one only takes some away.
    shares = {Role.CANARY: weight, Role.PRODUCTION: EVERY_SESSION - weight}
    split: dict[str, Any] = {
        "clusters": [{"name": first_of(role), "weight": share} for role, share in shares.items()]
    }
    if by_hash:
        split["use_hash_policy"] = True
    largest = max(sum(slot.role is role for slot in topology.slots) for role in ARMS)
    # One try more than there are slots: where the others are busy, the ring names a dead one twice.
    own = largest + 1
    return {
        "weighted_clusters": split,
        "timeout": _NEVER,
        "idle_timeout": _SILENCE,
        "retry_policy": {
            # Only before the first byte of an answer: it never tries again after that.
            "retry_on": "connect-failure,refused-stream,reset",
            "num_retries": own,
            "retry_back_off": {"base_interval": "0.01s", "max_interval": "0.1s"},
            "retry_host_predicate": [
                _named("envoy.retry_host_predicates.previous_hosts", _OTHER_HOSTS)
            ],
            "host_selection_retry_max_attempts": 20,
            # The arm's own slots first, then the other arm's.
            "retry_priority": _named(
                "envoy.retry_priorities.previous_priorities", _OTHER_ARM, update_frequency=own
            ),
        },
    }


def _endpoints(role: Role, topology: Topology, state: KeptState) -> dict[str, Any]:
    own = [_endpoint(slot, state) for slot in topology.slots if slot.role is role]
    return {
        "cluster_name": role.arm,
        "endpoints": [{"lb_endpoints": own}],
        # One healthy slot holds an arm; Envoy would send some of it to the other below 72 %.
        "policy": {"overprovisioning_factor": 100 * max(len(own), 2)},
    }


def _endpoint(slot: Slot, state: KeptState) -> dict[str, Any]:
    return {
        "endpoint": {"address": _address(slot.port)},
        "health_status": ADMITTED if slot.name in state.admitted else DRAINED,
        "metadata": {
            "filter_metadata": {_METADATA: {"slot": slot.name, "arm": slot.role.arm}},
        },
    }


def _address(port: int) -> dict[str, Any]:
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}


def _file(name: str) -> dict[str, Any]:
    source = {"path": f"./{name}", "watched_directory": {"path": "."}}
    return {"path_config_source": source, "resource_api_version": "V3"}


def _named(name: str, kind: str, **config: Any) -> dict[str, Any]:
    return {"name": name, "typed_config": {"@type": kind, **config}}


def _of_upstream(name: str) -> str:
    return f"%UPSTREAM_METADATA({_METADATA}:{name})%"


def _response(resource: Mapping[str, Any], kind: str) -> str:
    return _text({"resources": [{"@type": kind, **resource}]})


def _text(value: Mapping[str, Any]) -> str:
    return json.dumps(value, indent=1) + "\n"
