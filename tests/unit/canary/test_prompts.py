"""Plans look like the shape they were made of, and never meet an older plan's cache."""

import itertools
import math
from statistics import mean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from canary.prompts import agents, ideal_hit_rate, synthesise
from domain.errors import BadInput
from domain.load import Arrival, LoadPlan
from domain.traffic import Distribution, Latencies, TrafficShape

BLOCK = 16
BOUNDS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000)


def spread(low: int, high: int) -> Distribution:
    return Distribution.of_values(range(low, high), BOUNDS)


def shape(
    isl: Distribution | None = None,
    osl: Distribution | None = None,
    hit_rate: float | None = None,
) -> TrafficShape:
    return TrafficShape(
        model="m",
        end_s=0.0,
        window_s=300.0,
        requests=1000.0,
        rate_rps=3.0,
        running=8.0,
        waiting=0.0,
        isl=isl or spread(100, 900),
        osl=osl or spread(20, 180),
        latencies=Latencies(),
        prefix_hit_rate=hit_rate,
    )


def planned(of: TrafficShape, *, seed: int = 1, **options: object) -> LoadPlan:
    settings_ = {"concurrency": 8, "warm_up_s": 5.0, "duration_s": 20.0, "level": "8", **options}
    return synthesise(of, seed=seed, **settings_)


def prompts(plan: LoadPlan) -> list[tuple[int, ...]]:
    return [turn.prompt for session in plan.sessions for turn in session.turns]


@pytest.mark.parametrize(
    ("isl", "osl"),
    [
        (spread(100, 900), spread(20, 180)),
        (spread(1000, 4000), spread(1, 50)),
        (Distribution.of_values([512] * 50, BOUNDS), Distribution.of_values([512] * 50, BOUNDS)),
        (Distribution.of_values([100, 4000] * 50, BOUNDS), spread(100, 101)),
    ],
)
def test_lengths_fill_the_shapes_buckets_with_its_mean(
    isl: Distribution, osl: Distribution
) -> None:
    turns = [turn for s in planned(shape(isl, osl)).sessions for turn in s.turns]
    for wanted, values in ((isl, [t.isl for t in turns]), (osl, [t.osl for t in turns])):
        got = Distribution.of_values(values, BOUNDS)
        for live, made in zip(wanted.cumulative(), got.cumulative(), strict=True):
            assert made == pytest.approx(live, abs=0.02)
        assert got.mean == pytest.approx(wanted.mean, rel=0.04)


def test_quantiles_are_near_the_shapes() -> None:
    of = shape()
    turns = [turn for s in planned(of).sessions for turn in s.turns]
    for wanted, values in (
        (of.isl, sorted(t.isl for t in turns)),
        (of.osl, sorted(t.osl for t in turns)),
    ):
        for q in (0.1, 0.5, 0.9):
            assert values[int(q * len(values))] == pytest.approx(wanted.quantile(q), rel=0.1)


@pytest.mark.parametrize("hit_rate", [0.05, 0.3, 0.6, 0.85, 0.95])
@pytest.mark.parametrize("turns", [1, 4, 10])
def test_prefixes_are_shared_as_often_as_live(hit_rate: float, turns: int) -> None:
    plan = planned(shape(spread(600, 3000), hit_rate=hit_rate), turns=turns)
    assert ideal_hit_rate(plan) == pytest.approx(hit_rate, abs=0.03)


@pytest.mark.parametrize("arrival", Arrival)
@pytest.mark.parametrize("block_tokens", [128, 528])
def test_prefixes_are_shared_as_often_as_live_in_the_blocks_of_the_engine(
    block_tokens: int, arrival: Arrival
) -> None:
    """Live hits of an engine with large blocks were once made for blocks of 16 tokens."""
    of, options = shape(spread(600, 3000), hit_rate=0.6), {"arrival": arrival, "rate_rps": 30.0}
    plan = planned(of, block_tokens=block_tokens, **options)
    assert plan.block_tokens == block_tokens
    assert ideal_hit_rate(plan) == pytest.approx(0.6, abs=0.03)
    if block_tokens == 528:
        assert ideal_hit_rate(planned(of, **options), block_tokens) < 0.6 - 0.05


@pytest.mark.parametrize("hit_rate", [None, 0.0])
def test_an_unknown_or_zero_hit_rate_shares_nothing(hit_rate: float | None) -> None:
    assert ideal_hit_rate(planned(shape(hit_rate=hit_rate))) == 0


def test_one_seed_gives_one_plan() -> None:
    of = shape(hit_rate=0.5)
    assert planned(of, seed=3) == planned(of, seed=3)
    assert planned(of, seed=3) != planned(of, seed=4)


