"""What is pasted into a user's HAProxy, and what is read of the one that runs, without HAProxy."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from canary.gateways.haproxy_config import render_config, servers_of
from canary.gateways.haproxy_found import as_word, forgotten, map_in, process_in
from canary.gateways.haproxy_pasted import Part, behind_users, render_part, render_pasted
from canary.gateways.haproxy_runtime import ServerReading
from canary.gateways.kept_state import KeptState
from canary.gateways.topology import Listening
from domain.errors import BadInput
from domain.fleet import Role, Slot

SLOTS = (
    Slot(name="production-0", role=Role.PRODUCTION, port=8101),
    Slot(name="production-1", role=Role.PRODUCTION, port=8102),
    Slot(name="canary-0", role=Role.CANARY, port=8201),
)
THEIRS = behind_users(SLOTS, "x-session-id")
OURS = Listening(port=8000, metrics_port=8001, slots=SLOTS)
MAP = "0 ({}) pattern loaded from file '{}' used by map at file 'haproxy.cfg' line 13. curr_ver=0\n"
STATES = st.builds(
    KeptState,
    weight=st.integers(0, 100),
    admitted=st.frozensets(st.sampled_from([slot.name for slot in SLOTS])),
)


def lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()[:1] not in ("", "#")]


def test_it_starts_with_production_admitted_and_the_candidate_at_nothing():
    """A reload falls back to this, so it must be safe by itself."""
    assert render_part(Part.MAP, THEIRS) == "weight 0\n"
    servers = [line for line in lines(render_part(Part.BACKENDS, THEIRS)) if "server " in line[:7]]
    weights = {line.split()[1]: line.split()[4] for line in servers}
    assert len(servers) == 6
    assert weights == {"production-0": "100", "production-1": "100", "canary-0": "0"}


def test_the_arms_are_as_in_serinus_own_but_for_names_and_what_is_admitted_at_first():
    at_first = KeptState(admitted=frozenset({"production-0", "production-1"}))
    own = lines(
        render_config(OURS, at_first).replace("weight.map", "/etc/haproxy/serinus-weight.map")
    )
    theirs = [
        line for part in (Part.FRONTEND, Part.BACKENDS) for line in lines(render_part(part, THEIRS))
    ]
    unnamed = [line.replace("serinus_", "").removesuffix(" from serinus") for line in theirs]
    assert set(unnamed) - set(own) == {"defaults serinus"}


def test_every_name_that_could_clash_begins_with_serinus():
    for line in lines(render_part(Part.FRONTEND, THEIRS) + render_part(Part.BACKENDS, THEIRS)):
        match line.split():
            case ["backend" | "use_backend" | "default_backend", name, *_]:
                assert name.startswith("serinus_")
            case ["defaults", name]:
                assert name == "serinus"
            case ["http-request", variable, *_]:
                assert variable.startswith("set-var(txn.serinus_")


def test_all_that_is_printed_says_where_it_belongs():
    told = render_pasted(THEIRS, "/run/h.sock")
    for part in Part:
        assert render_part(part, THEIRS) in told
    assert "stats socket /run/h.sock mode 660 level admin" in told
    numbered = [line[:4] for line in told.splitlines() if line[:2] == "# " and line[2].isdigit()]
    assert numbered == ["# 1.", "# 2.", "# 3.", "# 4."]


def test_the_map_is_found_by_its_name():
    others = "# id (file) description\n-1 () acl 'path' file 'h.cfg' line 3.\n" + MAP.format(
        "a", "a"
    )
    assert map_in(others + MAP.format(path := "/a b/serinus-weight.map", path)) == path
    with pytest.raises(BadInput, match=r"reads no map whose .* serinus-weight\.map; `serinus gate"):
        map_in(others)
    with pytest.raises(
        BadInput, match=r"2 maps .*\(/a/serinus-weight\.map, /b/serinus-weight\.map"
    ):
        map_in("".join(MAP.format(f"/{x}/serinus-weight.map", x) for x in "ab"))


def test_a_path_is_one_word_of_a_command():
    assert as_word(r"/a b/c;d\e") == r"/a\ b/c\;d\\e"


def test_a_process_is_told_by_its_number_and_its_start():
    """In a container the number is the same each time."""
    one, other = (process_in(f"Name: HAProxy\nPid: 7\nStart_time_sec: {at}\n") for at in (1, 2))
    assert one != other
    with pytest.raises(BadInput, match=r"as 2\.8 does"):
        process_in("Name: HAProxy\nPid: 7\nUptime_sec: 3\n")


def running(state: KeptState, touched: frozenset[str] = frozenset()) -> dict[str, ServerReading]:
    return {
        str(server): ServerReading(
            admitted=server.slot.name in state.admitted,
            touched=str(server) in touched,
            up=True,
            in_flight=0,
            requests=0,
            errors=0,
        )
        for server in servers_of(THEIRS)
    }


@given(kept=STATES, begins=STATES)
def test_all_that_nobody_touched_since_is_set_again(kept: KeptState, begins: KeptState):
    lost = forgotten(THEIRS, kept, 0, running(begins))
    admitted = begins.admitted | {server.slot.name for server in lost.admit}
    assert admitted - {server.slot.name for server in lost.drain} == kept.admitted
    assert (lost.weight or 0) == kept.weight
    again = forgotten(THEIRS, kept, kept.weight, running(kept))
    assert again == ([], None, [])


@given(
    kept=STATES,
    begins=STATES,
    by_hand=st.integers(1, 100),
    touched=st.frozensets(st.sampled_from([str(server) for server in servers_of(THEIRS)])),
)
def test_what_was_set_by_hand_since_is_left(
    kept: KeptState, begins: KeptState, by_hand: int, touched: frozenset[str]
):
    lost = forgotten(THEIRS, kept, by_hand, running(begins, touched))
    assert lost.weight is None
    assert touched.isdisjoint(map(str, (*lost.admit, *lost.drain)))
