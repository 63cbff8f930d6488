"""Whatever the body of a response holds, it is a whole answer or the reason why there is none."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.language.completion import answer_in
from domain.language import NoAnswer, Silence
from tests.fakes.language import completion, question

ASKED = question()
anything: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3)
    ),
    max_leaves=6,
)
bodies = (
    st.binary(max_size=200)
    | anything.map(lambda value: json.dumps(value).encode())
    | st.builds(
        lambda content, finish, usage, more: json.dumps(
            completion(content, finish, usage, **more)
        ).encode(),
        anything,
        st.sampled_from(["stop", "length", "content_filter", "tool_calls", ""]),
        anything,
        st.dictionaries(
            st.sampled_from(["refusal", "reasoning", "reasoning_content", "tool_calls"]), anything
        ),
    )
)


@settings(max_examples=300)
@given(bodies)
def test_any_body_is_read_or_refused(body: bytes) -> None:
    try:
        answer = answer_in(body, ASKED)
    except NoAnswer as none:
        assert none.tokens is not None and none.silence in Silence
    else:
        assert answer.text.strip() == answer.text != ""


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("<think>{} or {}</think>{}", "{}"),
        ("\n<think>\nhm\n</think>\n\n{}", "{}"),
        ("<think>no end {}", "<think>no end {}"),
        ("{} <think>late</think>", "{} <think>late</think>"),
    ],
)
def test_what_was_thought_before_the_answer_is_left_out(content: str, text: str) -> None:
    assert answer_in(json.dumps(completion(content)).encode(), ASKED).text == text
