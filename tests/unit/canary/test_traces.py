"""Traces come in as they were written, go out so that they come in again, and sum up to a shape."""

import json
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from canary.traces import (
    format_of,
    ideal_reuse,
    read_trace,
    shape_of,
    with_sessions,
    write_trace,
)
from domain.errors import BadInput
from domain.trace import Trace, TracedRequest

AZURE = [
    "TIMESTAMP,ContextTokens,GeneratedTokens\r\n",
    "2023-11-16 18:15:50.9951690,396,109\r\n",
    "2023-11-16 18:15:46.6805900,374,44\r\n",
]


def row(timestamp: float, isl: int, osl: int, ids: Iterable[int], **more: object) -> str:
    fields = {"timestamp": timestamp, "input_length": isl, "output_length": osl}
    return json.dumps({**fields, "hash_ids": list(ids), **more}) + "\n"


def logged(at_ms: int, session: str = "-", slot: str = "production-0", header_ms: int = 3) -> str:
    fields = {"at_ms": at_ms, "arm": "production", "slot": slot, "status": 200}
    more = {"header_ms": header_ms, "total_ms": 90, "bytes_in": 400, "bytes_out": 9000}
    return json.dumps({**fields, **more, "ended": "--", "session": session}) + "\n"


MOONCAKE = [row(0, 700, 5, (0, 1)), row(3000, 1500, 7, (0, 2, 3)), row(3000, 512, 1, (0,))]
TIMED = [
    row(0.5, 40, 5, (9, 8, 7), chat_id=1, parent_chat_id=-1),
    row(0.75, 20, 5, (4, 5), chat_id=2, parent_chat_id=-1),
    row(9.125, 64, 5, (9, 8, 6, 5), chat_id=3, parent_chat_id=1),
]
GATEWAY = [
    logged(1_700_000_002_500, "-77"),
    logged(1_700_000_000_250, "-77"),
    logged(1_700_000_001_000),
]


def traced(*requests: tuple[float, int, int, tuple[int, ...]], block_tokens: int = 512) -> Trace:
    return Trace(
        requests=tuple(
            TracedRequest(offset_s=at, isl=isl, osl=osl, blocks=blocks)
            for at, isl, osl, blocks in requests
        ),
        block_tokens=block_tokens,
    )


def test_mooncake_is_milliseconds_and_blocks_of_512() -> None:
    assert read_trace(MOONCAKE) == traced(
        (0.0, 700, 5, (0, 1)), (3.0, 1500, 7, (0, 2, 3)), (3.0, 512, 1, (0,))
    )


def test_a_timed_trace_is_seconds_and_blocks_of_16_and_names_its_chats() -> None:
    trace = read_trace(TIMED)
    assert trace.block_tokens == 16
    assert [(r.offset_s, r.session, r.turn) for r in trace.requests] == [
        (0.5, "1", 0),
        (0.75, "2", 0),
        (9.125, "1", 1),
    ]


def test_azure_is_dates_in_any_order_exact_to_their_last_digit() -> None:
    trace = read_trace(AZURE)
    assert [(r.offset_s, r.isl, r.osl) for r in trace.requests] == [
        (0.0, 374, 44),
        (4.314579, 396, 109),
    ]
    assert trace.start_s == pytest.approx(1700158546.68059)


def test_the_gateways_log_tells_times_and_sessions_and_no_lengths() -> None:
    trace = read_trace(GATEWAY)
    assert [(r.offset_s, r.session, r.turn, r.isl) for r in trace.requests] == [
        (0.0, "-77", 0, None),
        (0.75, None, 0, None),
        (2.25, "-77", 1, None),
    ]


@pytest.mark.parametrize(
    ("lines", "name"),
    [(MOONCAKE, "mooncake"), (TIMED, "timed"), (AZURE, "azure"), (GATEWAY, "gateway")],
)
def test_the_format_is_told_from_what_the_lines_hold(lines: list[str], name: str) -> None:
    assert format_of(["\n", *lines]).value == name


