"""A lossy config passes only with proof; an engine that does not answer is no wrong answer."""

import json
import re

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from canary.quality import (
    Question,
    ask_all,
    judge_quality,
    questions,
    questions_needed,
    score,
)
from domain.errors import EngineUnreachable
from domain.study import QualityScore
from domain.verdict import Outcome

FORM = re.compile(r'^Compute (\d{1,2}(?: [+-] \d{1,2}){2,5})\. End with "Answer: N"\.$')


@given(st.integers())
def test_questions_have_one_form_and_the_right_answer(seed: int) -> None:
    for question in questions(seed, 5):
        form = FORM.match(question.prompt)
        assert form is not None
        signed = re.findall(r"([+-]?)\s*(\d+)", form[1])
        assert sum(int(f"{sign}{term}") for sign, term in signed) == question.answer


def test_questions_follow_their_seed() -> None:
    assert questions(1, 50) == questions(1, 50)
    assert questions(1, 50) != questions(2, 50)
    assert len(set(questions(1, 50))) == 50


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("Answer: 39", True),
        ("17 + 25 = 42, 42 - 3 = 39.\nAnswer: 39.", True),
        ("Answer: 42. No, wait. Answer: 39", True),
        ("**Answer:** 39", True),
        ("Answer: 39. No, wait. Answer: 42", False),
        ("Answer: -39", False),
        ("39", False),
        ("Answer: N", False),
        ("", False),
    ],
)
def test_the_last_answer_counts(text: str, right: bool) -> None:
    assert score(Question(prompt="", answer=39), text) is right


def test_negative_and_large_answers_are_read() -> None:
    assert score(Question(prompt="", answer=-7), "Answer: -7")
    assert score(Question(prompt="", answer=1234), "Answer: 1,234")


def test_equal_accuracy_passes_once_there_are_enough_questions() -> None:
    few = judge_quality(QualityScore(right=90, asked=100), QualityScore(right=90, asked=100))
    assert few.outcome is Outcome.INCONCLUSIVE
    assert "about 769 questions a side" in few.reason
    many = judge_quality(QualityScore(right=720, asked=800), QualityScore(right=720, asked=800))
    assert many.outcome is Outcome.PASS
    assert "no loss of 3 points or more" in many.reason


def test_flawless_arms_need_fewer() -> None:
    arm = QualityScore(right=200, asked=200)
    assert judge_quality(arm, arm).outcome is Outcome.PASS


def test_a_large_loss_fails_and_a_small_one_is_undecided() -> None:
    baseline = QualityScore(right=380, asked=400)
    bad = judge_quality(QualityScore(right=300, asked=400), baseline)
    assert bad.outcome is Outcome.FAIL
    assert "300 of 400 answers are right against 380 of 400: -20.0 points" in bad.reason
    worse = judge_quality(QualityScore(right=368, asked=400), baseline)
    assert worse.outcome is Outcome.INCONCLUSIVE
    assert worse.reason.endswith("a loss of 3 points is not ruled out.")


def test_a_set_that_nobody_can_answer_proves_nothing() -> None:
    """A ruined candidate would look the equal of a baseline that gets nothing right."""
    verdict = judge_quality(QualityScore(right=0, asked=800), QualityScore(right=4, asked=800))
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "use easier questions" in verdict.reason


def test_nothing_asked_proves_nothing() -> None:
    nothing, some = QualityScore(right=0, asked=0), QualityScore(right=9, asked=9)
    assert judge_quality(nothing, some).outcome is Outcome.INCONCLUSIVE
    assert judge_quality(some, nothing).outcome is Outcome.INCONCLUSIVE


def test_no_number_of_questions_shows_what_is_not_so() -> None:
    assert questions_needed(0.5, 0.9, 0.03, 0.95) is None


def completions(content: object, status: int = 200) -> httpx.MockTransport:
    def answer(request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        assert request.url.path == "/v1/chat/completions"
        assert (body["model"], body["temperature"]) == ("m", 0)
        said = content(body["messages"][0]["content"]) if callable(content) else content
        return httpx.Response(status, json={"choices": [{"message": {"content": said}}]})

    return httpx.MockTransport(answer)


async def test_right_answers_are_counted() -> None:
    asked = questions(1, 20)
    known = {question.prompt: question.answer for question in asked[:15]}
    transport = completions(lambda prompt: f"So it is.\nAnswer: {known.get(prompt, 1000)}")
    found = await ask_all("http://engine", "m", asked, transport=transport)
    assert found == QualityScore(right=15, asked=20)


async def test_an_answer_without_content_is_wrong() -> None:
    found = await ask_all("http://engine", "m", questions(1, 3), transport=completions(None))
    assert found == QualityScore(right=0, asked=3)


async def test_an_engine_that_refuses_or_breaks_off_is_no_wrong_answer() -> None:
    def broken(request: httpx.Request) -> httpx.Response:
        raise httpx.ReadTimeout("", request=request)

    def garbled(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, text="<html>")

    for transport in (
        completions("Answer: 1", status=503),
        httpx.MockTransport(broken),
        httpx.MockTransport(garbled),
    ):
        with pytest.raises(EngineUnreachable, match="got no answer"):
            await ask_all("http://engine", "m", questions(1, 20), transport=transport)
