"""What a simulated engine settles to under a closed load, by arithmetic instead of iterations.

A search benchmark asks for the same figure of thousands of configs, and playing one in virtual time
takes seconds. This takes the simulator's own memory layout and cost of an iteration and works out
the mean iteration of the steady state. A test holds it against the same engine played in virtual
time. Pure.
"""

from __future__ import annotations

from typing import NamedTuple

from serving.simulator import performance
from serving.simulator.performance import Work
from serving.simulator.profile import Profile
from serving.simulator.startup import Started, thresholds


class Load(NamedTuple):
    """Streams at once, and the mean tokens of a request; ``shared`` ones begin every prompt."""

    streams: int
    isl: int
    osl: int
    shared: int = 0


class Steady(NamedTuple):
    """Figures of the steady state. Rates are shares of 1, ``preemptions`` is per request."""

    tok_s: float
    ttft_ms: float
    tpot_ms: float
    running: float
    kv_cache_usage: float
    hit_rate: float
    acceptance: float | None
    preemptions: float


def steady(profile: Profile, started: Started, load: Load) -> Steady | None:
    """The steady state; ``None`` where the engine runs out of memory on the way to it."""
    setup, block = started.setup, profile.memory.block_tokens
    chances = thresholds(profile, setup)
    width, tokens_a_step = 1 + setup.drafts, 1 + sum(chances)
    kept = load.shared // block * block if setup.prefix_caching else 0
    room = started.blocks * block - kept
    mean_tokens = load.isl - kept + load.osl / 2 + block
    seats = min(load.streams, setup.max_num_seqs)
    running = max(1.0, min(seats, room / mean_tokens))
    crowd = Work(decoding=int(running), prefilling=0, prefill_tokens=0, context_tokens=0)
    peak_gb = performance.peak_gb(profile.memory, setup, crowd)
    if peak_gb > performance.room_gb(profile.memory, setup):
        return None
    # Where memory is short requests are admitted too early, preempted and computed anew.
    anew = load.osl / (2 * (mean_tokens + load.osl / 2)) if running < seats else 0.0
    prompt = (load.isl - kept) + anew * mean_tokens
    decodes = max((load.osl - 1) / tokens_a_step, 1.0)
    budget = setup.max_num_batched_tokens
    reads = max(1.0, prompt / max(budget - width * running, 1.0))
    cycle = max(decodes + reads, running * (prompt + width * decodes) / budget)
    decoding = running * decodes / cycle
    work = Work(
        decoding=round(decoding),
        prefilling=round(running * max(1.0, prompt / budget) / cycle),
        prefill_tokens=round(running * prompt / cycle),
        context_tokens=round(decoding * (load.isl + load.osl / 2)),
    )
    step_s = performance.iteration_s(profile, setup, work)
    cycle_s = cycle * step_s
    return Steady(
        tok_s=running * load.osl / cycle_s,
        ttft_ms=1000 * ((load.streams / running - 1) * cycle_s + (cycle - decodes) * step_s),
        tpot_ms=1000 * decodes * step_s / max(load.osl - 1, 1),
        running=running,
        kv_cache_usage=min(1.0, (running * mean_tokens + kept) / (started.blocks * block)),
        hit_rate=kept / load.isl,
        acceptance=sum(chances) / setup.drafts if setup.drafts else None,
        preemptions=anew,
    )
