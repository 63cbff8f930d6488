"""The search is rebuilt from rows: it repeats nothing, keeps to the space, learns from failures."""

import itertools
from collections.abc import Sequence
from dataclasses import replace

import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from canary.search import Search
from domain.engine import Condition, EngineConfig, SearchSpace, Value
from domain.study import (
    Block,
    Failure,
    FailureKind,
    Measurement,
    Objective,
    Trial,
    TrialPurpose,
    TrialState,
)
from tests.fakes.records import knob

SPACE = SearchSpace(
    knobs=(
        knob("speculative_method", ("none", "mtp", "ngram")),
        knob(
            "num_speculative_tokens",
            (1, 2, 3),
            only_if=(Condition("speculative_method", ("mtp", "ngram")),),
        ),
        knob("async_scheduling", (False, True)),
        knob("max_num_seqs", (64, 128, 256, 512)),
        knob("kv_cache_dtype", ("auto", "fp8"), lossy_values=("fp8",)),
    )
)
FEASIBLE = (1 + 2 * 3) * 2  # Of the first three knobs.
BASELINE = EngineConfig.of({"max_num_seqs": 128})


def config(**values: Value) -> EngineConfig:
    return EngineConfig.of({**BASELINE.as_dict(), **values})


def search(seed: int = 1, space: SearchSpace = SPACE) -> Search:
    return Search(space, BASELINE, seed, Objective.GOODPUT)


def measured(
    number: int, tried: EngineConfig, good: int, tokens: float = 1000.0, requests: int = 1000
) -> Trial:
    block = Block(seconds=1.0, requests=requests, good=good, failed=0, output_tokens=tokens)
    measurement = Measurement(
        level="", seed=1, requests=requests, failed=0, blocks=(block,), ttft_ms=(), tpot_ms=()
    )
    return Trial(
        id=f"t{number}",
        study_id="s",
        number=number,
        purpose=TrialPurpose.SEARCH,
        config=tried,
        hypothesis="",
        state=TrialState.MEASURED,
        measurement=measurement,
    )


def failed(
    number: int, tried: EngineConfig, kind: FailureKind = FailureKind.OUT_OF_MEMORY
) -> Trial:
    return Trial(
        id=f"t{number}",
        study_id="s",
        number=number,
        purpose=TrialPurpose.SEARCH,
        config=tried,
        hypothesis="",
        state=TrialState.FAILED,
        failure=Failure(kind=kind, sentence="It failed."),
    )


def goodput(tried: EngineConfig) -> int:
    """A surface with one optimum: mtp with one token, async, 256 sequences."""
    value = 100
    value += 30 if tried.get("speculative_method") == "mtp" else 0
    value -= 10 * ((tried.get("num_speculative_tokens") or 1) - 1)  # type: ignore[operator]
    value += 20 if tried.get("async_scheduling") else 0
    return value + {64: -40, 128: 0, 256: 40, 512: -10}[tried.get("max_num_seqs") or 64]  # type: ignore[index]


def explored(seed: int, budget: int) -> list[Trial]:
    trials = [measured(0, BASELINE, goodput(BASELINE))]
    for number in range(1, budget + 1):
        asked = search(seed).ask(trials, ())
        assert asked is not None
        trials.append(measured(number, asked, goodput(asked)))
    return trials


def test_proposals_come_first_in_order_but_for_tried_and_infeasible_ones() -> None:
    proposals = [
        BASELINE,
        config(num_speculative_tokens=3),
        config(async_scheduling=True, kv_cache_dtype="auto"),
        config(speculative_method="mtp"),
    ]
    first = search().ask((), proposals)
    assert first == config(async_scheduling=True)
    assert search().ask((measured(1, first, 5),), proposals) == config(speculative_method="mtp")


def test_the_same_rows_and_seed_give_the_same_config() -> None:
    trials = explored(3, 8)
    assert search(3).ask(trials, ()) == search(3).ask(trials, ())


