"""Every noun survives being stored, number for number."""

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.store import decode, encode
from domain.approval import ApprovalRequest, Command
from domain.engine import Change, EngineConfig
from domain.errors import InvariantViolation
from domain.events import Event
from domain.rollout import Rollout
from domain.study import Measurement, Study, Trial
from domain.traffic import TrafficShape
from domain.verdict import Verdict
from tests.fakes import records

values = (
    st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
)
st.register_type_strategy(
    EngineConfig, st.dictionaries(st.text(), values, max_size=4).map(EngineConfig.of)
)
# A value of a knob is finite, and so is a changed one.
st.register_type_strategy(
    Change, st.builds(Change, st.text(), st.none() | values, st.none() | values)
)
KINDS = (
    ApprovalRequest,
    Command,
    EngineConfig,
    Event,
    Measurement,
    Rollout,
    Study,
    TrafficShape,
    Trial,
    Verdict,
)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@given(data=st.data())
@settings(max_examples=25)
def test_a_noun_survives_its_document(kind: type, data: st.DataObject) -> None:
    noun = data.draw(st.from_type(kind))
    text = json.dumps(encode(noun), allow_nan=False)
    # Text is compared, since NaN equals nothing and 1 equals 1.0 and True.
    assert repr(decode(kind, json.loads(text))) == repr(noun)


def test_infinite_and_missing_numbers_survive() -> None:
    shape = records.shape(rate_rps=math.nan, running=-math.inf, covered=math.nan)
    assert repr(decode(TrafficShape, encode(shape))) == repr(shape)
    assert decode(TrafficShape, encode(shape)).isl.bounds[-1] == math.inf


def test_a_shape_that_was_stored_before_burstiness_had_scales_is_read() -> None:
    older = encode(records.shape())
    assert isinstance(older, dict)
    for name in ("burstiness", "covered", "finish_reasons", "correlation"):
        del older[name]
    assert decode(TrafficShape, older | {"dispersion": None}) == records.shape()


def test_a_measurement_that_was_stored_before_waiting_was_counted_is_read() -> None:
    older = encode(records.measurement())
    assert isinstance(older, dict) and isinstance(older["blocks"], list)
    for block in older["blocks"]:
        assert isinstance(block, dict)
        del block["waited_s"]
    found = decode(Measurement, older)
    assert found == records.measurement()
    assert (found.waited_s, found.stream_rps) == (None, None)


def test_a_digest_survives() -> None:
    config = EngineConfig.of({"a": True, "b": 1, "c": 1.0, "d": "1"})
    assert decode(EngineConfig, encode(config)).digest == config.digest


def test_a_document_of_another_noun_is_refused_by_name() -> None:
    with pytest.raises(InvariantViolation, match="A stored Verdict cannot be read: outcome"):
        decode(Verdict, encode(records.command()))
