"""What a question can cost, and what of a server's own count is believed."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.language.completion import answer_in
from agent.language.counting import counted, most
from domain.language import Message, NoAnswer, Speaker, Tokens
from tests.fakes.language import completion, question

LONG = question("x" * 1600)
BOUND = most(LONG)


def test_the_most_is_a_token_a_byte_with_the_templates_and_the_longest_answer() -> None:
    bare = question("é" * 100, schema=None)
    assert most(bare) == Tokens(read=200 + 2 * 64, written=100)
    assert most(question("é" * 100)).read > most(bare).read
    two = question(schema=None, messages=(Message(Speaker.SYSTEM, "a"), Message(Speaker.USER, "b")))
    assert most(two).read == 2 + 3 * 64


def test_a_count_that_can_be_true_is_believed() -> None:
    assert counted(LONG, "y" * 40, 400, 10) == Tokens(read=400, written=10)
    assert counted(LONG, "y" * 40, 100, 100) == Tokens(read=100, written=100)


@pytest.mark.parametrize("read", [None, 0, -5, 99, 10**9, 400.0, "400", True, [], {}])
def test_a_count_of_what_was_read_that_cannot_be_true_is_the_most(read: object) -> None:
    assert counted(LONG, "y" * 40, read, 10) == Tokens(read=BOUND.read, written=10)


@pytest.mark.parametrize("written", [None, 0, -1, 1, 101, 10**30, "3", 2.5])
def test_a_count_of_what_was_written_that_cannot_be_true_is_the_most(written: object) -> None:
    assert counted(LONG, "y" * 40, 400, written) == Tokens(read=400, written=100)


def test_an_answer_longer_than_was_allowed_counts_in_full() -> None:
    assert counted(LONG, "y" * 5000, 400, None).written == 5000
    assert counted(LONG, "y" * 5000, 400, 3).written == 5000


def test_what_a_model_thought_counts_as_written() -> None:
    usage = {"prompt_tokens": 120, "completion_tokens": 2}
    body = completion("{}", usage=usage, reasoning_content="hm " * 100)
    assert answer_in(json.dumps(body).encode(), LONG).tokens.written == 302


@given(
    st.recursive(
        st.none() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["prompt_tokens", "completion_tokens"]), inner)
        ),
    )
)
def test_whatever_a_server_says_of_its_use_no_count_is_under_what_is_plain(usage: object) -> None:
    body = json.dumps(completion("y" * 800, usage=usage)).encode()
    try:
        tokens = answer_in(body, LONG).tokens
    except NoAnswer as none:  # numbers that JSON has no word for
        assert none.tokens is not None
        tokens = none.tokens
    assert tokens.read >= 100 and tokens.written >= 50
