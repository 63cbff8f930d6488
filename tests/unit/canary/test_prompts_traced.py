"""A replayed trace comes at its own times, in its own lengths, and meets its own prefixes again."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from canary.prompts import ideal_hit_rate, replay
from canary.traces import ideal_reuse
from domain.errors import BadInput
from domain.load import Arrival
from domain.trace import Trace, TracedRequest

DISTINCT = tuple(range(1000, 9000))


def request(at_s: float, isl: int | None, blocks: tuple[int, ...] = (), **more) -> TracedRequest:
    return TracedRequest(offset_s=at_s, isl=isl, osl=9, blocks=blocks, **more)


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    """Prompts of blocks whose ids tell all that stands before them, as published traces have."""
    size = draw(st.sampled_from([16, 512]))
    ids: dict[tuple[int, ...], int] = {}
    requests = []
    for at_ms in sorted(draw(st.lists(st.integers(0, 10**6), min_size=1, max_size=12))):
        path = draw(st.lists(st.integers(0, 2), max_size=6))
        whole = len(path) * size
        isl = draw(st.integers(max(1, whole - size + 1), whole + draw(st.integers(0, 40)) + 1))
        blocks = tuple(ids.setdefault(tuple(path[: n + 1]), len(ids)) for n in range(len(path)))
        osl = draw(st.integers(1, 2000))
        requests.append(TracedRequest(offset_s=at_ms / 1000, isl=isl, osl=osl, blocks=blocks))
    return Trace(requests=tuple(requests), block_tokens=size)


@settings(deadline=None)
@given(
    trace=traces(),
    corpus=st.sampled_from([None, DISTINCT]),
    speed=st.sampled_from([0.5, 1.0, 7.0]),
    seed=st.integers(0, 2**32),
)
def test_times_lengths_and_shared_prefixes_are_the_traces(
    trace: Trace, corpus: tuple[int, ...] | None, speed: float, seed: int
) -> None:
    plan = replay(trace, seed=seed, speed=speed, corpus=corpus)
    assert plan.arrival is Arrival.OPEN
    pairs = list(zip(trace.requests, plan.sessions, strict=True))
    for asked, session in pairs:
        (turn,) = session.turns
        assert (session.start_s, turn.isl, turn.osl) == (
            asked.offset_s / speed,
            asked.isl,
            asked.osl,
        )
        assert session.start_s < plan.duration_s
    for asked, session in pairs:
        for other, theirs in pairs:
            if other is asked:
                continue
            alike = 0
            for one, two in zip(asked.blocks, other.blocks, strict=False):
                if one != two:
                    break
                alike += trace.block_tokens
            mine, yours = session.turns[0].prompt, theirs.turns[0].prompt
            alike = min(alike, len(mine), len(yours))
            assert mine[:alike] == yours[:alike]
            if min(len(mine), len(yours)) >= alike + 4:
                assert mine[alike : alike + 4] != yours[alike : alike + 4]


def conversation(n: int) -> Trace:
    """Ten chats over one system prompt of 2 blocks, whose turns add 2 blocks to the first one's 1;
    each prompt ends in 300 tokens of a block of its own."""
    requests = []
    for number in range(10 * n):
        turn, chat = divmod(number, 10)
        own = tuple(100 * (chat + 1) + block for block in range(2 * turn + 1))
        blocks = (0, 1, *own, 10_000 + number)
        requests.append(request(turn + chat / 100, 512 * (len(blocks) - 1) + 300, blocks))
    return Trace(requests=tuple(requests), block_tokens=512)


@pytest.mark.parametrize("corpus", [None, DISTINCT])
def test_the_ideal_reuse_is_the_traces_own(corpus: tuple[int, ...] | None) -> None:
    trace = conversation(5)
    plan = replay(trace, seed=4, corpus=corpus)
    assert ideal_reuse(trace) == pytest.approx((512 * 24 + 1024 * 0.9) / 19420)
    assert ideal_hit_rate(plan) == pytest.approx(ideal_reuse(trace), abs=0.005)


def test_a_prompt_repeats_none_of_its_corpus_while_that_lasts() -> None:
    for session in replay(conversation(6), seed=4, corpus=DISTINCT).sessions:
        prompt = session.turns[0].prompt
        runs = [prompt[at : at + 16] for at in range(len(prompt) - 15)]
        assert len(prompt) < len(DISTINCT)
        assert len(set(runs)) == len(runs)


def test_another_seeds_prompts_share_no_first_block() -> None:
    firsts = [
        {session.turns[0].prompt[:16] for session in replay(conversation(3), **options).sessions}
        for options in ({"seed": 1, "corpus": DISTINCT}, {"seed": 2, "corpus": DISTINCT})
    ]
    assert not firsts[0] & firsts[1]


def test_turns_of_one_conversation_bear_one_name() -> None:
    names = [session.name for session in replay(conversation(3), seed=7).sessions]
    assert len(set(names)) == 10
    assert names[:10] == names[10:20] == names[20:]
    told = Trace(requests=(request(0.0, 5, session="chat"), request(0.0, 5)))
    assert [session.name for session in replay(told, seed=7).sessions] == ["7-chat", "7-1"]


def test_a_window_is_replayed_from_its_own_beginning() -> None:
    plan = replay(conversation(5), seed=1, start_s=2.0, window_s=2.0, speed=4.0, warm_up_s=0.1)
    assert len(plan.sessions) == 20
    assert plan.sessions[10].start_s == 0.25
    assert (plan.warm_up_s, plan.duration_s) == (0.1, 0.5)


def test_what_does_not_fit_the_model_is_clipped_and_said() -> None:
    plan = replay(conversation(5), seed=1, max_model_len=3400, level="mooncake")
    assert plan.level == "mooncake, 30 of 50 clipped to 3400 tokens"
    assert max(s.turns[0].isl + s.turns[0].osl for s in plan.sessions) == 3400
    assert {s.turns[0].osl for s in plan.sessions} == {9}


@pytest.mark.parametrize(
    ("trace", "options", "sentence"),
    [
        (conversation(1), {"speed": 0.0}, "speed above 0"),
        (conversation(1), {"start_s": 9.0}, "0.09 s long, has no request from 9 s on for inf s"),
        (Trace(requests=(request(0.0, None),)), {}, "does not tell all lengths"),
        (
            Trace(requests=(request(0.0, 100_000),) * 100),
            {},
            "10000000 prompt tokens and a plan at most 8000000; choose one 0.80 times as long",
        ),
    ],
)
def test_what_makes_no_plan_is_refused(trace: Trace, options: dict, sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        replay(trace, seed=1, **options)