@pytest.mark.parametrize(
    ("lines", "named", "sentence"),
    [
        (MOONCAKE, "sharegpt", "no trace format 'sharegpt'; known are mooncake, timed, azure"),
        (["hello\n"], None, "cannot be told from its lines; name it: mooncake"),
        ([row(0, 16, 1, (3,))], None, "cannot be told"),
        ([], "mooncake", "holds no request"),
        ([*MOONCAKE, "{"], None, "Line 4 of the trace: it is no JSON"),
        (["[]"], "timed", "Line 1 of the trace: it must hold a JSON object"),
        (["", row(-1, 5, 5, ())], "mooncake", "Line 2 .*timestamp must be a number from 0 up"),
        ([row(float("nan"), 5, 5, ())], "mooncake", "timestamp must be a number"),
        ([row(0, 0, 5, ())], "mooncake", "input_length must be a whole number from 1 up; got 0"),
        ([row(0, 5, True, ())], "mooncake", "output_length must be a whole number"),
        ([row(0, 600, 5, (1, 2, 3))], "mooncake", "3 hash_ids are more than 600 tokens fill"),
        ([row(0, 5, 5, ("a",))], "mooncake", "hash_ids must be a list of whole numbers"),
        ([AZURE[0], "2023-11-16 18:15:46,5"], None, "Line 2 .*3 columns; got 2"),
        ([AZURE[0], "16.11.2023,5,5"], None, "TIMESTAMP must be like 2023"),
        ([AZURE[0], "2023-11-46 18:15:46,5,5"], None, "is no date"),
        ([AZURE[0], "2023-11-16 18:15:46,x,5"], None, "ContextTokens must be .* got 'x'"),
        (AZURE[1:], "azure", "begins with the columns TIMESTAMP"),
        (['{"at_ms": 5}'], None, "Line 1 of the gateway's log is none of its own"),
    ],
)
def test_what_cannot_be_read_is_named_by_its_line(
    lines: list[str], named: str | None, sentence: str
) -> None:
    with pytest.raises(BadInput, match=sentence):
        read_trace(lines, named)


lengths = st.integers(1, 200_000)
offsets = st.one_of(
    st.integers(0, 10**9).map(lambda ms: ms / 1000),
    st.floats(0, 10**6, allow_nan=False, allow_subnormal=False),
)


@st.composite
def traces(draw: st.DrawFn, block_tokens: int) -> Trace:
    requests = []
    for at in sorted(draw(st.lists(offsets, min_size=1, max_size=20))):
        ids = draw(st.lists(st.integers(0, 50), min_size=1, max_size=4))
        isl = draw(st.integers((len(ids) - 1) * block_tokens + 1, len(ids) * block_tokens))
        requests.append((at, isl, draw(lengths), tuple(ids)))
    return traced(*requests, block_tokens=block_tokens)


@settings(deadline=None)
@given(trace=traces(512))
def test_mooncake_written_out_reads_in_the_same(trace: Trace) -> None:
    assert read_trace(list(write_trace(trace, "mooncake")), "mooncake") == trace


@settings(deadline=None)
@given(trace=traces(16))
def test_a_timed_trace_written_out_reads_in_the_same(trace: Trace) -> None:
    assert read_trace(list(write_trace(trace, "timed")), "timed") == trace


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 10**11), lengths, lengths), min_size=1, max_size=20))
def test_azure_written_out_reads_in_the_same(rows: list[tuple[int, int, int]]) -> None:
    rows.sort(key=lambda row: row[0])
    requests = tuple(
        TracedRequest(offset_s=(ticks - rows[0][0]) / 10**7, isl=isl, osl=osl)
        for ticks, isl, osl in rows
    )
    trace = Trace(requests=requests, start_s=1_700_000_000.25)
    assert read_trace(list(write_trace(trace, "azure"))) == trace


