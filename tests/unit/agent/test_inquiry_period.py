"""Which time a question is about."""

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.inquiry.period import LONGEST_S, Period, period
from domain.errors import BadInput

BERLIN = ZoneInfo("Europe/Berlin")
NOW = datetime(2026, 5, 31, 16, 30, tzinfo=BERLIN)
WINDOW_S, LEAST_S = 600.0, 20.0


def read(question: str, now: datetime = NOW) -> Period:
    return period(question, now.timestamp(), BERLIN, WINDOW_S, LEAST_S)


def told(found: Period) -> str:
    start, end = (datetime.fromtimestamp(at, BERLIN) for at in (found.start_s, found.end_s))
    return f"{start:%d %H:%M} to {end:%d %H:%M}"


@pytest.mark.parametrize(
    ("question", "times"),
    [
        ("Why is TTFT high since 14:00?", "31 14:00 to 31 16:30"),
        ("since 14:05:30, why?", "31 14:05 to 31 16:30"),
        ("since 14:00 ttft is high", "31 14:00 to 31 16:30"),
        ("since 9", "31 09:00 to 31 16:30"),
        ("since 17:00", "30 17:00 to 31 16:30"),
        ("since 2 pm", "31 14:00 to 31 16:30"),
        ("since 12am", "31 00:00 to 31 16:30"),
        ("since yesterday 18:00", "30 18:00 to 31 16:30"),
        ("since yesterday", "30 00:00 to 31 16:30"),
        ("since 2026-05-29", "29 00:00 to 31 16:30"),
        ("since 2 hours", "31 14:30 to 31 16:30"),
        ("since 3 hours ago", "31 13:30 to 31 16:30"),
        ("in the last 30 minutes", "31 16:00 to 31 16:30"),
        ("in the last hour", "31 15:30 to 31 16:30"),
        ("in the past half an hour", "31 16:00 to 31 16:30"),
        ("slow for 20 minutes", "31 16:10 to 31 16:30"),
        ("for the last 5m", "31 16:25 to 31 16:30"),
        ("yesterday between 9 and 10", "30 09:00 to 30 10:00"),
        ("between 9am and 10:30 AM yesterday", "30 09:00 to 30 10:30"),
        ("on 2026-05-30 from 8:15 to 9:00", "30 08:15 to 30 09:00"),
        ("between 9 and 10 what happened", "31 09:00 to 31 10:00"),
        ("between 23:00 and 1:00", "30 23:00 to 31 01:00"),
        ("between 16:00 and 17:00 today", "31 16:00 to 31 16:30"),
        ("yesterday", "30 00:00 to 31 00:00"),
        ("at 3pm", "31 15:00 to 31 15:10"),
        ("2 hours ago", "31 14:30 to 31 14:40"),
    ],
)
def test_times_are_read(question: str, times: str):
    found = read(question)
    assert told(found) == times
    assert found.said in question.lower()


@pytest.mark.parametrize(
    "question",
    [
        "Why is p95 high?",
        "since the deploy",
        "Why are 24 requests waiting at max_num_seqs 256?",
        "TTFT rose from 20 to 80 ms",
        "TTFT rose from 200 to 800 ms",
        "between 9 and 10 requests wait",
        "since 9 requests wait",
        "it took about 20 requests",
        "waiting for 2 s",
        "for a model",
    ],
)
def test_what_names_no_time_is_about_the_last_window(question: str):
    found = read(question)
    assert found.said == ""
    assert (found.start_s, found.end_s) == (NOW.timestamp() - WINDOW_S, NOW.timestamp())


@pytest.mark.parametrize(
    ("question", "fault"),
    [
        ("since 25:00", "'25:00' is no time of day; write it like 14:00"),
        ("since 13pm", "'13pm' is no time of day"),
        ("on 2026-02-31", "'2026-02-31' is no date"),
        ("last 10 days", "longer than a week"),
        ("last 5 seconds", "shorter than 20 s"),
        ("since 2026-06-02", "in the future"),
        ("since 24:00", "in the future"),
        ("last 999999 weeks", "longer than a week"),
    ],
)
def test_a_time_that_cannot_be_is_refused(question: str, fault: str):
    with pytest.raises(BadInput, match=fault):
        read(question)


def test_the_day_on_which_clocks_change_has_its_own_length():
    after = datetime(2026, 3, 29, 12, 0, tzinfo=BERLIN)
    assert read("since 1:00", after).seconds == 10 * 3600
    assert read("yesterday", datetime(2026, 3, 30, 12, 0, tzinfo=BERLIN)).seconds == 23 * 3600


WORDS = st.sampled_from(
    [
        *("since", "between", "and", "yesterday", "today", "last", "past", "at", "ago", "from"),
        *("to", "14:00", "9", "25", "99:99", "3pm", "0pm", "24:00", "2026-05-30", "9999-99-99"),
        *("half an", "0", "1e9", "minutes", "h", "s", "weeks", "999999", "-5", "why", "p95", "٣"),
    ]
)


@given(words=st.lists(WORDS, max_size=8), junk=st.text(max_size=10))
def test_whatever_is_asked_a_time_is_in_the_past_and_bounded(words: list[str], junk: str):
    try:
        found = read(" ".join([*words, junk]))
    except BadInput as error:
        assert str(error).endswith(".")
        return
    assert LEAST_S <= found.seconds <= LONGEST_S
    assert found.end_s <= NOW.timestamp()
