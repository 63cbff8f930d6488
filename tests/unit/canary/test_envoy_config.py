"""What Envoy is told and what its answers mean, without Envoy."""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from canary.gateways.envoy_admin import (
    EndpointReading,
    endpoints_in,
    failures_in,
    split_of,
    weight_in,
)
from canary.gateways.envoy_config import (
    ADMITTED,
    CONFIG_FILE,
    DRAINED,
    ENDPOINTS_FILE,
    ROUTES_FILE,
    render_changes,
    render_config,
    render_files,
)
from canary.gateways.kept_state import KeptState
from canary.gateways.topology import Listening
from domain.errors import Temporary
from domain.fleet import Role, Slot, SlotTraffic, Split

SLOTS = (
    Slot(name="production-0", role=Role.PRODUCTION, port=8101),
    Slot(name="production-1", role=Role.PRODUCTION, port=8102),
    Slot(name="canary-0", role=Role.CANARY, port=8201),
)
TOPOLOGY = Listening(port=8000, metrics_port=8001, slots=SLOTS, session_header="x-session-id")
STATES = st.builds(
    KeptState,
    weight=st.integers(0, 100),
    admitted=st.frozensets(st.sampled_from([slot.name for slot in SLOTS])),
)


def inside(value: object, key: str) -> Iterator[Any]:
    """Every value of ``key``, however deep."""
    if isinstance(value, dict):
        if key in value:
            yield value[key]
        for part in value.values():
            yield from inside(part, key)
    elif isinstance(value, list):
        for part in value:
            yield from inside(part, key)


def bootstrap() -> dict[str, Any]:
    return json.loads(render_config(TOPOLOGY))


def changes(state: KeptState) -> dict[str, Any]:
    files = render_changes(TOPOLOGY, state)
    return {name: json.loads(text)["resources"][0] for name, text in files.items()}


def cluster(name: str) -> dict[str, Any]:
    clusters = bootstrap()["static_resources"]["clusters"]
    return next(cluster for cluster in clusters if cluster["name"] == name)


def splits(state: KeptState) -> list[dict[str, Any]]:
    return list(inside(changes(state)[ROUTES_FILE], "route"))


def test_an_arm_begins_with_its_own_slots_and_falls_back_to_the_others():
    for first, order in (
        ("production-first", ["production", "candidate"]),
        ("candidate-first", ["candidate", "production"]),
    ):
        assert cluster(first)["cluster_type"]["typed_config"]["clusters"] == order
    for role in (Role.PRODUCTION, Role.CANARY):
        endpoints = changes(KeptState())[ENDPOINTS_FILE[role]]
        assert endpoints["cluster_name"] == role.arm
        assert list(inside(endpoints, "port_value")) == [
            slot.port for slot in SLOTS if slot.role is role
        ]


def test_one_healthy_slot_holds_its_arm():
    """Envoy's own factor of 140 would send 30 % of an arm to the other where half its slots are
    down."""
    for role, own in ((Role.PRODUCTION, 2), (Role.CANARY, 1)):
        policy = changes(KeptState())[ENDPOINTS_FILE[role]]["policy"]
        assert policy["overprovisioning_factor"] >= 100 * own
    for arm in ("production", "candidate"):
        assert cluster(arm)["common_lb_config"]["healthy_panic_threshold"] == {"value": 0}
        # One refused connection never empties an arm.
        assert cluster(arm)["outlier_detection"]["max_ejection_percent"] < 100


def test_only_the_loopback_address_and_a_socket_are_bound():
    listeners = bootstrap()["static_resources"]["listeners"]
    bound = [listener["address"]["socket_address"] for listener in listeners]
    assert bound == [
        {"address": "127.0.0.1", "port_value": 8000},
        {"address": "127.0.0.1", "port_value": 8001},
    ]
    assert bootstrap()["admin"] == {"address": {"pipe": {"path": "admin.sock", "mode": 0o600}}}


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("enable_reuse_port", False),
        ("stream_idle_timeout", "3600s"),
        ("use_remote_address", True),
        ("update_merge_window", "0s"),
        ("no_traffic_interval", "0.5s"),
        ("max_requests_per_connection", 1),
        ("max_retries", 1_000_000),
        ("hash_balance_factor", 150),
        ("enforcing_consecutive_5xx", 0),
    ],
)
def test_settings_without_which_requests_are_lost(setting: str, value: object):
    found = list(inside(bootstrap(), setting))
    assert found and all(each == value for each in found)


def test_a_stream_has_no_length_limit_and_is_not_tried_again_once_it_began():
    for route in splits(KeptState()):
        assert (route["timeout"], route["idle_timeout"]) == ("0s", "3600s")
        assert route["retry_policy"]["retry_on"] == "connect-failure,refused-stream,reset"


@given(state=STATES)
def test_both_routes_split_by_the_weight_with_the_candidate_first(state: KeptState):
    shares = [("candidate-first", state.weight), ("production-first", 100 - state.weight)]
    nameless, named = splits(state)
    for route in (nameless, named):
        clusters = route["weighted_clusters"]["clusters"]
        assert [(each["name"], each["weight"]) for each in clusters] == shares
    assert "hash_policy" not in nameless
    assert "use_hash_policy" not in nameless["weighted_clusters"]
    assert named["hash_policy"] == [{"header": {"header_name": "x-session-id"}}]
    assert named["weighted_clusters"]["use_hash_policy"] is True


