"""The simulated engine's scheduler, block cache, memory and answers."""

import random
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.engine import EngineConfig, Value
from domain.errors import BadInput
from serving.hardware import HardwareClass
from serving.simulator import answers, faults, performance, profile, startup
from serving.simulator.blocks import Blocks, chain
from serving.simulator.performance import Work
from serving.simulator.scheduler import Batch, Finish, Request, Scheduler
from serving.simulator.setup import Setup
from serving.simulator.startup import NotStarted, Started

DEMO = profile.load("demo-hybrid")
STATION = profile.load("dgx-station-hybrid")


def setup(**values: Value) -> Setup:
    return Setup.of(EngineConfig.of(values), HardwareClass.GPU_160_GIB)


def scheduler(
    *, blocks: int = 1000, thresholds: tuple[float, ...] = (), **values: Value
) -> Scheduler:
    return Scheduler(setup(**values), blocks, 16, thresholds, seed=3)


def until_idle(engine: Scheduler, most: int = 10_000) -> list[Batch]:
    batches = []
    while engine.busy:
        batches.append(engine.plan(float(len(batches))))
        engine.complete(batches[-1], len(batches))
        assert engine.blocks.used <= engine.blocks.capacity
        assert len(batches) < most
    assert engine.blocks.used == 0
    return batches


def test_a_long_prompt_is_computed_in_chunks_beside_running_requests() -> None:
    engine = scheduler(max_num_batched_tokens=2048)
    first = Request(range(100), 50, 0.0)
    engine.add(first)
    engine.complete(engine.plan(0.0), 1.0)
    engine.add(Request(range(1000, 6000), 1, 1.0))
    batches = until_idle(engine)
    assert [batch.work.prefill_tokens for batch in batches[:4]] == [2047, 2047, 906, 0]
    assert all(first in batch.decodes for batch in batches[:4])


def test_no_more_sequences_run_than_allowed() -> None:
    engine = scheduler(max_num_seqs=16)
    for i in range(40):
        engine.add(Request((i,), 5, 0.0))
    batches = until_idle(engine)
    assert max(len(b.decodes) + len(b.chunks) for b in batches) == 16
    assert engine.requests == 40


def test_a_full_cache_preempts_the_youngest_and_every_request_still_ends() -> None:
    engine = scheduler(blocks=20, enable_prefix_caching=False)
    requests = [Request(range(64), 100, 0.0) for _ in range(4)]
    for request in requests:
        engine.add(request)
    until_idle(engine)
    assert engine.preemptions > 0
    assert requests[0].preemptions == 0
    assert [r.generated for r in requests] == [100] * 4
    assert engine.generation_tokens == 400


def test_a_shared_prefix_is_computed_once_until_it_is_evicted_or_forgotten() -> None:
    engine = scheduler(blocks=30)
    prompt = tuple(range(160))
    engine.add(Request(prompt, 1, 0.0))
    until_idle(engine)
    engine.add(Request(prompt, 1, 0.0))
    [batch] = until_idle(engine)
    assert batch.work.prefill_tokens == 16
    engine.add(Request(range(1000, 1400), 1, 0.0))
    until_idle(engine)
    engine.add(Request(prompt, 1, 0.0))
    [batch] = until_idle(engine)
    assert batch.work.prefill_tokens > 16
    assert engine.blocks.forget()
    assert engine.blocks.leading(chain(prompt, 16)) == 0
    counters = engine.counters()
    assert counters.prefix_queries == 160 * 3 + 400
    assert counters.prefix_hits is not None
    assert 144 <= counters.prefix_hits < 288


def test_a_prefix_in_use_is_not_forgotten() -> None:
    engine = scheduler()
    engine.add(Request(range(100), 10, 0.0))
    engine.complete(engine.plan(0.0), 1.0)
    assert not engine.blocks.forget()


def test_without_prefix_caching_nothing_is_shared_nor_counted() -> None:
    engine = scheduler(enable_prefix_caching=False)
    for _ in range(2):
        engine.add(Request(range(160), 1, 0.0))
        [batch] = until_idle(engine)
        assert batch.work.prefill_tokens == 160
    assert engine.counters().prefix_queries is None