def test_the_whole_space_is_walked_once_and_then_nothing_is_left() -> None:
    space = SearchSpace(knobs=SPACE.knobs[:3])
    trials: list[Trial] = []
    while (asked := search(space=space).ask(trials, ())) is not None:
        trials.append(measured(len(trials), asked, goodput(asked)))
        assert len(trials) <= FEASIBLE
    digests = {space.normalised(trial.config).digest for trial in trials}
    assert len(digests) == len(trials) == FEASIBLE - 1  # All but the baseline.


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(min_value=0, max_value=2**31),
    outcomes=st.lists(st.sampled_from([None, *FailureKind]), min_size=1, max_size=6),
)
def test_whatever_happens_a_config_is_new_and_inside_the_space(
    seed: int, outcomes: Sequence[FailureKind | None]
) -> None:
    trials: list[Trial] = []
    for number, outcome in enumerate(outcomes):
        asked = search(seed).ask(trials, ())
        if asked is None:
            break
        assert SPACE.fault(asked) is None
        assert asked == SPACE.normalised(asked)
        settled = [t.config for t in trials if t.failure is None or t.failure.kind.blames_config]
        assert asked not in settled
        trials.append(
            measured(number, asked, 10) if outcome is None else failed(number, asked, outcome)
        )


@pytest.mark.parametrize("kind", [kind for kind in FailureKind if not kind.blames_config])
def test_a_config_that_failed_by_no_fault_of_its_own_may_be_tried_once_more(
    kind: FailureKind,
) -> None:
    wanted = config(async_scheduling=True)
    once = [failed(1, wanted, kind)]
    assert search().ask(once, [wanted]) == wanted
    twice = [*once, failed(2, wanted, kind)]
    assert search().ask(twice, [wanted]) != wanted


def test_a_change_that_failed_twice_and_never_ran_is_avoided() -> None:
    fp8, more = {"kv_cache_dtype": "fp8"}, {"max_num_seqs": 512}
    once = [failed(1, config(**fp8))]
    assert search().ask(once, [config(**fp8, **more)]) == SPACE.normalised(config(**fp8, **more))
    twice = [*once, failed(2, config(**fp8, async_scheduling=True))]
    assert search().ask(twice, [config(**fp8, **more), config(**more)]) == config(**more)
    after = [*twice, measured(3, config(**fp8, speculative_method="mtp"), 5)]
    assert search().ask(after, [config(**fp8, **more)]) == config(**fp8, **more)


@pytest.mark.parametrize("kind", FailureKind)
def test_only_failures_that_a_config_is_to_blame_for_avoid_its_changes(kind: FailureKind) -> None:
    lossy = {"kv_cache_dtype": "fp8"}
    trials = [failed(1, config(**lossy), kind), failed(2, config(**lossy, max_num_seqs=256), kind)]
    wanted = config(**lossy, max_num_seqs=512)
    asked = search().ask(trials, [wanted])
    assert (asked == wanted) is (not kind.blames_config)


@pytest.mark.parametrize("kind", FailureKind)
def test_no_failure_is_a_score(kind: FailureKind) -> None:
    trials = [failed(1, config(async_scheduling=True), kind)]
    assert search().best(trials, Objective.GOODPUT) is None
    slow = measured(2, config(max_num_seqs=256), 0)
    assert search().best([*trials, slow], Objective.GOODPUT) == slow


def test_what_was_measured_before_it_broke_off_is_no_score() -> None:
    whole = measured(1, config(), 10)
    fast = measured(2, config(async_scheduling=True), 90)
    broken = replace(failed(2, fast.config), measurement=fast.measurement)
    assert search().best([whole, broken], Objective.GOODPUT) == whole
    assert search().best([broken], Objective.GOODPUT) is None


def test_want_of_accuracy_blames_lossy_changes_only() -> None:
    fp8 = {"kv_cache_dtype": "fp8", "async_scheduling": True}
    trials = [
        failed(1, config(**fp8), FailureKind.QUALITY),
        failed(2, config(**fp8, max_num_seqs=256), FailureKind.QUALITY),
    ]
    fine = config(async_scheduling=True)
    assert search().ask(trials, [config(**fp8, max_num_seqs=512), fine]) == fine


