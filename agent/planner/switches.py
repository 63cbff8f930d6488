"""The switches that are known to matter, each with its reason: what the rulebook plans with.

Pure. A switch is one knob, or the few knobs that only make sense together. Whether it is tried,
and in which order, is the rulebook's; whether it is allowed is the search space's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from agent.planner.diagnosis import POOR_ACCEPTANCE, Bottleneck, Diagnosis, Figures
from agent.planner.history import Changes
from domain.engine import EngineConfig, Knob, SearchSpace, Value, is_number

MANY_STREAMS = 64
"""Streams at once from which the GPU is busy enough that checking long drafts does not pay."""

FEW_STREAMS = 8
"""Streams at once up to which even drafts looked up in the prompt are worth their check."""


class Metric(Enum):
    """The metric a proposal should move, named as measurements name it."""

    OUTPUT_TOK_S = "output_tok_s"
    GOODPUT_RPS = "goodput_rps"
    STREAM_RPS = "stream_rps"
    TTFT_MS = "ttft_ms"
    TPOT_MS = "tpot_ms"


class Role(Enum):
    """BELIEVED switches go into the first stack; the others are tried one at a time, in this
    order: OTHER_SETTING of a believed one, LOSSY, TUNING."""

    BELIEVED = 0
    OTHER_SETTING = 1
    LOSSY = 2
    TUNING = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """What it changes, also as ``knob=value`` to be read, and why that should help which metric.

    A change to ``None`` returns a knob to its default.
    """

    changes: Changes
    shown: str
    why: str
    metric: Metric
    role: Role


class Scene(NamedTuple):
    """All that a rule may look at; ``current`` is the config it would be applied to."""

    space: SearchSpace
    diagnosis: Diagnosis
    seen: Figures
    current: EngineConfig


def known_switches(scene: Scene) -> tuple[Switch, ...]:
    """The switches that this space allows and this traffic speaks for, the most trusted first."""
    found = [switch for rule in _RULES for switch in rule(scene)]
    return tuple(sorted(found, key=lambda switch: switch.role.value))


def _switch(
    scene: Scene,
    wanted: Mapping[str, Value],
    why: str,
    metric: Metric = Metric.OUTPUT_TOK_S,
    role: Role = Role.TUNING,
    where_known: Mapping[str, Value] | None = None,
) -> Iterator[Switch]:
    """The switch in the space's own values; none where a wanted knob or value is missing."""
    changes: dict[str, Value | None] = {}
    shown = []
    for name, value in {**wanted, **(where_known or {})}.items():
        knob = scene.space.knob(name)
        fitting = None if knob is None else _fitting(knob, value)
        if knob is not None and fitting is not None:
            changes[name] = None if fitting == knob.default else fitting
            shown.append(f"{name}={fitting}")
        elif name in wanted:
            return
    yield Switch(
        changes=frozenset(changes.items()),
        shown=" ".join(shown),
        why=why,
        metric=metric,
        role=role,
    )


def _fitting(knob: Knob, value: Value) -> Value | None:
    """The knob's own value for ``value``, which may be spelt otherwise ("1", 1; "true", True)."""
    spelt = str(value).lower()
    return next((own for own in knob.domain if str(own).lower() == spelt), None)


def _steps(scene: Scene, name: str) -> tuple[list[Value], list[Value]]:
    """The knob's values below the one in force, nearest first, and those above it likewise."""
    knob, now = scene.space.knob(name), scene.space.effective(scene.current, name)
    if knob is None or not is_number(now):
        return [], []
    numbers = sorted(value for value in knob.domain if is_number(value))
    below: list[Value] = [value for value in reversed(numbers) if value < now]
    return below, [value for value in numbers if value > now]


def _drafts(scene: Scene) -> Iterator[Switch]:
    streams, acceptance = scene.seen.streams, scene.seen.acceptance
    wasted = acceptance is not None and acceptance < POOR_ACCEPTANCE
    load = f"{streams:.0f} requests at once"
    if wasted:
        expected, because = 1, f"as only {acceptance:.0%} of drafted tokens are accepted"
    elif streams > MANY_STREAMS:
        expected, because = 1, f"as {load} leave a GPU little room to check more"
    else:
        expected, because = 3, f"as {load} leave a GPU room to check several"
    for count in (1, 3):
        doubt = f"should {load} leave a GPU {'less' if count == 1 else 'more'} room than expected"
        yield from _switch(
            scene,
            {"speculative_method": "mtp", "num_speculative_tokens": count},
            f"the model's own head drafts {count} token{'s' if count > 1 else ''} a step, "
            f"{because if count == expected else doubt}",
            role=Role.BELIEVED if count == expected else Role.OTHER_SETTING,
        )


