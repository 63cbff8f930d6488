"""How long one iteration takes, and what memory it needs at its peak. Pure arithmetic.

GPU time is the weights' traffic, plus compute for each position, plus the traffic of attention and
of recurrent states, plus the draft head. Host time is a fixed part and a part for each sequence;
async scheduling hides the shorter of the two behind the longer.
"""

from __future__ import annotations

from typing import NamedTuple

from serving.simulator.profile import Memory, Profile, Timing
from serving.simulator.setup import Backend, KVType, Method, Setup, StateType


class Work(NamedTuple):
    """What one iteration does: sequences that decode, sequences and tokens that prefill, and the
    tokens of context that the decoding ones attend to."""

    decoding: int
    prefilling: int
    prefill_tokens: int
    context_tokens: int


def iteration_s(profile: Profile, setup: Setup, work: Work) -> float:
    """Seconds of one iteration."""
    timing = profile.timing
    gpu_ms = _gpu_ms(timing, setup, work, hybrid=profile.facts.hybrid)
    host_ms = _host_ms(timing, setup, work)
    if setup.async_scheduling:
        return (max(gpu_ms, host_ms) + timing.overlap_ms) / 1000
    return (gpu_ms + host_ms) / 1000


def _gpu_ms(timing: Timing, setup: Setup, work: Work, *, hybrid: bool) -> float:
    positions = work.decoding * (1 + setup.drafts)
    kv_half = 0.5 if setup.kv is KVType.FP8 else 1.0
    cost_us = (
        timing.prefill_us * work.prefill_tokens
        + timing.position_us * positions
        + timing.kv_us_per_ktoken * kv_half * work.context_tokens / 1000
    )
    if hybrid:
        moves = work.prefilling + work.decoding * (1 + timing.state_draft_share * setup.drafts)
        slower = timing.triton_factor if setup.backend is Backend.TRITON else 1.0
        half = 0.5 if setup.state is StateType.FLOAT16 else 1.0
        cost_us += timing.state_us * moves * slower * half
    if setup.method is Method.MTP and work.decoding:
        draft_us = timing.draft_ms * 1000 + timing.draft_sequence_us * work.decoding
        cost_us += setup.drafts * draft_us
    return timing.weights_ms + cost_us / 1000


def _host_ms(timing: Timing, setup: Setup, work: Work) -> float:
    sequences = work.decoding + work.prefilling
    sequence_us = timing.host_sequence_us + timing.host_draft_us * setup.drafts
    if setup.method is Method.NGRAM:
        sequence_us += timing.ngram_sequence_us
    threads = min(setup.threads or timing.host_cores, timing.host_cores)
    crowding = (threads - 1) / max(timing.host_cores - 1, 1)
    factor = 1 + (timing.threads_factor - 1) * crowding
    return factor * (timing.host_ms + sequence_us * sequences / 1000)


def peak_gb(memory: Memory, setup: Setup, work: Work) -> float:
    """Gigabytes that an iteration needs outside the engine's share of the GPU."""
    positions = work.decoding * (1 + setup.drafts)
    return memory.outside_gb + memory.outside_mb_per_position * positions / 1000


def room_gb(memory: Memory, setup: Setup) -> float:
    """Gigabytes that the engine leaves outside its share."""
    return memory.gpu_gb * (1 - setup.memory_share)
