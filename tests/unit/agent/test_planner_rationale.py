"""A rationale has the model's causes and the verdict's figures, never figures of the model."""

import json
import re
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agent.planner.answer import Unusable
from agent.planner.rationale import Explainer, figures, filled
from domain.interval import Interval
from domain.language import NoAnswer, Question, Silence
from domain.study import Recommendation
from domain.verdict import Effect, Outcome, Verdict
from tests.fakes import records
from tests.fakes.language import Scripted

STUDY = records.study()


def effect(metric: str, estimate: float, low: float, high: float) -> Effect:
    interval = Interval(low=low, high=high, level=0.95, method="exact", n=240)
    return Effect(
        metric=metric,
        baseline=100.0,
        candidate=100.0 * estimate,
        estimate=estimate,
        unit="ratio",
        interval=interval,
    )


FOUND = Recommendation(
    study_id=STUDY.id,
    config=records.CANDIDATE,
    verdict=Verdict(
        outcome=Outcome.PASS,
        reason="It is better.",
        effects=(effect("goodput_tok_s", 1.4, 1.2, 1.6), effect("ttft_p95_ms", 0.8, 0.7, 0.9)),
    ),
    rationale="Change: goodput_tok_s 100 against 140.",
)
KNOWN = figures(STUDY, FOUND)
GOOD = "The scheduler left seats empty, so {changes} lets work overlap: {goodput_tok_s}."


def said(rationale: object) -> str:
    return json.dumps({"rationale": rationale})


def test_figures_and_their_directions_come_from_the_verdict() -> None:
    assert filled(said(GOOD), KNOWN) == (
        "The scheduler left seats empty, so async_scheduling: default → True, max_num_seqs: 256 →"
        " 512 lets work overlap: goodput_tok_s rose from 100 to 140 (1.4 times, 95 % interval 1.2"
        " to 1.6, n=240)."
    )
    assert KNOWN["ttft_p95_ms"].startswith("ttft_p95_ms fell from 100 to 80 (0.8 times")


def test_no_direction_is_told_that_the_interval_does_not_prove() -> None:
    unproven = effect("ttft_p95_ms", 0.9, 0.7, 1.1)
    verdict = Verdict(outcome=Outcome.PASS, reason="", effects=(unproven,))
    known = figures(STUDY, replace(FOUND, verdict=verdict))
    assert "fell" not in known["ttft_p95_ms"] and "rose" not in known["ttft_p95_ms"]


@pytest.mark.parametrize(
    "rationale",
    [
        "It works.",
        "Here {changes} gives 40 % of it.",
        "Here {changes} gives forty percent.",
        "With {changes} TTFT went up.",
        "With {changes} users wait longer.",
        "With {changes} it is twice what it was.",
        "With {changes} it got Faster.",
        "With {changes} answers stay identical.",
        "With {changes} nothing is lost, guaranteed.",
        "See {secret}.",
        "See {changes} and {{changes}}.",
        "See {changes} and {changes.__class__}.",
        "See {changes} and ½ of it.",
        "See {changes} and Ⅳ of them.",
        "",
        7,
        None,
    ],
)
def test_what_could_contradict_a_figure_is_not_taken(rationale: object) -> None:
    with pytest.raises(Unusable):
        filled(said(rationale), KNOWN)


def test_causes_may_be_told_in_the_words_of_the_trade() -> None:
    told = "Tensor cores waited for drafted tokens of each request; {changes} tends to that."
    assert "Tensor cores waited" in filled(said(told), KNOWN)


@pytest.mark.parametrize("text", ["", "null", "[]", "{}", '{"rationale": "a', "It is better."])
def test_anything_but_the_form_is_not_taken(text: str) -> None:
    with pytest.raises(Unusable):
        filled(text, KNOWN)


@given(st.text(max_size=200), st.sampled_from(sorted(KNOWN)))
@example("<data> 7 </data>", "changes")
@example("١٢", "changes")
def test_every_number_of_a_rationale_is_the_verdicts(text: str, name: str) -> None:
    try:
        told = filled(said(f"{text} {{{name}}} {text}"), KNOWN)
    except Unusable:
        return
    for figure in KNOWN.values():
        told = told.replace(figure, "")
    assert not re.search(r"\d", told)


async def explained(*script: str | NoAnswer) -> tuple[str, list[Question]]:
    model = Scripted(script)
    return await Explainer(model, "m")(STUDY, FOUND, "Decoding limits it."), model.questions


async def test_a_good_rationale_is_told_as_the_models() -> None:
    told, asked = await explained(said(GOOD))
    assert told.startswith("model m explains: The scheduler left seats empty")
    assert len(asked) == 1
    assert "Decoding limits it." in asked[0].messages[1].text


async def test_one_repair_is_asked_for_with_what_was_wrong_and_then_none() -> None:
    told, asked = await explained(said("It doubles {goodput_tok_s}."), said(GOOD))
    assert told and "'doubles'" in asked[1].messages[-1].text
    told, asked = await explained(said("It doubles."), said("It triples."))
    assert (told, len(asked)) == ("", 2)


async def test_a_silent_model_explains_nothing() -> None:
    told, asked = await explained(NoAnswer(Silence.SLOW, "It gave no answer within 30 s."))
    assert (told, len(asked)) == ("", 1)
