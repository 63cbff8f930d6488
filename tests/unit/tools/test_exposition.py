"""Only what is asked for is read, and text that is no exposition is refused."""

import math
from pathlib import Path

import pytest

from tools.counters import counters
from tools.exposition import Point, parse
from tools.queries import COUNTERS, METRICS

DATA = Path(__file__).resolve().parents[2] / "data"
TEXT = (DATA / "vllm-0.32-metrics.txt").read_text()


def test_only_the_names_asked_for_are_kept():
    points = parse(TEXT, {"vllm:num_requests_waiting"})
    assert points == [
        Point("vllm:num_requests_waiting", (("engine", "0"), ("model_name", "finch")), 1.0),
        Point("vllm:num_requests_waiting", (("engine", "1"), ("model_name", "finch")), 0.0),
    ]


def test_a_histogram_keeps_the_names_of_its_parts():
    names = {point.name for point in parse(TEXT, METRICS)}
    assert "vllm:request_prompt_tokens_bucket" in names
    assert "vllm:request_prompt_tokens_count" not in names
    assert not any(name.startswith("vllm:iteration") or "created" in name for name in names)


def test_label_values_are_unescaped_and_odd_numbers_read():
    (one, two) = parse('up{a="x\\"\\\\}\\n y"} NaN 17\nup +Inf\n', {"up"})
    assert one.labels == (("a", 'x"\\}\n y'),)
    assert math.isnan(one.value)
    assert (two.labels, two.value) == ((), math.inf)


@pytest.mark.parametrize("text", ["<html><body>", "up{ 1", 'up{a="b} 1', "up one"])
def test_what_is_no_exposition_is_refused(text: str):
    with pytest.raises(ValueError):
        parse(text, {"up"})


def test_an_engines_counters_are_summed_over_its_engines_and_reasons():
    found = counters(TEXT)
    assert found is not None
    assert (found.requests, found.prompt_tokens, found.generation_tokens) == (16, 6000, 1350)
    assert (found.prefix_queries, found.prefix_hits, found.preemptions) == (6000, 1500, 2)
    assert found.draft_tokens is None
    assert found.accepted_tokens is None


def test_an_exposition_without_the_engines_counters_has_none():
    assert counters("up 1\n") is None
    assert parse("", COUNTERS) == []
