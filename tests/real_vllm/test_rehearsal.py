"""A trial of the real vLLM with a real language model: started, measured, stopped."""

from pathlib import Path

import pytest

from domain.study import TrialState
from tests.fakes import real_vllm
from tests.fakes.real_vllm import Lane

pytestmark = real_vllm.needs_real_vllm


async def test_a_trial_is_measured(tmp_path: Path) -> None:
    lane = Lane(tmp_path, "smollm2-135m")
    plan = real_vllm.plan(streams=4, sessions=8, turns=3, isl=128, osl=16)
    trial = await lane.trial({"max_num_seqs": 8, "VLLM_CPU_OMP_THREADS_BIND": "0-1"}, plan)
    await lane.close()
    assert trial.state is TrialState.MEASURED, trial.failure
    measured = trial.measurement
    assert measured is not None
    assert (measured.requests, measured.failed) == (24, 0)
    assert sum(block.good for block in measured.blocks) == 24
    assert measured.output_tok_s * measured.seconds == pytest.approx(24 * 16)
    assert len(measured.ttft_ms) == len(measured.tpot_ms) == 24
    assert min(*measured.ttft_ms, *measured.tpot_ms) > 0
    assert measured.preemptions == 0
