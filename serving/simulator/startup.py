"""Whether a config starts on a profile: the checks vLLM makes, in its order, and its own words.

Pure: it returns log lines and a number of KV blocks, and prints nothing.
"""

from __future__ import annotations

from typing import NamedTuple

from domain.engine import EngineConfig
from serving.simulator import performance
from serving.simulator.profile import Profile
from serving.simulator.setup import KVType, Method, Setup, StateType

OUT_OF_MEMORY = "torch.OutOfMemoryError: CUDA out of memory."


class Started(NamedTuple):
    """``blocks`` of the profile's ``block_tokens`` tokens each make up the KV cache."""

    setup: Setup
    blocks: int


class NotStarted(NamedTuple):
    """The last lines that vLLM would log before it exits."""

    log: tuple[str, ...]


def start(profile: Profile, config: EngineConfig) -> Started | NotStarted:
    """Resolve the config and lay out the memory, or say why the engine cannot start."""
    try:
        setup = Setup.of(config, profile.hardware.kind)
    except ValueError as error:
        return NotStarted((f"ValueError: {error}",))
    fault = _refused(profile, setup)
    if fault is None:
        blocks = _blocks(profile, setup)
        if isinstance(blocks, int):
            return Started(setup, blocks)
        fault = blocks
    return NotStarted(
        (
            "ERROR [core.py] EngineCore failed to start.",
            f"ERROR [core.py] {fault}",
            fault,
            "RuntimeError: Engine core initialization failed. See root cause above.",
        )
    )


def _refused(profile: Profile, setup: Setup) -> str | None:
    if setup.method is Method.MTP and not profile.facts.mtp_head:
        return "NotImplementedError: Unsupported speculative method: 'mtp'"
    if setup.method is Method.NGRAM and setup.async_scheduling:
        return "ValueError: async scheduling is not supported with ngram speculative decoding"
    if setup.method is not Method.NONE and setup.drafts > len(_acceptance(profile, setup)):
        return f"ValueError: num_speculative_tokens {setup.drafts} is not supported by this model"
    if setup.stochastic_rounding and setup.state is not StateType.FLOAT16:
        return "ValueError: stochastic rounding requires --mamba-ssm-cache-dtype float16"
    if setup.max_num_batched_tokens < setup.max_num_seqs:
        return (
            f"ValueError: max_num_batched_tokens ({setup.max_num_batched_tokens}) must be greater "
            f"than or equal to max_num_seqs ({setup.max_num_seqs})."
        )
    if not 0 < setup.memory_share <= 1:
        return "ValueError: gpu_memory_utilization must be above 0 and at most 1"
    return None


def _acceptance(profile: Profile, setup: Setup) -> tuple[float, ...]:
    return profile.acceptance.mtp if setup.method is Method.MTP else profile.acceptance.ngram


def thresholds(profile: Profile, setup: Setup) -> tuple[float, ...]:
    """Probabilities that at least ``k``, …, 2, 1 drafts of ``k`` are accepted: they rise."""
    falling = []
    chance = 1.0
    for accepted in _acceptance(profile, setup)[: setup.drafts]:
        chance *= accepted
        falling.append(chance)
    return tuple(reversed(falling))


def _blocks(profile: Profile, setup: Setup) -> int | str:
    """Blocks for the KV cache, or the error of a memory that is too small."""
    memory = profile.memory
    idle = performance.Work(decoding=0, prefilling=0, prefill_tokens=0, context_tokens=0)
    if performance.peak_gb(memory, setup, idle) > performance.room_gb(memory, setup):
        return f"{OUT_OF_MEMORY} Tried to allocate {memory.outside_gb:.2f} GiB while loading."
    free_gb = (
        memory.gpu_gb * setup.memory_share
        - memory.weights_gb
        - memory.activation_kb_per_token * setup.max_num_batched_tokens / 1e6
    )
    half = 0.5 if setup.state is StateType.FLOAT16 else 1.0
    state_gb = memory.state_mb * half * (1 + setup.drafts) / 1000 if profile.facts.hybrid else 0.0
    if setup.max_num_seqs * state_gb > free_gb:
        return (
            f"ValueError: max_num_seqs ({setup.max_num_seqs}) exceeds available Mamba cache blocks "
            f"({max(0, int(free_gb / state_gb))}). Please lower max_num_seqs or increase "
            "gpu_memory_utilization."
        )
    kv_half = 0.5 if setup.kv is KVType.FP8 else 1.0
    token_gb = memory.kv_kb_per_token * kv_half / 1e6
    pool_gb = free_gb - setup.max_num_seqs * state_gb
    length = profile.facts.max_model_len or 0
    if length * token_gb > pool_gb:
        return (
            f"ValueError: To serve at least one request with the model's max seq len ({length}), "
            f"{length * token_gb:.2f} GiB KV cache is needed, which is larger than the available "
            f"KV cache memory ({max(pool_gb, 0):.2f} GiB)."
        )
    return int(pool_gb / (token_gb * memory.block_tokens))
