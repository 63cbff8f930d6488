"""The tokens that a language model may cost: held to by code, kept over restarts, lies included."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from agent.language.budget import DAY_S, Bounds, Budgeted, Prices
from agent.language.counting import most
from agent.planner.model import ModelPlanner
from agent.planner.rulebook import Rulebook
from agent.store import Store, migrate, open_store
from domain.engine import EngineConfig, SearchSpace
from domain.errors import Temporary
from domain.language import Answer, NoAnswer, Question, Silence, Tokens
from domain.ports import LanguageModel
from tests.fakes.clock import FakeClock
from tests.fakes.language import Scripted, question
from tests.fakes.records import knob, study

ASKED = question("Which?", subject="s1", max_tokens=100)
MOST = most(ASKED).total


class Costs:
    """Answers at a price, or falls silent at one."""

    def __init__(self, tokens: Tokens | None, silence: Silence | None = None) -> None:
        self.tokens = tokens
        self.silence = silence
        self.asked = 0

    async def answer(self, question: Question) -> Answer:
        self.asked += 1
        if self.silence is not None:
            raise NoAnswer(self.silence, "Nothing.", self.tokens)
        assert self.tokens is not None
        return Answer(text="x", tokens=self.tokens)


@pytest.fixture
def url(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path / 'serinus.db'}"
    migrate(url)
    return url


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with open_store(url) as store:
        yield store


def budgeted(
    inner: LanguageModel, store: Store, clock: FakeClock | None = None, **bounds: int
) -> Budgeted:
    return Budgeted(
        inner,
        store=store,
        bounds=Bounds(**bounds),
        prices=Prices(read=2.0, written=10.0),
        clock=clock or FakeClock(),
    )


def spent(store: Store, subject: str = "s1") -> Tokens:
    with store.view() as uow:
        return uow.language_spending.of(subject)


async def test_what_an_answer_cost_is_kept(store: Store) -> None:
    model = budgeted(Costs(Tokens(read=30, written=5)), store)
    await model.answer(ASKED)
    await model.answer(ASKED)
    assert spent(store) == Tokens(read=60, written=10)
    assert spent(store, "s2") == Tokens(read=0, written=0)


async def test_a_study_that_could_pass_its_bound_asks_no_more(store: Store) -> None:
    inner = Costs(Tokens(read=30, written=5))
    model = budgeted(inner, store, study=MOST + 69)
    await model.answer(ASKED)
    await model.answer(ASKED)
    with pytest.raises(NoAnswer) as none:
        await model.answer(ASKED)
    assert none.value.silence is Silence.OVER_BUDGET
    assert str(none.value) == (
        f"Of the {MOST + 69} tokens that this study may cost, 70 tokens (0.0002 by your prices) "
        f"are spent, and this question may need {MOST}."
    )
    await model.answer(replace(ASKED, subject="s2"))
    assert inner.asked == 3


async def test_a_day_is_the_last_24_hours_of_all_that_asked(store: Store) -> None:
    clock = FakeClock(1000.0)
    model = budgeted(Costs(Tokens(read=30, written=5)), store, clock, day=MOST + 34)
    await model.answer(replace(ASKED, subject=""))
    clock.advance(DAY_S - 1)
    with pytest.raises(NoAnswer, match="the last 24 hours may cost, 35 tokens"):
        await model.answer(ASKED)
    clock.advance(1)
    await model.answer(ASKED)


async def test_a_restart_forgets_nothing(url: str) -> None:
    with open_store(url) as before:
        await budgeted(Costs(Tokens(read=300, written=50)), before).answer(ASKED)
    with open_store(url) as after, pytest.raises(NoAnswer, match="350 tokens"):
        await budgeted(Costs(None), after, study=MOST + 349).answer(ASKED)


async def test_a_question_counts_in_full_until_its_answer_is_there(store: Store) -> None:
    class Killed(Exception):
        """Stands for the end of the process."""

    class Dies:
        async def answer(self, question: Question) -> Answer:
            raise Killed

    with pytest.raises(Killed):
        await budgeted(Dies(), store).answer(ASKED)
    assert spent(store) == most(ASKED)


async def test_questions_at_the_same_time_stay_within_the_bound_together(store: Store) -> None:
    answering = asyncio.Event()

    class Waits:
        async def answer(self, question: Question) -> Answer:
            await answering.wait()
            return Answer(text="x", tokens=Tokens(read=1, written=1))

    first = asyncio.create_task(budgeted(Waits(), store, study=MOST + 1).answer(ASKED))
    await asyncio.sleep(0)
    with pytest.raises(NoAnswer, match=f"{MOST} tokens .* are spent"):
        await budgeted(Waits(), store, study=MOST + 1).answer(ASKED)
    answering.set()
    await first
    with pytest.raises(NoAnswer, match=r"2 tokens .* are spent"):
        await budgeted(Waits(), store, study=MOST + 1).answer(ASKED)


@pytest.mark.parametrize(
    ("told", "kept"),
    [
        (None, most(ASKED)),
        (Tokens(read=0, written=0), Tokens(read=0, written=0)),
        (Tokens(read=30, written=100), Tokens(read=30, written=100)),
    ],
)
async def test_no_answer_costs_what_it_says_or_else_the_most(
    store: Store, told: Tokens | None, kept: Tokens
) -> None:
    with pytest.raises(NoAnswer):
        await budgeted(Costs(told, Silence.SLOW), store).answer(ASKED)
    assert spent(store) == kept


async def test_without_bounds_all_is_answered_and_still_kept(store: Store) -> None:
    model = budgeted(Costs(Tokens(read=10**6, written=10**6)), store)
    for _ in range(5):
        await model.answer(ASKED)
    assert spent(store).total == 10**7


async def test_where_it_cannot_be_told_what_was_spent_nothing_is_asked(store: Store) -> None:
    class Locked(Store):
        def __init__(self) -> None:
            pass

        def work(self, *, fencing_token: int | None = None) -> object:  # type: ignore[override]
            raise Temporary("The database is locked by another process.")

    inner = Costs(Tokens(read=1, written=1))
    with pytest.raises(NoAnswer, match="is locked") as none:
        await budgeted(inner, Locked(), study=10**6).answer(ASKED)
    assert none.value.silence is Silence.OVER_BUDGET and inner.asked == 0


def test_money_is_told_only_where_there_are_prices() -> None:
    tokens = Tokens(read=1_000_000, written=200_000)
    assert Prices().told(tokens) == "1,200,000 tokens"
    assert Prices(read=2.0, written=10.0).told(tokens) == "1,200,000 tokens (4.0000 by your prices)"


async def test_over_the_budget_the_rulebook_plans_and_the_run_says_so(store: Store) -> None:
    space = SearchSpace(knobs=(knob("async_scheduling", (False, True)),))
    inner = Scripted([])
    planner = ModelPlanner(
        language=budgeted(inner, store, study=10), name="small", fallback=Rulebook()
    )
    asked = study(baseline=EngineConfig())
    proposals = await planner.propose(asked, space, (), 3)
    assert proposals.author == "rulebook"
    assert "not followed: Of the 10 tokens that this study may cost" in proposals.note
    assert inner.questions == []
