"""Hybrid models on the real vLLM: what runs, what fails, and that a failure does not end a search.

The models are tiny and random; the paths that they take through vLLM are those of large ones.
"""

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
import pytest_asyncio

from agent.loads import TrialLength
from agent.planner.rulebook import Rulebook
from agent.rehearsals import Rehearsals, unresolved
from benchmarks.given import TrialList
from benchmarks.small_engine import LONGEST
from domain.study import FailureKind, StudyState, TrialState
from serving import hardware, model_card
from serving.flags import catalogue
from serving.hardware import HardwareClass
from serving.space import search_space
from tests.fakes import real_vllm
from tests.fakes.clock import SystemClock
from tests.fakes.real_vllm import Lane

pytestmark = [real_vllm.needs_real_vllm, pytest.mark.asyncio(loop_scope="module")]

PLAN = real_vllm.plan(streams=2, sessions=8, turns=2, isl=64, osl=8)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def mamba(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Lane]:
    """A lane for a model of Mamba and attention layers."""
    lane = Lane(tmp_path_factory.mktemp("engines"), "tiny-falcon-h1", *real_vllm.RANDOM_WEIGHTS)
    yield lane
    await lane.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def drafting(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Lane]:
    """A lane for a model of recurrent and attention layers that has a prediction head."""
    lane = Lane(tmp_path_factory.mktemp("engines"), "tiny-qwen3-next", *real_vllm.RANDOM_WEIGHTS)
    yield lane
    await lane.close()


@pytest.mark.parametrize("backend", ["cpu", "triton"])
async def test_both_kernels_of_the_recurrent_state_run_on_a_cpu(mamba: Lane, backend: str) -> None:
    trial = await mamba.trial({"mamba_backend": backend}, PLAN)
    assert trial.state is TrialState.MEASURED, trial.failure
    assert trial.measurement is not None
    assert trial.measurement.output_tok_s > 0


async def test_an_unknown_kernel_is_refused_by_name(mamba: Lane) -> None:
    trial = await mamba.trial({"mamba_backend": "steam"}, PLAN)
    assert trial.failure is not None
    assert trial.failure.kind is FailureKind.UNSUPPORTED
    assert "Unknown Mamba SSU backend: 'STEAM'" in trial.failure.sentence


async def test_a_crash_at_the_first_step_is_named_and_the_search_goes_on(drafting: Lane) -> None:
    """Drafting by the model's own head with a prefix cache needs a kernel that a CPU has not."""
    facts = replace(
        model_card.read(real_vllm.HOME / "models" / "tiny-qwen3-next"), max_model_len=LONGEST
    )
    assert facts.hybrid and facts.mtp_head
    knobs = catalogue(hardware=HardwareClass.CPU)
    others = {knob.name for knob in knobs.knobs} - {
        "speculative_method",
        "num_speculative_tokens",
        "enable_prefix_caching",
    }
    log = TrialList()
    rehearsals = Rehearsals(
        log=log,
        planner=Rulebook(),
        space=search_space(knobs, facts, hardware.cpu(), without=others),
        rehearse=drafting.rehearse,
        resolve=unresolved,
        length=TrialLength(
            warm_up_s=0.5,
            measured_s=4.0,
            screened_s=4.0,
            min_requests=8,
            rounds=1,
            max_model_len=LONGEST,
        ),
        fidelity_limit=None,
        clock=SystemClock(),
        new_id=iter(map(str, range(100))).__next__,
    )
    study = real_vllm.study(streams=2, isl=64, osl=8, trials=5)
    conclusion = await rehearsals.graph_for(study).run(study)
    trials = log.trials(study.id)
    crashed = next(t for t in trials if t.config.get("speculative_method") == "mtp")
    assert crashed.failure is not None
    assert crashed.failure.kind is FailureKind.MISSING_KERNEL
    assert "'function' object is not subscriptable" in crashed.failure.sentence
    assert "'function' object is not subscriptable" in crashed.failure.log_tail
    measured = [t for t in trials if t.state is TrialState.MEASURED]
    assert any(trial.number > crashed.number for trial in measured)
    assert conclusion.study.state in (StudyState.RECOMMENDED, StudyState.NOTHING_BETTER)


async def test_without_the_prefix_cache_the_same_drafts_are_measured(drafting: Lane) -> None:
    drafts = {"speculative_method": "mtp", "num_speculative_tokens": 1}
    trial = await drafting.trial({**drafts, "enable_prefix_caching": False}, PLAN)
    assert trial.state is TrialState.MEASURED, trial.failure
    assert trial.measurement is not None
    assert trial.measurement.draft_acceptance is not None
