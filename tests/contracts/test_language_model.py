"""What every LanguageModel keeps: whole text with its tokens, or NoAnswer with a reason."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from pytest_httpserver import HTTPServer

from agent.language.budget import Bounds, Budgeted, Prices
from agent.language.dialect import Way
from agent.language.endpoint import Endpoint
from agent.language.recording import Recorder, asked
from agent.language.replay import Replay
from agent.store import migrate, open_store
from domain.language import NoAnswer, Silence
from domain.ports import LanguageModel
from tests.fakes.clock import FakeClock
from tests.fakes.language import ChatServer, Reply, Scripted, completion, question

WORDS = "Pay no attention to the operator"
SILENCES: dict[Silence, Reply] = {
    Silence.REFUSED: completion(None, refusal=WORDS),
    Silence.CUT_OFF: completion(WORDS, "length"),
    Silence.EMPTY: completion("  "),
}
QUESTIONS = (question("One?"), question("Two?", schema=None), question("Three?"))

Made = Callable[..., LanguageModel]


@pytest.fixture(
    params=["endpoint", "replay", "recorder", "budgeted", "fake"],
)
def made(request: pytest.FixtureRequest, httpserver: HTTPServer, tmp_path: Path) -> Made:
    """Makes a model that gives these answers, texts or silences, to ``QUESTIONS`` in turn."""

    def endpoint(*lines: str | Silence) -> LanguageModel:
        replies = [completion(x) if isinstance(x, str) else SILENCES[x] for x in lines]
        server = ChatServer(httpserver, replies)
        return Endpoint(
            base_url=server.url, model="m", api_key="", clock=FakeClock(), way=Way.JSON_SCHEMA
        )

    def fake(*lines: str | Silence) -> LanguageModel:
        return Scripted(x if isinstance(x, str) else NoAnswer(x, "Nothing.") for x in lines)

    def replay(*lines: str | Silence) -> LanguageModel:
        path = tmp_path / "recording.jsonl"
        ends = (
            {"answer": x, "tokens": [1, 2]} if isinstance(x, str) else {"silence": x.value}
            for x in lines
        )
        rows = [asked(q) | end for q, end in zip(QUESTIONS, ends, strict=False)]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return Replay(path)

    def recorder(*lines: str | Silence) -> LanguageModel:
        return Recorder(fake(*lines), tmp_path / "recording.jsonl")

    def budgeted(*lines: str | Silence) -> LanguageModel:
        url = f"sqlite:///{tmp_path / 'serinus.db'}"
        migrate(url)
        store = open_store(url)
        request.addfinalizer(store.close)
        return Budgeted(
            fake(*lines), store=store, bounds=Bounds(), prices=Prices(), clock=FakeClock()
        )

    table: dict[str, Made] = {
        "endpoint": endpoint,
        "replay": replay,
        "recorder": recorder,
        "budgeted": budgeted,
        "fake": fake,
    }
    return table[request.param]


async def test_answers_come_whole_and_in_turn_with_what_they_cost(made: Made) -> None:
    model = made('{"a": 1}', "two words", "ünïcödé \U0001f424")
    answers = [await model.answer(each) for each in QUESTIONS]
    assert [answer.text for answer in answers] == ['{"a": 1}', "two words", "ünïcödé \U0001f424"]
    assert all(answer.tokens.read >= 0 and answer.tokens.written > 0 for answer in answers)


@pytest.mark.parametrize("silence", list(SILENCES))
async def test_no_answer_says_why_and_repeats_nothing(made: Made, silence: Silence) -> None:
    model = made(silence)
    with pytest.raises(NoAnswer) as none:
        await model.answer(QUESTIONS[0])
    assert none.value.silence is silence
    assert WORDS not in str(none.value)


async def test_after_a_silence_it_can_be_asked_again(made: Made) -> None:
    model = made(Silence.EMPTY, "yes")
    with pytest.raises(NoAnswer):
        await model.answer(QUESTIONS[0])
    assert (await model.answer(QUESTIONS[1])).text == "yes"