def test_a_fresh_seed_meets_no_block_of_an_old_cache() -> None:
    """vllm#52884, #54227: the same prompts on a warm cache flattered a config by 86-132 %."""
    of = shape(hit_rate=0.8)
    old, new = (
        {
            prompt[start : start + BLOCK]
            for prompt in prompts(planned(of, seed=seed))
            for start in range(0, len(prompt) - BLOCK + 1, BLOCK)
        }
        for seed in (1, 2)
    )
    assert old
    assert not old & new


def test_streams_begin_at_different_turns_and_the_plan_outlasts_a_fast_engine() -> None:
    plan = planned(shape(), concurrency=6, turns=4)
    assert [len(s.turns) for s in plan.sessions[:7]] == [4, 3, 2, 1, 4, 3, 4]
    assert plan.arrival is Arrival.CLOSED
    assert len({s.name for s in plan.sessions}) == len(plan.sessions)
    fastest_s = sum(0.02 + 0.001 * turn.osl for session in plan.sessions for turn in session.turns)
    assert fastest_s / 6 >= plan.duration_s * 0.97


def test_a_plan_stays_small_however_much_is_asked() -> None:
    long = Distribution.of_values([8000] * 9, BOUNDS)
    plan = planned(shape(long, spread(1, 5)), concurrency=64, duration_s=3600.0)
    assert sum(map(len, prompts(plan))) < 11_000_000


def test_requests_fit_the_models_length() -> None:
    plan = planned(shape(spread(1000, 9000), spread(100, 900)), max_model_len=4096)
    assert max(t.isl + t.osl for s in plan.sessions for t in s.turns) <= 4096


def test_tokens_stay_in_the_vocabulary_and_off_the_special_ones() -> None:
    tokens = set(itertools.chain.from_iterable(prompts(planned(shape(), vocabulary=1000))))
    assert (min(tokens), max(tokens)) == (256, 999)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"concurrency": 0}, "needs a stream"),
        ({"turns": 0}, "needs a stream"),
        ({"duration_s": 5.0}, "longer than its warm-up"),
        ({"duration_s": math.inf}, "finite"),
        ({"vocabulary": 300}, "too small"),
    ],
)
def test_bad_sizes_are_refused_with_a_sentence(options: dict, sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        planned(shape(), **options)


def test_a_shape_without_requests_is_refused() -> None:
    with pytest.raises(BadInput, match="no finished request"):
        planned(shape(isl=Distribution.of_values([], BOUNDS)))


@settings(max_examples=40, deadline=None)
@given(
    isl=st.lists(st.integers(1, 20_000), min_size=1, max_size=20),
    osl=st.lists(st.integers(1, 5_000), min_size=1, max_size=20),
    hit_rate=st.one_of(st.none(), st.floats(0, 1)),
    turns=st.integers(1, 6),
    seed=st.integers(0, 2**32),
)
def test_any_shape_gives_a_valid_plan(
    isl: list[int], osl: list[int], hit_rate: float | None, turns: int, seed: int
) -> None:
    of = shape(Distribution.of_values(isl, BOUNDS), Distribution.of_values(osl, BOUNDS), hit_rate)
    plan = planned(of, seed=seed, turns=turns, concurrency=2, duration_s=6.0)
    for session in plan.sessions:
        lengths = [turn.isl for turn in session.turns]
        assert lengths == sorted(lengths)
        assert all(turn.isl >= 1 and turn.osl >= 1 for turn in session.turns)


def test_agents_talk_in_turns_over_one_system_prompt() -> None:
    plan = agents(
        seed=5,
        sessions=40,
        turns=5,
        concurrency=8,
        system_tokens=1000,
        message_tokens=100,
        osl=40,
        think_s=2.0,
    )
    assert plan.duration_s == math.inf
    assert len({prompt[:1000] for prompt in prompts(plan)}) == 1
    for session in plan.sessions:
        for before, after in itertools.pairwise(session.turns):
            assert after.prompt[: before.isl] == before.prompt
            assert after.isl > before.isl + before.osl
    turns = [turn for session in plan.sessions for turn in session.turns]
    assert mean(turn.osl for turn in turns) == pytest.approx(40, rel=0.25)
    assert mean(turn.think_s for turn in turns) == pytest.approx(2.0, rel=0.25)
    assert ideal_hit_rate(plan) > 0.8
    other = agents(seed=6, sessions=1, turns=1, concurrency=1, system_tokens=1000)
    assert other.sessions[0].turns[0].prompt[:16] != turns[0].prompt[:16]