def _lookup_drafts(scene: Scene) -> Iterator[Switch]:
    """A busy GPU has room for the drafts of the model's own head at most; where there is none, this
    is all the speculation that needs no other model."""
    method, streams = scene.space.knob("speculative_method"), scene.seen.streams
    own_head = method is not None and "mtp" in method.domain
    few = streams <= (FEW_STREAMS if own_head else MANY_STREAMS)
    if own_head and not few:
        return
    yield from _switch(
        scene,
        {"speculative_method": "ngram", "num_speculative_tokens": 3 if few else 1},
        f"drafts looked up in the prompt cost nothing to make, and with {streams:.0f} requests at "
        f"once the GPU has {'room' if few else 'a little room'} to check them",
        role=Role.OTHER_SETTING if few else Role.TUNING,
        where_known={"async_scheduling": False},
    )


def _draft_count(scene: Scene) -> Iterator[Switch]:
    """One draft more and one fewer than now, where there are any."""
    if scene.space.effective(scene.current, "speculative_method") in (None, "none"):
        return
    fewer, more = _steps(scene, "num_speculative_tokens")
    ordered = (fewer, more) if scene.seen.streams > MANY_STREAMS else (more, fewer)
    for values in ordered:
        for value in values[:1]:
            yield from _switch(
                scene,
                {"num_speculative_tokens": value},
                "each draft is accepted less often than the one before it, and which is the last "
                "that pays is only known by trying",
            )


def _no_drafts(scene: Scene) -> Iterator[Switch]:
    if scene.diagnosis.bottleneck is Bottleneck.SPECULATION:
        default = scene.space.knob("num_speculative_tokens")
        yield from _switch(
            scene,
            {"speculative_method": "none"},
            f"only {scene.seen.acceptance or 0.0:.0%} of drafted tokens are accepted",
            role=Role.OTHER_SETTING,
            where_known={} if default is None else {"num_speculative_tokens": default.default},
        )


def _threads(scene: Scene) -> Iterator[Switch]:
    yield from _switch(
        scene,
        {"OMP_NUM_THREADS": 1},
        "the engine's own loop keeps one core busy, and threads that wait for it only take its "
        "time; vLLM itself sets this where several processes share a host",
        role=Role.BELIEVED,
    )


def _scheduling(scene: Scene) -> Iterator[Switch]:
    yield from _switch(
        scene,
        {"async_scheduling": True},
        "the CPU plans the next step while the GPU works on this one",
        role=Role.BELIEVED,
    )


def _cores(scene: Scene) -> Iterator[Switch]:
    knob = scene.space.knob("VLLM_CPU_OMP_THREADS_BIND")
    if knob is None:
        return
    for cores in (cores for cores in knob.domain if cores != knob.default):
        yield from _switch(
            scene,
            {"VLLM_CPU_OMP_THREADS_BIND": cores},
            "vLLM keeps cores free for its front end, which needs little of them",
            role=Role.BELIEVED,
        )


def _precision(scene: Scene) -> Iterator[Switch]:
    yield from _switch(
        scene,
        {"dtype": "float32"},
        "a CPU that cannot multiply in half precision is several times faster in full, and loses "
        "nothing by it",
    )


def _mamba_kernel(scene: Scene) -> Iterator[Switch]:
    yield from _switch(
        scene,
        {"mamba_backend": "flashinfer"},
        "another kernel updates the recurrent state, much faster on some hardware",
        role=Role.BELIEVED,
    )


def _mamba_state(scene: Scene) -> Iterator[Switch]:
    yield from _switch(
        scene,
        {"mamba_ssm_cache_dtype": "float16", "enable_mamba_cache_stochastic_rounding": True},
        "half the bytes of recurrent state move in each step; answers may change, so an "
        "evaluation must pass as well",
        role=Role.LOSSY,
        # Before Blackwell, vLLM's own kernel cannot round so.
        where_known={"mamba_backend": "flashinfer"},
    )


def _prefix_cache(scene: Scene) -> Iterator[Switch]:
    rate = scene.seen.hit_rate
    if rate is None:
        yield from _switch(
            scene,
            {"enable_prefix_caching": True},
            "nobody knows yet how much of the prompts repeats",
            Metric.TTFT_MS,
        )
    elif rate >= 0.1:
        yield from _switch(
            scene,
            {"enable_prefix_caching": True},
            f"{rate:.0%} of prompt tokens need not be computed again",
            Metric.TTFT_MS,
            Role.BELIEVED,
        )


