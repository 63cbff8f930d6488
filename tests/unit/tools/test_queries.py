"""The metric names are those that the engine shows, and a query becomes PromQL and nothing else."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.errors import BadInput
from domain.metrics import Function, Query
from tests.fakes.metrics import FakeMetricSource
from tools import queries
from tools.exposition import parse
from tools.narrowed import Narrowed
from tools.promql import missed_promql, promql

RECORDED = Path(__file__).resolve().parents[2] / "data/metrics-0.32.0.txt"
SPECULATIVE = {queries.DRAFT_TOKENS, queries.ACCEPTED_TOKENS}


def test_every_name_is_one_that_vllm_0_32_shows():
    """But those of speculation, which an engine without it does not show."""
    shown = {point.name for point in parse(RECORDED.read_text(), queries.METRICS)}
    assert shown == queries.METRICS - SPECULATIVE


def test_a_gauge_now_is_its_fresh_values_summed():
    query = queries.now(queries.RUNNING, queries.where(arm="production", model_name=None))
    running = 'vllm:num_requests_running{arm="production"}'
    assert promql(query) == f"sum ({running} and time() - timestamp({running}) < 15)"


def test_an_increase_needs_one_fresh_series():
    query = queries.finished(60, queries.where(arm="candidate"))
    success = 'vllm:request_success_total{arm="candidate"}'
    assert promql(query, lookback_s=3) == (
        f"sum by (finished_reason, instance, job, replica) (increase({success}[60s]))"
        f" and on () (time() - timestamp({success}) < 3)"
    )


def test_a_window_may_be_a_fraction_of_a_second():
    assert "[1500ms]" in promql(queries.average(queries.WAITING, 1.5))


async def test_a_narrowed_source_names_its_labels_for_series_and_scrapes():
    fake = FakeMetricSource()
    where = queries.where(arm="production", model_name="m", replica="a")
    labels = {"replica": "b", "cluster": "eu"}
    await Narrowed(fake, labels).read(queries.now(queries.RUNNING, where), 1.0)
    [(asked, _)] = fake.asked
    assert asked.matches == (("cluster", "eu"), *where)
    assert 'cluster="eu", arm="production", model_name="m"' in promql(asked)
    assert missed_promql(asked).startswith('(up{cluster="eu", arm="production", replica="a"} == 0')
    of_all = replace(queries.now(queries.RUNNING), within=(("cluster", "eu"),))
    assert missed_promql(of_all).startswith('(up{cluster="eu", arm!=""} == 0')


@pytest.mark.parametrize("window_s", [0.0, -1.0, 0.0001])
def test_a_window_must_have_a_length(window_s: float):
    with pytest.raises(BadInput, match="longer than zero"):
        promql(queries.average(queries.WAITING, window_s))


def test_targets_are_asked_for_by_their_own_labels_alone():
    query = queries.finished(60, queries.where(arm="a", model_name="m"))
    up = 'up{arm="a"}'
    assert missed_promql(query) == (
        f"avg_over_time({up}[60s]) < 0.899 or ({up} == 0 and time() - timestamp({up}) < 15)"
    )
    assert missed_promql(queries.now(queries.RUNNING)).startswith('(up{arm!=""} == 0')


@pytest.mark.parametrize("name", ["", "up{}", "1up", "up or vector(1)", "a\nb", "ü"])
def test_what_is_no_metric_name_is_refused(name: str):
    with pytest.raises(BadInput, match="not a metric name"):
        promql(Query(metric=name, function=Function.LAST))


@pytest.mark.parametrize("name", ["", 'a="b"', "le) (vector(1", "a:b"])
def test_what_is_no_label_name_is_refused(name: str):
    for query in (
        Query(metric="up", function=Function.LAST, by=(name,)),
        Query(metric="up", function=Function.LAST, where=((name, "x"),)),
    ):
        with pytest.raises(BadInput, match="not a label name"):
            promql(query)


@given(st.text())
def test_a_label_value_never_leaves_its_quotes(value: str):
    text = promql(Query(metric="up", function=Function.MAX, where=(("a", value),)))
    rest = text.removeprefix('sum (max_over_time(up{a="')
    read = []
    while rest[0] != '"':
        assert rest[0] != "\n"
        if rest[0] == "\\":
            read.append({"n": "\n"}.get(rest[1], rest[1]))
            rest = rest[2:]
        else:
            read.append(rest[0])
            rest = rest[1:]
    assert "".join(read) == value
    assert rest.startswith('"}[60s])) and on () (')
