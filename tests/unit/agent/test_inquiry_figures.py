"""Figures in a text: those that were read get in, and no others."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.inquiry.figures import Unread, checked, filled
from domain.figure import Figure, Unit

NAMES = 'p95 max_num_seqs "qwen3-8b" 9999 TTFT was 812 ms 77 %'
TIMES = "2026-05-31 14:00:00 to 2026-05-31 16:30:00 Europe/Berlin ('since 14:00')"


def figure(name: str, value: float, unit: Unit) -> Figure:
    return Figure(name=name, value=value, unit=unit, source="a query")


FIGURES = {
    each.name: each
    for each in (
        figure("ttft_p95_now", 2425.0, Unit.MILLISECONDS),
        figure("ttft_p95_ratio", 3.02, Unit.TIMES),
        figure("hit_rate_now", 0.204, Unit.SHARE),
        figure("waiting_now", 24.9, Unit.REQUESTS),
        figure("engines_up_now", 2.0, Unit.ENGINES),
        figure("max_num_seqs", 256.0, Unit.NONE),
    )
}


def test_names_are_replaced_by_figures_with_their_units():
    found = filled("TTFT is { ttft_p95_now }, {ttft_p95_ratio} more; {ttft_p95_now}.", FIGURES)
    assert found.text == "TTFT is 2425 ms, 3.02 times more; 2425 ms."
    assert [each.name for each in found.used] == ["ttft_p95_now", "ttft_p95_ratio"]


def test_a_name_that_is_none_is_refused():
    with pytest.raises(Unread, match=r"there is no figure \{rm -rf\}"):
        filled("{rm -rf}", FIGURES)


@pytest.mark.parametrize(
    ("text", "used"),
    [
        ("TTFT p95 is {ttft_p95_now}.", ["ttft_p95_now"]),
        ("TTFT p95 is 2425 ms.", ["ttft_p95_now"]),
        ("TTFT p95 is 2,425ms.", ["ttft_p95_now"]),
        ("TTFT p95 is 2.4 s, 3 times as much.", ["ttft_p95_now", "ttft_p95_ratio"]),
        ("TTFT p95 is 2.43 seconds.", ["ttft_p95_now"]),
        ("The cache finds 20 % of tokens.", ["hit_rate_now"]),
        ("25 requests wait on 2 engines.", ["waiting_now", "engines_up_now"]),
        ("max_num_seqs is 256.", ["max_num_seqs"]),
        ("qwen3-8b is slow since 14:00.", []),
        ("On 2026-05-31 nothing was wrong.", []),
        ("It is slow.", []),
    ],
)
def test_a_number_that_was_read_may_stand(text: str, used: list[str]):
    assert [each.name for each in checked(text, FIGURES, NAMES, TIMES).used] == used


@pytest.mark.parametrize(
    "text",
    [
        "TTFT p95 is 2400 s.",
        "TTFT p95 is 2430 ms.",
        "TTFT p95 is 2 s.",
        "TTFT p95 is 812 ms.",
        "TTFT p95 is 2425.",
        "TTFT p95 is 2425 %.",
        "TTFT812ms",
        "77 % of tokens hit.",
        "9999 requests wait.",
        "It is slow since 13:00.",
        "On 2026-05-30 it began.",
        "It rose tenfold to 10x.",
        "３３３ requests wait.",
        "½ of all wait.",
        "It rose by fifty percent.",
        "Thousands wait.",
        "{made_up} is high.",
        "{} is high.",
        "24.9 s of TTFT.",
    ],
)
def test_a_number_that_was_not_read_is_refused(text: str):
    with pytest.raises(Unread):
        checked(text, FIGURES, NAMES, TIMES)


@given(value=st.floats(0.001, 99_999), unit=st.sampled_from([Unit.MILLISECONDS, Unit.SHARE]))
def test_a_figure_as_it_is_shown_is_a_figure_that_was_read(value: float, unit: Unit):
    shown = figure("x", value, unit)
    if "e" in str(shown):
        return
    assert checked(f"It is {shown}.", {"x": shown}, "", "").used == (shown,)


@given(written=st.integers(0, 10_000), read=st.floats(0, 10_000))
def test_a_number_far_from_all_figures_never_stands(written: int, read: float):
    known = {"x": figure("x", read, Unit.MILLISECONDS)}
    if abs(written - read) <= max(1.0, 0.03 * read):
        return
    with pytest.raises(Unread):
        checked(f"It is {written} ms.", known, "", "")


def test_a_share_is_shown_in_percent_and_one_is_singular():
    assert str(figure("x", 0.5, Unit.SHARE)) == "50 %"
    assert str(figure("x", 1, Unit.ENGINES)) == "1 engine"
    assert str(figure("x", 1234.5, Unit.NONE)) == "1234"
    assert str(figure("x", math.pi, Unit.SECONDS)) == "3.14 s"