def _no_prefix_cache(scene: Scene) -> Iterator[Switch]:
    """Of the last to be tried: by vLLM's own account a cache that finds nothing costs nearly
    nothing."""
    rate = scene.seen.hit_rate
    if rate is not None and rate < 0.02:
        yield from _switch(
            scene,
            {"enable_prefix_caching": False},
            f"only {rate:.0%} of prompt tokens repeat, so keeping them costs more than it gives",
        )


def _seats(scene: Scene) -> Iterator[Switch]:
    streams, now = scene.seen.streams, scene.space.effective(scene.current, "max_num_seqs")
    _, above = _steps(scene, "max_num_seqs")
    enough = next((n for n in above if float(n) >= streams), above[-1] if above else None)
    if not is_number(now) or streams <= 0:
        return
    if now < streams and enough is not None:
        yield from _switch(
            scene,
            {"max_num_seqs": enough},
            f"{streams:.0f} requests come at once and only {now} may run",
            Metric.TTFT_MS,
            Role.BELIEVED,
        )


def _fewer_seats(scene: Scene) -> Iterator[Switch]:
    """Also of the last: places that nobody takes cost memory alone."""
    streams = scene.seen.streams
    below, _ = _steps(scene, "max_num_seqs")
    if streams > 0 and below and float(below[0]) >= streams:
        yield from _switch(
            scene,
            {"max_num_seqs": min((n for n in below if float(n) >= streams), key=float)},
            f"only {streams:.0f} requests come at once, and unused places take memory",
        )


def _token_budget(scene: Scene) -> Iterator[Switch]:
    below, above = _steps(scene, "max_num_batched_tokens")
    more = (above[:1], "prompts are read in fewer steps, for a lower TTFT", Metric.TTFT_MS)
    less = (below[:1], "running answers wait less for new prompts", Metric.TPOT_MS)
    prefill = scene.diagnosis.bottleneck in (Bottleneck.PREFILL, Bottleneck.SCHEDULER)
    for values, why, metric in (more, less) if prefill else (less, more):
        for value in values:
            yield from _switch(scene, {"max_num_batched_tokens": value}, why, metric)


def _cache_memory(scene: Scene) -> Iterator[Switch]:
    short = scene.diagnosis.bottleneck is Bottleneck.KV_CACHE
    # A hybrid keeps most of what was said in states, and has few layers with a KV cache.
    hybrid = scene.space.knob("mamba_backend") is not None
    _, above = _steps(scene, "gpu_memory_utilization")
    for value in above[:1] if short else ():
        yield from _switch(
            scene, {"gpu_memory_utilization": value}, "the KV cache gets the memory left over"
        )
    gain = (
        "twice as many tokens fit into the KV cache"
        if short
        else "each step reads half the bytes of all that was said so far"
    )
    yield from _switch(
        scene,
        {"kv_cache_dtype": "fp8"},
        f"{gain}; answers may change, so an evaluation must pass as well",
        role=Role.LOSSY if short or not hybrid else Role.TUNING,
    )


def _long_prompts(scene: Scene) -> Iterator[Switch]:
    """Only where prompts differ much: a cap that every prompt exceeds serves nobody."""
    isl = scene.seen.isl or 0.0
    _, caps = _steps(scene, "long_prefill_token_threshold")
    if (cap := next((cap for cap in caps if float(cap) >= 2 * isl > 0), None)) is not None:
        yield from _switch(
            scene,
            {"long_prefill_token_threshold": cap},
            f"prompts of more than {cap} tokens let the others, {isl:.0f} on average, pass",
            Metric.TTFT_MS,
        )


def _blocks(scene: Scene) -> Iterator[Switch]:
    below, _ = _steps(scene, "block_size")
    if (scene.seen.hit_rate or 0.0) >= 0.1 and below:
        yield from _switch(
            scene,
            {"block_size": below[-1]},
            "a shared prefix is found again in whole blocks, so small ones find more of it",
            Metric.TTFT_MS,
        )


def _mode(scene: Scene) -> Iterator[Switch]:
    many = scene.seen.streams > MANY_STREAMS
    yield from _switch(
        scene,
        {"performance_mode": "throughput" if many else "interactivity"},
        f"vLLM's own preset for {'many' if many else 'few'} requests at once",
    )


_RULES = (
    _drafts,
    _threads,
    _scheduling,
    _cores,
    _mamba_kernel,
    _prefix_cache,
    _seats,
    _precision,
    _no_drafts,
    _lookup_drafts,
    _draft_count,
    _mamba_state,
    _cache_memory,
    _token_budget,
    _blocks,
    _long_prompts,
    _mode,
    _fewer_seats,
    _no_prefix_cache,
)