@pytest.mark.parametrize(
    ("trace", "name", "sentence"),
    [
        (read_trace(GATEWAY), "mooncake", "without its lengths cannot be written"),
        (read_trace(GATEWAY), "azure", "without its lengths cannot be written"),
        (read_trace(TIMED), "mooncake", "blocks of 16 tokens cannot be written"),
        (read_trace(AZURE), "gateway", "cannot be written as 'gateway'"),
    ],
)
def test_what_a_format_cannot_hold_is_not_written(trace: Trace, name: str, sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        list(write_trace(trace, name))


def test_reuse_is_of_leading_blocks_and_never_of_the_whole_prompt() -> None:
    trace = traced(
        (0.0, 1024, 1, (0, 1)),
        (1.0, 1024, 1, (0, 1)),
        (2.0, 1500, 1, (0, 2, 1)),
        (3.0, 600, 1, (9, 1)),
    )
    assert ideal_reuse(trace) == (1023 + 512) / (1024 + 1024 + 1500 + 600)
    assert ideal_reuse(trace, from_s=2.0) == 512 / 2100
    assert ideal_reuse(read_trace(AZURE)) is None


def test_sessions_are_who_continued_whose_prompt() -> None:
    trace = with_sessions(
        traced(
            (0.0, 1100, 1, (0, 1, 2)),  # a
            (1.0, 1100, 1, (0, 3, 4)),  # b: shares the system prompt 0 with a
            (2.0, 1600, 1, (0, 1, 5, 6)),  # a again, its last part of a block grown to a whole one
            (3.0, 2100, 1, (0, 3, 7, 8, 9)),  # b again
            (4.0, 2200, 1, (0, 1, 5, 10, 11)),  # a again
            (5.0, 600, 1, (0, 12)),  # c: nothing but the system prompt
            (6.0, 900, 1, (0, 13)),  # d: c's whole blocks are the system prompt, so not c
            (7.0, 1100, 1, (0, 1, 14)),  # e: from a's first prompt, which a has left behind
        )
    )
    assert [(r.session, r.turn) for r in trace.requests] == [
        ("0", 0),
        ("1", 0),
        ("0", 1),
        ("1", 1),
        ("0", 2),
        ("5", 0),
        ("6", 0),
        ("7", 0),
    ]


def test_a_window_begins_at_its_own_zero() -> None:
    part = read_trace(AZURE).window(4.0, 10.0)
    assert [r.isl for r in part.requests] == [396]
    assert part.requests[0].offset_s == pytest.approx(0.314579)
    assert part.start_s == pytest.approx(1700158550.68059)


def test_the_shape_of_a_stretch_has_its_rate_lengths_and_reuse() -> None:
    trace = traced(*((n * 0.5, 600 + n, 100 + n, (0, n + 1)) for n in range(400)))
    shape = shape_of(trace, 50.0, 100.0, model="m", running=3.0)
    assert (shape.requests, shape.rate_rps, shape.concurrency) == (200.0, 2.0, 3.0)
    assert shape.isl.mean == pytest.approx(600 + 199.5)
    assert shape.osl.mean == pytest.approx(100 + 199.5)
    assert [(one.scale_s, one.dispersion) for one in shape.burstiness][-1] == (20.0, 0.0)
    assert shape.prefix_hit_rate == pytest.approx(512 / (600 + 199.5))
    assert shape.correlation == pytest.approx(1.0)


def test_a_bursty_trace_has_a_higher_dispersion() -> None:
    bursts = traced(*((30.0 * (n // 60), 600, 5, ()) for n in range(600)))
    shape = shape_of(bursts, 0.0, 300.0)
    assert shape.burstiest is not None and shape.burstiest.dispersion > 10
    assert shape.correlation is None


@pytest.mark.parametrize(
    ("trace", "start_s", "sentence"),
    [(read_trace(AZURE), 60.0, "no request from 60 s"), (read_trace(GATEWAY), 0.0, "no lengths")],
)
def test_no_shape_is_made_of_nothing(trace: Trace, start_s: float, sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        shape_of(trace, start_s)