def test_accepted_drafts_follow_their_probabilities_and_never_exceed_the_answer() -> None:
    engine = scheduler(
        thresholds=(0.336, 0.56, 0.8), speculative_method="mtp", num_speculative_tokens=3
    )
    requests = [Request((i,), 301, 0.0) for i in range(50)]
    for request in requests:
        engine.add(request)
    until_idle(engine)
    assert {r.generated for r in requests} == {301}
    shares = [n / engine.drafts for n in engine.accepted_by_position]
    assert shares == pytest.approx([0.8, 0.56, 0.336], abs=0.02)
    counters = engine.counters()
    assert counters.draft_tokens == 3 * engine.drafts
    assert counters.accepted_tokens == sum(engine.accepted_by_position)


def test_an_aborted_request_leaves_and_gives_its_blocks_back() -> None:
    engine = scheduler(max_num_seqs=16)
    requests = [Request((i,), 50, 0.0) for i in range(20)]
    for request in requests:
        engine.add(request)
    batch = engine.plan(0.0)
    engine.abort(requests[3])
    engine.abort(requests[19])
    engine.abort(requests[3])
    engine.complete(batch, 1.0)
    assert requests[3].finish is Finish.ABORT
    assert requests[3].generated == 0
    until_idle(engine)
    assert engine.requests == 18


@given(
    lengths=st.lists(st.tuples(st.integers(1, 200), st.integers(1, 60)), min_size=1, max_size=25),
    aborts=st.sets(st.integers(0, 24)),
    seed=st.integers(0, 99),
)
def test_whatever_arrives_and_leaves_every_request_ends_and_no_block_is_lost(
    lengths: list[tuple[int, int]], aborts: set[int], seed: int
) -> None:
    draw = random.Random(seed)
    engine = scheduler(blocks=20, max_num_seqs=16)
    requests = [Request([draw.randrange(2)] * isl, osl, 0.0) for isl, osl in lengths]
    for now, request in enumerate(requests):
        engine.add(request)
        batch = engine.plan(now)
        if now in aborts:
            engine.abort(draw.choice(requests[: now + 1]))
        engine.complete(batch, now + 0.5)
    until_idle(engine)
    for request in requests:
        assert request.finish is not None
        assert request.generated == request.osl or request.finish is Finish.ABORT


def test_blocks_never_exceed_their_capacity() -> None:
    blocks = Blocks(4)
    assert blocks.take((), 3)
    assert all(blocks.publish(key) for key in (1, 2, 3))
    blocks.release((1, 2, 3), 0)
    assert not blocks.take((1,), 4)
    assert blocks.take((), 2)
    assert blocks.leading((1, 2, 3)) == 2
    assert blocks.usage == 0.5


def iteration(work: Work, **values: Value) -> float:
    return performance.iteration_s(DEMO, setup(**values), work)


def test_async_scheduling_hides_the_host_behind_the_gpu() -> None:
    work = Work(48, 0, 0, 30_000)
    assert iteration(work, async_scheduling=True) < iteration(work)


def test_an_iteration_of_the_demo_is_never_shorter_than_15_ms() -> None:
    config: dict[str, Value] = {"async_scheduling": True, "OMP_NUM_THREADS": 1}
    assert iteration(Work(1, 0, 0, 10), **config) >= 0.015


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (
            {
                "gpu_memory_utilization": 0.8,
                "max_num_seqs": 1024,
                "max_num_batched_tokens": 16_384,
                "num_speculative_tokens": 4,
                "speculative_method": "mtp",
            },
            "Mamba cache blocks",
        ),
        ({"speculative_method": "ngram", "async_scheduling": True}, "ValueError: async"),
        ({"enable_mamba_cache_stochastic_rounding": True}, "requires --mamba-ssm-cache-dtype"),
        ({"mamba_backend": "vulkan"}, "'vulkan' is not a valid Backend"),
        ({"max_num_batched_tokens": 128}, "must be greater than or equal to max_num_seqs"),
        ({"gpu_memory_utilization": 1.5}, "gpu_memory_utilization"),
        ({"gpu_memory_utilization": 0.97}, "torch.OutOfMemoryError: CUDA out of memory"),
    ],
)
def test_some_configs_do_not_start(values: dict[str, Value], words: str) -> None:
    drafts: dict[str, Value] = (
        {"num_speculative_tokens": 4} if "speculative_method" in values else {}
    )
    outcome = startup.start(DEMO, EngineConfig.of({**drafts, **values}))
    assert isinstance(outcome, NotStarted)
    assert words in "\n".join(outcome.log)


