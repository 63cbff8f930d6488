"""What every gateway is told, and what it keeps on disk."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from canary.gateways.kept_state import KeptState, StateDirectory
from canary.gateways.topology import Listening
from domain.errors import BadInput
from domain.fleet import Role, Slot

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
    process=st.text(),
)


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"slots": (*SLOTS, SLOTS[0])}, "Two slots are named 'production-0'"),
        ({"slots": (Slot(name="a b", role=Role.CANARY, port=1),)}, "Slot name 'a b'"),
        ({"slots": (Slot(name="", role=Role.CANARY, port=1),)}, "Slot name ''"),
        ({"metrics_port": 8000}, "Port 8000 is given twice"),
        ({"port": 8101}, "Port 8101 is given twice"),
        ({"port": 0}, "Port 0 is outside 1 to 65535"),
        ({"metrics_port": 65536}, "Port 65536 is outside 1 to 65535"),
        ({"session_header": "x session"}, "'x session' is not a name of an HTTP header"),
        ({"session_header": "x\nbind"}, "is not a name of an HTTP header"),
        ({"session_header": "x),lower"}, "is not a name of an HTTP header"),
    ],
)
def test_a_topology_that_cannot_be_served_is_refused(changed: dict[str, object], sentence: str):
    given_values = {
        "port": 8000,
        "metrics_port": 8001,
        "slots": SLOTS,
        "session_header": "x-session-id",
    }
    with pytest.raises(BadInput, match=sentence):
        Listening(**{**given_values, **changed})


@given(state=STATES)
def test_what_is_kept_is_loaded(tmp_path_factory: pytest.TempPathFactory, state: KeptState):
    kept = StateDirectory(tmp_path_factory.mktemp("gateway"), TOPOLOGY)
    assert kept.load() == KeptState()
    kept.keep(state, {"config": "one"})
    assert kept.load() == state
    assert (kept.written("config"), kept.written("other")) == ("one", "")


def test_a_slot_that_is_no_more_is_forgotten(tmp_path: Path):
    StateDirectory(tmp_path, TOPOLOGY).keep(
        KeptState(weight=7, admitted=frozenset({"production-0", "canary-0"})), {}
    )
    fewer = Listening(port=8000, metrics_port=8001, slots=SLOTS[1:], session_header="x-session-id")
    assert StateDirectory(tmp_path, fewer).load() == KeptState(
        weight=7, admitted=frozenset({"canary-0"})
    )


def test_a_state_that_names_no_process_is_of_none(tmp_path: Path):
    """As every state was that an older version wrote."""
    (tmp_path / "state.json").write_text('{"weight": 7, "admitted": []}')
    assert StateDirectory(tmp_path, TOPOLOGY).load() == KeptState(weight=7)


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"weight": 5}', '{"weight": 101, "admitted": []}']
)
def test_a_state_that_nobody_wrote_is_refused(tmp_path: Path, text: str):
    (tmp_path / "state.json").write_text(text)
    with pytest.raises(BadInput, match="is not a state that the gateway wrote"):
        StateDirectory(tmp_path, TOPOLOGY).load()
