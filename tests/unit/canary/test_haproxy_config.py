"""What HAProxy is told and what its answers mean, without HAProxy."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from canary.gateways.haproxy_config import render_config, render_map, same_topology
from canary.gateways.haproxy_log import read_log
from canary.gateways.haproxy_runtime import servers_in, split_of, weight_in
from canary.gateways.kept_state import KeptState
from canary.gateways.topology import Listening
from domain.errors import BadInput, Temporary
from domain.fleet import Role, Slot, SlotTraffic, Split

SLOTS = (
    Slot(name="production-0", role=Role.PRODUCTION, port=8101),
    Slot(name="production-1", role=Role.PRODUCTION, port=8102),
    Slot(name="canary-0", role=Role.CANARY, port=8201),
)
TOPOLOGY = Listening(port=8000, metrics_port=8001, slots=SLOTS, session_header="x-session-id")
LOGGING = replace(TOPOLOGY, log_requests=True)
STATES = st.builds(
    KeptState,
    weight=st.integers(0, 100),
    admitted=st.frozensets(st.sampled_from([slot.name for slot in SLOTS])),
)

SERVERS_STATE = """\
1
# be_id be_name srv_id srv_name srv_addr srv_op_state srv_admin_state srv_uweight srv_iweight
3 production 1 production-0 127.0.0.1 2 0 100 0
3 production 2 canary-0 127.0.0.1 2 0 0 0
4 candidate 1 canary-0 127.0.0.1 {op_state} {admin_state} {weight} 0
4 candidate 2 production-0 127.0.0.1 2 0 100 0

"""
STAT = """\
# pxname,svname,scur,lbtot,hrsp_5xx,eresp,check_status,
traffic,FRONTEND,3,,,,,
production,production-0,2,40,1,2,L7OK,
production,canary-0,0,0,0,0,,
production,BACKEND,2,40,1,2,,
candidate,canary-0,1,9,0,0,{check_status},
candidate,production-0,1,5,0,1,,

