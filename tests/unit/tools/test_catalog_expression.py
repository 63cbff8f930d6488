"""Which PromQL gets through, and that nothing else can be smuggled past by it."""

import re

import promql_parser
import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.errors import BadInput
from domain.figure import Unit
from tools.catalog.expression import (
    AGGREGATIONS,
    DEEPEST,
    FUNCTIONS,
    LONGEST,
    METRICS,
    allowed,
)
from tools.catalog.series import SHOWN_LABELS

WITHIN = {"cluster": 'eu"} or vault{a="b'}
"""A label that a person set, with all that could end it."""
RUNNING = "vllm:num_requests_running"


def selectors(text: str) -> list[promql_parser.VectorSelector]:
    """Every selector in what was written, as a server would read it."""
    found: list[promql_parser.VectorSelector] = []

    def note(node: promql_parser.Expr) -> None:
        if isinstance(node, promql_parser.VectorSelector):
            found.append(node)

    promql_parser.walk(promql_parser.parse(text), note)
    return found


@pytest.mark.parametrize(
    ("given", "written", "unit"),
    [
        (RUNNING, RUNNING, Unit.REQUESTS),
        (f"sum by (arm) ({RUNNING})", f"sum by (arm) ({RUNNING})", Unit.REQUESTS),
        ("rate(vllm:prompt_tokens_total[5m])", "rate(vllm:prompt_tokens_total[300s])", None),
        (
            'histogram_quantile(0.95, sum by (le) (rate(vllm:x_seconds_bucket{arm!="a"}[1m])))',
            'histogram_quantile(0.95, sum by (le) (rate(vllm:x_seconds_bucket{arm!="a"}[60s])))',
            Unit.SECONDS,
        ),
        ("topk(2, up) > bool 0", "(topk (2.0, up)) > bool (0.0)", Unit.NONE),
        ("-max(vllm:kv_cache_usage_perc)", "-(max (vllm:kv_cache_usage_perc))", Unit.NONE),
        ("avg(vllm:kv_cache_usage_perc)", "avg (vllm:kv_cache_usage_perc)", Unit.SHARE),
        ("up / ignoring(job) up", "(up) / ignoring (job) (up)", Unit.NONE),
    ],
)
def test_what_is_allowed_is_written_anew(given: str, written: str, unit: Unit | None):
    found = allowed(given, {})
    assert found.text == written
    assert found.unit is (Unit.TOKENS_A_SECOND if unit is None else unit)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1 + 1",
        "rate(",
        "secrets",
        '{__name__="up"}',
        '{__name__=~".+"}',
        '{"up"}',
        "up[5m]",
        "max_over_time(up[1d:1s])",
        "up offset 1w",
        "up @ 0",
        "rate(up[2y])",
        "rate(up[1ms])",
        'up{api_key=~"a.*"}',
        "sum by (api_key) (up)",
        "up * on (arm) group_left (job) up",
        "up and up",
        "up or up",
        "up unless up",
        'count_values("arm", up)',
        'label_replace(up, "arm", "$1", "token", "(.*)")',
        "absent(up)",
        "time()",
        "vector(1)",
        "up + NaN",
        "up + 1e999",
        "up + 1e13",
        "up + up + up + up + up",
        f"{'(' * (DEEPEST + 1)}up{')' * (DEEPEST + 1)}",
        f"up{{arm=~{'a' * 201!r}}}",
        f"up{' ' * LONGEST}",
        'up{arm="a" or job="b"}',
        "up atan2 up",
        '"up"',
        "info(up)",
    ],
)
def test_all_else_is_refused_with_a_reason(text: str):
    with pytest.raises(BadInput) as refused:
        allowed(text, {})
    assert str(refused.value).endswith(".")


def test_a_comment_does_not_get_through():
    assert allowed("up # } vault", {}).text == "up"


@given(value=st.text(max_size=60), fleet=st.text(max_size=60))
def test_a_label_value_stays_a_label_value(value: str, fleet: str):
    """The parser's own writing of an expression does not escape them."""
    quoted = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    try:
        found = allowed(f'{RUNNING}{{arm="{quoted}"}}', {"cluster": fleet})
    except BadInput:
        # What no PromQL text can hold, such as a NUL, is refused by the parser.
        assert not value.isprintable()
        return
    [selector] = selectors(found.text)
    assert selector.name == RUNNING
    assert [(m.name, m.value) for m in selector.matchers.matchers] == [
        ("arm", value),
        ("cluster", fleet),
    ]


PIECES = st.sampled_from(
    [
        *"(){}[],+-*/<>^%@:#=",
        *("=~", "!=", " ", "\n", "up", RUNNING, "vault", "arm", "token", '"a"', "rate(up[5m])"),
        *('"\\"} or vault{a=\\""', "5m", "1", "NaN", "by", "on", "offset", "bool", "or", "sum"),
        *("rate", "topk", "group_left", "__name__", "`", "'", "\\", "$x", "é", "\x00"),
    ]
)


@given(text=st.one_of(st.lists(PIECES, max_size=14).map("".join), st.text(max_size=80)))
def test_whatever_gets_through_asks_for_allowed_metrics_of_this_fleet_alone(text: str):
    try:
        found = allowed(text, WITHIN)
    except BadInput:
        return
    named = selectors(found.text)
    assert named
    for selector in named:
        assert selector.name is not None and METRICS.fullmatch(selector.name)
        matchers = [(m.name, m.value) for m in selector.matchers.matchers]
        assert ("cluster", WITHIN["cluster"]) in matchers
        assert {name for name, _ in matchers} <= SHOWN_LABELS | {"cluster"}
        assert (selector.at, selector.offset, selector.matchers.or_matchers) == (None, None, [])
    bare = re.sub(r'"(?:\\.|[^"\\])*"', "", found.text)
    called = set(re.findall(r"([a-z_]+) ?(?:by|without)? ?\(", bare))
    assert called <= FUNCTIONS | AGGREGATIONS | {"by", "without", "on", "ignoring", "bool"}


@pytest.mark.parametrize("text", ["up offset NaN", "up offset Inf", "up offset -NaN"])
def test_what_the_parser_panics_on_is_refused(text: str) -> None:
    """A panic is no Exception: it once went through everything that keeps the answer alive."""
    with pytest.raises(BadInput, match="no PromQL expression"):
        allowed(text, {})


WORDS = [
    "up",
    RUNNING,
    "by",
    "without",
    "on",
    "ignoring",
    "group_left",
    "bool",
    "offset",
    "start()",
]
SIGNS = [*"(){}[],:+-*/%^=<>@", "==", "!=", "=~", "!~", "and", "or", "unless", "{__name__=", "up{"]
VALUES = ["0", "1", "1e999", "0x1f", "NaN", "Inf", "-Inf", "5m", "[5m]", "[0s]", "'a'", "`c`", "le"]
TOKENS = [*sorted(FUNCTIONS), *sorted(AGGREGATIONS), *WORDS, *SIGNS, *VALUES]


@given(st.lists(st.sampled_from(TOKENS), max_size=12).map(" ".join))
def test_any_soup_of_tokens_is_written_anew_or_refused(text: str) -> None:
    try:
        written = allowed(text, WITHIN).text
    except BadInput:
        return
    assert len(selectors(written)) >= 1
