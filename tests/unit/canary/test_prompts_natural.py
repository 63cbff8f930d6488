"""Prompts of natural text: as long and as shared as others, as repetitive as the text itself."""

import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import mean

import pytest

from canary.prompts import agents, corpus_text, ideal_hit_rate, synthesise
from domain.errors import BadInput
from domain.load import Arrival, LoadPlan
from domain.traffic import Distribution, Latencies, TrafficShape

BLOCK = 16
# No token twice, so that whatever a prompt repeats is the plan's doing.
DISTINCT = tuple(range(1000, 31_000))
BOUNDS = (100, 200, 500, 1000, 2000, 5000)


def shape(hit_rate: float | None) -> TrafficShape:
    return TrafficShape(
        model="m",
        end_s=0.0,
        window_s=300.0,
        requests=1000.0,
        rate_rps=20.0,
        running=8.0,
        waiting=0.0,
        isl=Distribution.of_values(range(600, 3000), BOUNDS),
        osl=Distribution.of_values(range(50, 150), BOUNDS),
        latencies=Latencies(),
        prefix_hit_rate=hit_rate,
    )


def planned(
    hit_rate: float | None,
    *,
    seed: int = 1,
    corpus: Sequence[int] = DISTINCT,
    arrival: Arrival = Arrival.CLOSED,
) -> LoadPlan:
    return synthesise(
        shape(hit_rate),
        level="8",
        concurrency=8,
        warm_up_s=1.0,
        duration_s=10.0,
        seed=seed,
        corpus=corpus,
        arrival=arrival,
    )


def prompts(plan: LoadPlan) -> list[tuple[int, ...]]:
    return [turn.prompt for session in plan.sessions for turn in session.turns]


def runs(tokens: Sequence[int], n: int) -> list[tuple[int, ...]]:
    return [tuple(tokens[at : at + n]) for at in range(len(tokens) - n + 1)]


@pytest.mark.parametrize("arrival", list(Arrival))
@pytest.mark.parametrize("hit_rate", [0.0, 0.4, 0.9])
def test_a_cache_finds_what_is_shared_and_nothing_by_accident(
    hit_rate: float, arrival: Arrival
) -> None:
    """Though the plan holds the corpus many times over."""
    plan = planned(hit_rate, arrival=arrival)
    assert sum(map(len, prompts(plan))) > 10 * len(DISTINCT)
    assert ideal_hit_rate(plan) == pytest.approx(hit_rate, abs=0.03 if hit_rate else 0.0)


@pytest.mark.parametrize("hit_rate", [0.0, 0.9])
def test_another_seeds_prompts_share_no_first_block(hit_rate: float) -> None:
    one, other = ({p[:BLOCK] for p in prompts(planned(hit_rate, seed=s))} for s in (1, 2))
    assert not one & other


@pytest.mark.parametrize("hit_rate", [0.0, 0.4, 0.9])
def test_no_prompt_repeats_its_corpus(hit_rate: float) -> None:
    for prompt in prompts(planned(hit_rate)):
        found = runs(prompt, BLOCK)
        assert len(set(found)) == len(found)


def repetition(tokens: Sequence[int]) -> float:
    """The share of places at which an ngram speculator of 3 finds its last tokens again and its
    draft comes true."""
    seen: dict[tuple[int, ...], int] = {}
    true = 0
    for at in range(3, len(tokens)):
        key = tuple(tokens[at - 3 : at])
        true += seen.get(key) == tokens[at]
        seen[key] = tokens[at]
    return true / max(1, len(tokens) - 3)


def test_prompts_are_as_repetitive_as_the_text_they_are_cut_from() -> None:
    """Of Serinus's own sources, by words: chance has nothing that a speculator could guess."""
    words = re.findall(r"\w+|\s+|[^\w\s]", corpus_text())
    ids: dict[str, int] = {}
    corpus = [ids.setdefault(word, len(ids)) for word in words]
    made = mean(repetition(prompt) for prompt in prompts(planned(None, corpus=corpus))[:200])
    text = mean(repetition(corpus[at : at + 1800]) for at in range(0, len(corpus) - 1800, 1800))
    assert made == pytest.approx(text, rel=0.1)
    assert made > 0.1


def test_sessions_of_agents_speak_natural_text_too() -> None:
    plan = agents(
        seed=5, sessions=10, turns=4, concurrency=2, system_tokens=1000, corpus=DISTINCT, osl=40
    )
    assert len({prompt[:1000] for prompt in prompts(plan)}) == 1
    assert len({prompt[1000:1016] for prompt in prompts(plan)}) == 10
    follows = [after == before + 1 for p in prompts(plan) for before, after in pairwise(p)]
    assert mean(follows) > 0.9


def test_a_corpus_that_every_prompt_would_repeat_is_refused() -> None:
    with pytest.raises(BadInput, match="A corpus of 1000 tokens would repeat itself"):
        planned(None, corpus=DISTINCT[:1000])


def test_the_shipped_text_is_serinuss_own_and_long() -> None:
    text = corpus_text()
    assert len(text) > 500_000
    assert "def corpus_text(" in text


def test_a_file_of_the_users_is_the_corpus(tmp_path: Path) -> None:
    written = "Grüße aus Köln. " * 100
    (tmp_path / "mine.txt").write_text(written, encoding="utf-8")
    assert corpus_text(tmp_path / "mine.txt") == written


def test_a_corpus_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(BadInput, match="is no text in UTF-8"):
        corpus_text(tmp_path / "bytes")
    with pytest.raises(BadInput, match="nothing cannot be read: No such file"):
        corpus_text(tmp_path / "nothing")