"""
RUNNING = {"op_state": 2, "admin_state": 0, "weight": 100}


def lines(config: str, start: str) -> list[str]:
    return [line.strip() for line in config.splitlines() if line.strip().startswith(start)]


def test_a_slot_stands_in_its_own_backend_and_behind_the_other():
    config = render_config(TOPOLOGY, KeptState())
    production, candidate = config.split("\nbackend candidate\n")
    production = production.split("\nbackend production\n")[1]
    candidate = candidate.split("\nfrontend exporter\n")[0]

    def servers(text: str) -> list[tuple[str, bool]]:
        return [(line.split()[1], line.endswith(" backup")) for line in lines(text, "server ")]

    assert servers(production) == [
        ("production-0", False),
        ("production-1", False),
        ("canary-0", True),
    ]
    assert servers(candidate) == [
        ("canary-0", False),
        ("production-0", True),
        ("production-1", True),
    ]
    assert "track production/production-0" in candidate


def test_only_the_loopback_address_is_bound():
    binds = lines(render_config(TOPOLOGY, KeptState()), "bind ")
    assert binds == ["bind 127.0.0.1:8000", "bind 127.0.0.1:8001"]


@pytest.mark.parametrize(
    "setting",
    [
        "option http-no-delay",
        "option abortonclose",
        "retry-on conn-failure empty-response",
        "option redispatch 1",
        "timeout client 1h",
        "timeout server 1h",
        "noreuseport",
    ],
)
def test_settings_without_which_requests_are_lost(setting: str):
    assert lines(render_config(TOPOLOGY, KeptState()), setting) == [setting]


def test_no_queue_limit():
    """It leaks requests to an arm at weight 0."""
    assert "maxqueue" not in render_config(TOPOLOGY, KeptState())


@given(state=STATES)
def test_admission_is_the_servers_weight_in_both_places(state: KeptState):
    servers = lines(render_config(TOPOLOGY, state), "server ")
    weights = {(line.split()[1], line.split()[4]) for line in servers}
    assert weights == {(slot.name, "100" if slot.name in state.admitted else "0") for slot in SLOTS}
    assert render_map(state) == f"weight {state.weight}\n"


@given(one=STATES, other=STATES)
def test_the_same_topology_is_told_whatever_is_admitted(one: KeptState, other: KeptState):
    config = render_config(TOPOLOGY, one)
    assert same_topology(config, render_config(TOPOLOGY, other))
    fewer = Listening(port=8000, metrics_port=8001, slots=SLOTS[1:], session_header="x-session-id")
    assert not same_topology(config, render_config(fewer, other))


def test_requests_are_logged_only_where_that_is_asked_for():
    silent, logging = render_config(TOPOLOGY, KeptState()), render_config(LOGGING, KeptState())
    assert [lines(silent, start) for start in ("log", "ring", "set-var")] == [[], [], []]
    assert [len(lines(logging, start)) for start in ("log ", "ring", "set-var")] == [1, 1, 1]
    assert not same_topology(silent, logging)


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("x", "Line 2 of the gateway's log is none of its own"),
        ('{"at_ms": 1}', "KeyError"),
        ("[]", "TypeError"),
    ],
)
def test_a_line_that_the_gateway_did_not_write_is_refused(line: str, what: str):
    with pytest.raises(BadInput, match=what):
        read_log(["", line])


def test_what_a_request_never_reached_is_none():
    """As HAProxy writes it for a request that its client gave up before an engine was found."""
    row = (
        '{"at_ms":1700000000123,"arm":"production","slot":"<NOSRV>","status":-1,"header_ms":-1,'
        '"total_ms":7,"bytes_in":9,"bytes_out":0,"ended":"CR","session":"-"}'
    )
    (found,) = read_log([row])
    assert (found.slot, found.header_ms, found.session) == (None, None, None)
    assert (found.at_s, found.ended) == (1700000000.123, "CR")


def test_the_weight_is_read_from_the_map():
    assert weight_in("0x2ea146e0 weight 25\n\n") == 25


@pytest.mark.parametrize("shown", ["", "0x1 other 3\n", "0x1 weight many\n", "Unknown map.\n"])
def test_a_map_without_the_weight_is_no_weight_of_zero(shown: str):
    with pytest.raises(Temporary, match="does not tell its weight"):
        weight_in(shown)


def test_the_split_counts_a_slot_in_both_places_it_serves_in():
    servers = servers_in(SERVERS_STATE.format(**RUNNING), STAT.format(check_status="* L7OK"))
    two = Listening(
        port=8000, metrics_port=8001, slots=(SLOTS[0], SLOTS[2]), session_header="x-session-id"
    )
    assert split_of(two, 25, servers) == Split(
        weight=25,
        slots=(
            SlotTraffic(
                slot="production-0",
                role=Role.PRODUCTION,
                admitted=True,
                up=True,
                in_flight=3,
                requests=45,
                errors=4,
            ),
            SlotTraffic(
                slot="canary-0",
                role=Role.CANARY,
                admitted=True,
                up=True,
                in_flight=1,
                requests=9,
                errors=0,
            ),
        ),
    )


@pytest.mark.parametrize(
    ("state", "check_status", "admitted", "up"),
    [
        ({"weight": 0}, "L7OK", False, True),
        ({"admin_state": 1}, "L7OK", False, True),
        ({"admin_state": 8}, "L7OK", False, True),
        ({"op_state": 0}, "L4CON", True, False),
        ({}, "INI", True, False),
        ({}, "* INI", True, False),
        ({}, "* L7OK", True, True),
    ],
)
def test_admitted_and_up(state: dict[str, int], check_status: str, admitted: bool, up: bool):
    """HAProxy holds an engine for healthy until its first check; Serinus does not."""
    shown = SERVERS_STATE.format(**{**RUNNING, **state})
    lane = servers_in(shown, STAT.format(check_status=check_status))["candidate/canary-0"]
    assert (lane.admitted, lane.up) == (admitted, up)


@pytest.mark.parametrize(("state", "stat"), [("", ""), ("1\n", STAT), (SERVERS_STATE, "")])
def test_a_slot_that_does_not_run_is_not_taken_for_an_idle_one(state: str, stat: str):
    with pytest.raises(Temporary, match="does not know slot production-0"):
        split_of(TOPOLOGY, 0, servers_in(state, stat))