def test_trials_teach_the_sampler() -> None:
    """In 25 of 112 configs it finds the one best in most runs; random draws would in a fifth."""
    top = goodput(config(speculative_method="mtp", async_scheduling=True, max_num_seqs=256))
    reached = [max(map(goodput, (t.config for t in explored(seed, 25)))) for seed in range(4)]
    assert sorted(reached)[1] == top


def test_a_baseline_with_values_the_space_does_not_know_is_no_hindrance() -> None:
    odd = EngineConfig.of({"max_num_seqs": 100, "seed": 7})
    asked = Search(SPACE, odd, 1, Objective.GOODPUT).ask((measured(0, odd, 5),), ())
    assert asked is not None
    assert SPACE.fault(asked) is None


def test_a_space_of_thousands_is_no_hindrance() -> None:
    many = SearchSpace(knobs=tuple(knob(f"k{i}", (1, 2, 3, 4)) for i in range(12)))
    trials = [failed(i, EngineConfig.of({"k0": 2, f"k{i}": 3})) for i in range(1, 4)]
    asked = search(space=many).ask(trials, ())
    assert asked is not None
    assert asked.get("k0") != 2


def test_optuna_stays_as_loud_as_it_was() -> None:
    before = optuna.logging.get_verbosity()
    search().ask((), ())
    assert optuna.logging.get_verbosity() == before


def test_the_best_is_measured_never_failed_and_of_equals_the_simplest() -> None:
    two = config(async_scheduling=True, max_num_seqs=256)
    one = config(max_num_seqs=256)
    trials = [
        measured(0, BASELINE, 500),
        measured(1, two, 1000),
        measured(2, one, 995),
        failed(3, config(max_num_seqs=512)),
    ]
    for order in itertools.permutations(trials):
        best = search().best(order, Objective.GOODPUT)
        assert best is not None
        assert best.config == one
    assert search().best([trials[3]], Objective.GOODPUT) is None
    assert search().best([], Objective.GOODPUT) is None


def test_the_best_by_throughput_can_be_another() -> None:
    trials = [measured(1, BASELINE, 900), measured(2, config(max_num_seqs=256), 500, tokens=1500.0)]
    by_goodput = search().best(trials, Objective.GOODPUT)
    by_tokens = search().best(trials, Objective.THROUGHPUT)
    assert by_goodput is not None and by_goodput.number == 1
    assert by_tokens is not None and by_tokens.number == 2


def test_what_nobody_knows_the_latency_of_is_never_the_best_and_teaches_nothing() -> None:
    older = measured(1, config(max_num_seqs=256), 900, tokens=9000.0)
    slow = measured(2, config(max_num_seqs=512), 1)
    assert slow.measurement is not None
    (block,) = slow.measurement.blocks
    known = replace(block, waited_s=1e6)
    slow = replace(slow, measurement=replace(slow.measurement, blocks=(known,)))
    by_latency = Search(SPACE, BASELINE, 1, Objective.LATENCY)
    assert by_latency.best([older, slow], Objective.LATENCY) == slow
    assert by_latency.best([older], Objective.LATENCY) is None
    assert by_latency.ask([older], ()) not in (None, older.config)


def test_lossy_configs_can_be_left_out() -> None:
    trials = [measured(0, BASELINE, 5), measured(1, config(kv_cache_dtype="fp8"), 9)]
    lossless = search().best(trials, Objective.GOODPUT, lossy_allowed=False)
    anything = search().best(trials, Objective.GOODPUT)
    assert lossless is not None and lossless.number == 0
    assert anything is not None and anything.number == 1


def test_nothing_good_at_all_leaves_the_baseline_best() -> None:
    trials = [measured(1, config(max_num_seqs=256), 0), measured(2, BASELINE, 0)]
    best = search().best(trials, Objective.GOODPUT)
    assert best is not None and best.config == BASELINE