@given(state=STATES)
def test_admission_is_the_endpoints_health_status(state: KeptState):
    found = {
        slot["metadata"]["filter_metadata"]["serinus"]["slot"]: slot["health_status"]
        for role in (Role.PRODUCTION, Role.CANARY)
        for slot in changes(state)[ENDPOINTS_FILE[role]]["endpoints"][0]["lb_endpoints"]
    }
    assert found == {s.name: ADMITTED if s.name in state.admitted else DRAINED for s in SLOTS}


@given(state=STATES)
def test_a_change_touches_no_file_that_only_a_start_reads(state: KeptState):
    assert CONFIG_FILE not in render_changes(TOPOLOGY, state)
    assert set(render_files(TOPOLOGY, state)) == {CONFIG_FILE, *render_changes(TOPOLOGY, state)}


@pytest.mark.parametrize(
    "other",
    [
        replace(TOPOLOGY, port=8002),
        replace(TOPOLOGY, metrics_port=8002),
        replace(TOPOLOGY, slots=SLOTS[1:]),
        replace(TOPOLOGY, slots=(*SLOTS[:2], replace(SLOTS[2], port=8202))),
        replace(TOPOLOGY, slots=(*SLOTS[:2], replace(SLOTS[2], name="canary-1"))),
        replace(TOPOLOGY, session_header="x-agent"),
    ],
)
def test_the_bootstrap_tells_one_topology_from_every_other(other: Listening):
    assert render_config(other) != render_config(TOPOLOGY)


def dump(*splits: dict[str, int]) -> dict[str, Any]:
    routes = [
        {
            "route": {
                "weighted_clusters": {
                    "clusters": [{"name": n, "weight": w} for n, w in split.items()]
                }
            }
        }
        for split in splits
    ]
    return {"configs": [{"route_config": {"virtual_hosts": [{"routes": routes}]}}]}


@given(state=STATES)
def test_the_weight_that_is_rendered_is_read(state: KeptState):
    routes = changes(state)[ROUTES_FILE]
    assert weight_in({"configs": [{"route_config": routes}]}) == state.weight


def test_a_weight_out_of_another_sum_is_read_in_percent():
    assert weight_in(dump({"candidate-first": 1, "production-first": 3})) == 25


@pytest.mark.parametrize(
    "found",
    [
        {},
        {"configs": []},
        dump({"production-first": 100}),
        dump({"candidate-first": 0, "production-first": 0}),
        dump(
            {"candidate-first": 1, "production-first": 99},
            {"candidate-first": 2, "production-first": 98},
        ),
        {"configs": [{"route_config": {"virtual_hosts": [{"routes": [{"redirect": {}}]}]}}]},
    ],
)
def test_routes_without_one_weight_are_no_weight_of_zero(found: dict[str, Any]):
    with pytest.raises(Temporary, match="does not tell its weight"):
        weight_in(found)


def host(port: int, **health: object) -> dict[str, Any]:
    stats = {"rq_active": "2", "rq_total": "40", "cx_total": "41"}
    return {
        "address": {"socket_address": {"address": "127.0.0.1", "port_value": port}},
        "stats": [{"name": name, "value": value} for name, value in stats.items()],
        "health_status": health,
    }


@pytest.mark.parametrize(
    ("health", "admitted", "up"),
    [
        ({"eds_health_status": "HEALTHY"}, True, True),
        ({}, True, True),
        ({"eds_health_status": "DRAINING"}, False, True),
        ({"eds_health_status": "UNHEALTHY"}, False, True),
        ({"failed_active_health_check": True}, True, False),
        ({"failed_active_health_check": False}, True, True),
        ({"pending_active_hc": True}, True, False),
        ({"failed_outlier_check": True}, True, False),
        ({"eds_health_status": "DRAINING", "failed_active_health_check": True}, False, False),
    ],
)
def test_admitted_and_up(health: dict[str, object], admitted: bool, up: bool):
    shown = {"cluster_statuses": [{"name": "candidate", "host_statuses": [host(8201, **health)]}]}
    assert endpoints_in(shown) == {
        ("candidate", 8201): EndpointReading(admitted=admitted, up=up, in_flight=2, requests=40)
    }


def test_a_cluster_without_hosts_and_a_host_without_port_are_passed_over():
    pipe = {"address": {"pipe": {"path": "admin.sock"}}}
    statuses = [{"name": "production-first"}, {"name": "admin", "host_statuses": [pipe]}]
    assert endpoints_in({"cluster_statuses": statuses}) == {}


def test_failures_are_counted_by_slot():
    counters = [
        {"name": "serinus.failed.slot.canary-0", "value": 3},
        {"name": "serinus.failed.slot.a.b_c", "value": "4"},
        {"histograms": {}},
    ]
    assert failures_in({"stats": counters}) == {"canary-0": 3, "a.b_c": 4}


def test_the_split_joins_the_answers():
    endpoints = {
        (slot.role.arm, slot.port): EndpointReading(True, True, number, 10 * number)
        for number, slot in enumerate(SLOTS)
    }
    split = split_of(TOPOLOGY, 25, endpoints, {"canary-0": 5})
    assert split == Split(
        weight=25,
        slots=tuple(
            SlotTraffic(
                slot=slot.name,
                role=slot.role,
                admitted=True,
                up=True,
                in_flight=number,
                requests=10 * number,
                errors=5 if slot.name == "canary-0" else 0,
            )
            for number, slot in enumerate(SLOTS)
        ),
    )


def test_a_slot_that_does_not_run_is_not_taken_for_an_idle_one():
    with pytest.raises(Temporary, match="does not know slot production-0"):
        split_of(TOPOLOGY, 0, {}, {})