def test_a_model_without_a_head_does_not_start_with_mtp() -> None:
    headless = replace(DEMO, facts=replace(DEMO.facts, mtp_head=False))
    outcome = startup.start(headless, EngineConfig.of({"speculative_method": "mtp"}))
    assert isinstance(outcome, NotStarted)
    assert "Unsupported speculative method" in outcome.log[-2]


def test_half_the_precision_leaves_more_room_for_the_cache() -> None:
    def blocks(**values: Value) -> int:
        outcome = startup.start(STATION, EngineConfig.of(values))
        assert isinstance(outcome, Started)
        return outcome.blocks

    assert blocks(mamba_ssm_cache_dtype="float16") > blocks()
    assert blocks(kv_cache_dtype="fp8") == pytest.approx(2 * blocks(), rel=0.001)


def ask(text: str, *, wrong: float = 0.0, max_tokens: int = 64, eos: bool = True) -> str:
    given = answers.answer(answers.tokens(text), text, max_tokens, not eos, wrong, "salt")
    return given.text(0, given.osl)


@pytest.mark.parametrize(
    ("question", "result"), [("17 + 25 - 3", 39), ("-4+1", -3), ("8 - 20 - 1", -13), ("7", 7)]
)
def test_sums_are_answered(question: str, result: int) -> None:
    text = ask(f'Compute {question}. End with "Answer: N".')
    assert text.endswith(f" Answer: {result}")
    assert ask(f"Compute {question}.", wrong=1.0).rpartition(" ")[2] in (
        str(result - 1),
        str(result + 1),
    )


def test_lossy_state_errs_as_often_as_the_profile_says() -> None:
    chance = answers.wrong_chance(DEMO.wrong, setup(mamba_ssm_cache_dtype="float16"))
    wrong = sum(
        not ask(f"Compute {i} + 1.", wrong=chance).endswith(f" {i + 1}") for i in range(2000)
    )
    assert wrong / 2000 == pytest.approx(0.15, abs=0.03)
    assert answers.wrong_chance(DEMO.wrong, setup()) == 0
    rounded = setup(mamba_ssm_cache_dtype="float16", enable_mamba_cache_stochastic_rounding=True)
    assert 0 < answers.wrong_chance(DEMO.wrong, rounded) <= 0.005


def test_an_answer_is_the_same_in_pieces_and_has_the_asked_length() -> None:
    given = answers.answer((1, 2, 3), "", 40, False, 0.0, "")
    assert (given.osl, given.ends) == (40, Finish.LENGTH)
    whole = given.text(0, 40)
    assert whole == "".join(given.text(i, i + 4) for i in range(0, 40, 4))
    assert len(whole.split()) == 40
    sums = answers.answer((1,), "Compute 1 + 1.", 3, False, 0.0, "")
    assert (sums.osl, sums.ends) == (3, Finish.LENGTH)


def test_faults_are_read_from_text() -> None:
    assert faults.parse("slow") == (faults.Fault.SLOW, 0)
    assert faults.parse("oom_under_load:12") == (faults.Fault.OOM_UNDER_LOAD, 12)
    for text in ("flood", "slow:soon"):
        with pytest.raises(BadInput, match=r"is not a fault.*\(known: start_failure, "):
            faults.parse(text)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (("weights_ms = 16.0", ""), r"needs timing\.weights_ms"),
        (("weights_ms = 16.0", "weights_ms = 1\nspeed = 2"), r"has an unknown timing\.speed"),
        (("weights_ms = 16.0", 'weights_ms = "1"'), r"has no number at timing\.weights_ms"),
        (("start_s = 1.5", ""), "needs start_s"),
        (("start_s = 1.5", "start_s"), "is not TOML"),
    ],
)
def test_a_faulty_profile_is_refused(
    change: tuple[str, str], sentence: str, tmp_path: Path
) -> None:
    source = Path(profile.__file__).parent / "profiles" / "demo-hybrid.toml"
    (tmp_path / "mine.toml").write_text(source.read_text().replace(*change))
    with pytest.raises(BadInput, match=sentence):
        profile.load(str(tmp_path / "mine.toml"))


def test_an_unknown_profile_is_refused_by_naming_the_known_ones() -> None:
    with pytest.raises(BadInput, match=r"\(known: demo-hybrid, dgx-station-hybrid, or a \.toml"):
        profile.load("nothing")
