"""The surfaces that searches run on: the true figure of any config, and what a trial costs.

Nine of them. Seven are simulated: three profiles of a model and its GPU under seven loads, each
figure worked out by ``steady``, so that the best of some hundred thousand configs is known. Two are
a grid of real engines on a CPU, measured once and kept in a file. A figure is worked out once in a
process and remembered.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.given import exactly
from benchmarks.ladder import space_of
from benchmarks.real_vllm import shapes
from benchmarks.steady import Load, Steady, steady
from domain.engine import Condition, EngineConfig, Rule, SearchSpace, Value
from domain.study import Failure, FailureKind
from domain.traffic import Latencies, TrafficShape
from serving import failures
from serving.flags import catalogue
from serving.hardware import Hardware, HardwareClass
from serving.model_card import ModelFacts
from serving.simulator import profile, startup
from serving.simulator.faults import Fault, log_lines
from serving.simulator.profile import Profile
from serving.simulator.startup import NotStarted
from serving.space import search_space

DATA = Path(__file__).parent / "surfaces"
WITHIN = 0.95
"""Share of the best from which a config counts as near it."""

RAMP_S = 10.0
"""Seconds of load after which an engine that is short of memory dies: all streams run by then."""

NOT_TOLD: dict[str, tuple[Value, ...]] = {
    "speculative_method": ("suffix",),  # not simulated: the engine does not start
    "async_scheduling": ("auto",),  # simulated as off
    "mamba_ssm_cache_dtype": ("float32",),  # what "auto" is
    "enable_mamba_cache_stochastic_rounding": (True,),  # costs no time
    "OMP_NUM_THREADS": (0, 2, 4, 8),  # host time only grows with threads
}
"""Values that cannot be faster than another one of their knob: the best is found without them."""


class Length(NamedTuple):
    """Seconds of load of one trial, before measuring and while measuring."""

    warm_up_s: float
    measured_s: float


class Known(NamedTuple):
    """A config that serves: its true figures, and the seconds its engine is up for one trial."""

    steady: Steady
    engine_s: float


class Broken(NamedTuple):
    """A config that does not: how its trial fails, and the seconds that takes."""

    failure: Failure
    engine_s: float


Truth = Known | Broken


@dataclass(frozen=True, slots=True, kw_only=True)
class Surface:
    """One load on one engine. ``truth`` is for normalised configs inside the space."""

    name: str
    measured: bool
    space: SearchSpace
    shape: TrafficShape
    length: Length
    profile: Profile | None
    look: Callable[[EngineConfig], Truth]
    candidates: Iterable[EngineConfig]
    _seen: dict[EngineConfig, Truth] = field(default_factory=dict)

    def truth(self, config: EngineConfig) -> Truth:
        if config not in self._seen:
            self._seen[config] = self.look(config)
        return self._seen[config]

    def rate(self, config: EngineConfig) -> float:
        """True output tokens a second; 0 where nothing can be measured."""
        truth = self.truth(config)
        return truth.steady.tok_s if isinstance(truth, Known) else 0.0

    @property
    def trial_s(self) -> float:
        """Engine seconds of a trial of vLLM's defaults."""
        return self.truth(EngineConfig()).engine_s


class Best(NamedTuple):
    """The surface's best config and its rate; of configs drawn at random, the share near it and
    the share that fails."""

    config: EngineConfig
    tok_s: float
    near: float
    failing: float


@cache
def best_of(name: str) -> Best:
    surface = load(name)
    best = max(surface.candidates, key=surface.rate)
    tok_s, rng = surface.rate(best), random.Random(name)
    rates = [surface.rate(drawn(surface.space, rng)) for _ in range(3000)]
    near = sum(rate >= WITHIN * tok_s for rate in rates) / len(rates)
    return Best(best, tok_s, near, sum(rate == 0 for rate in rates) / len(rates))


def drawn(space: SearchSpace, rng: random.Random) -> EngineConfig:
    """A config inside the space, each knob's value by chance."""
    while True:
        config = settled(space, {knob.name: rng.choice(knob.domain) for knob in space.searched})
        if space.fault(config) is None:
            return config


def settled(space: SearchSpace, values: Mapping[str, Value]) -> EngineConfig:
    """The config of ``values`` without those that have no effect beside the others."""
    config = space.normalised(EngineConfig.of(values))
    while idle := {
        knob.name
        for knob in space.searched
        if config.get(knob.name) is not None
        and any(space.effective(config, c.knob) not in c.values for c in knob.only_if)
    }:
        config = config.having(dict.fromkeys(idle))
    return config


class _Simulated(NamedTuple):
    profile: str
    load: Load
    length: Length


_LONG = Length(60.0, 120.0)

_SIMULATED = {
    "station, 256 streams": _Simulated("dgx-station-hybrid", Load(256, 512, 512), _LONG),
    "station, 4 streams": _Simulated("dgx-station-hybrid", Load(4, 512, 512), _LONG),
    "station, 32 agents with long shared prompts": _Simulated(
        "dgx-station-hybrid", Load(32, 12_000, 300, shared=10_800), _LONG
    ),
    "station, 64 short chats": _Simulated("dgx-station-hybrid", Load(64, 200, 150), _LONG),
    "demo, 48 streams, 60 % shared": _Simulated(
        "demo-hybrid", Load(48, 600, 32, shared=360), Length(20.0, 60.0)
    ),
    "dense, 64 streams, short of memory": _Simulated(
        str(DATA / "dense-48gb.toml"), Load(64, 4000, 400), _LONG
    ),
    "dense, 2 streams that edit code": _Simulated(
        str(DATA / "dense-48gb.toml"), Load(2, 2000, 500), _LONG
    ),
}
_MEASURED = {
    "real CPU grid, independent": "independent",
    "real CPU grid, shared": "448 of 512 shared",
}
NAMES = (*_SIMULATED, *_MEASURED)


@cache
def load(name: str) -> Surface:
    return _simulated(name) if name in _SIMULATED else _measured(name)


def _simulated(name: str) -> Surface:
    chosen, of, length = _SIMULATED[name]
    simulated = profile.load(chosen)
    space = space_of(simulated)

    def look(config: EngineConfig) -> Truth:
        started = startup.start(simulated, config)
        if isinstance(started, NotStarted):
            return Broken(_failure(started.log, warm=False), simulated.start_s)
        found = steady(simulated, started, of)
        if found is None:
            log = log_lines(Fault.OOM_UNDER_LOAD)
            return Broken(_failure(log, warm=True), simulated.start_s + RAMP_S)
        return Known(found, simulated.start_s + length.warm_up_s + length.measured_s)

    return Surface(
        name=name,
        measured=False,
        space=space,
        shape=_seen_live(simulated, of),
        length=length,
        profile=simulated,
        look=look,
        candidates=_all_of(space),
    )


def _all_of(space: SearchSpace) -> Iterator[EngineConfig]:
    """Every config of the space but those that ``NOT_TOLD`` spares."""
    domains = {k.name: [v for v in k.domain if v not in _spared(k.name)] for k in space.searched}
    for values in itertools.product(*domains.values()):
        named = dict(zip(domains, values, strict=True))
        config = space.normalised(EngineConfig.of(named))
        if space.fault(config) is None:
            yield config


def _spared(knob: str) -> tuple[Value, ...]:
    return NOT_TOLD.get(knob, ())


def _failure(log: tuple[str, ...], *, warm: bool) -> Failure:
    found = failures.classify(exit_code=1, warm=warm, log="\n".join(log))
    return Failure(kind=found.kind, sentence=found.sentence)


def _seen_live(simulated: Profile, of: Load) -> TrafficShape:
    """The load as production would show it under vLLM's defaults."""
    started = startup.start(simulated, EngineConfig())
    assert not isinstance(started, NotStarted)
    found = steady(simulated, started, of)
    assert found is not None
    cycle_s = of.streams * of.osl / found.tok_s
    requests = 600.0 * of.streams / cycle_s
    return TrafficShape(
        model=simulated.name,
        end_s=0.0,
        window_s=600.0,
        requests=requests,
        rate_rps=requests / 600.0,
        running=found.running,
        waiting=of.streams - found.running,
        isl=exactly(of.isl),
        osl=exactly(of.osl),
        latencies=Latencies(),
        output_tok_s=found.tok_s,
        prefix_hit_rate=found.hit_rate,
        kv_cache_usage=found.kv_cache_usage,
        preemptions=found.preemptions * requests,
    )


def _measured(name: str) -> Surface:
    data = json.loads((DATA / "real-vllm-cpu.json").read_text(encoding="utf-8"))
    column = data["shapes"].index(_MEASURED[name])
    engine_s = float(data["mean_engine_s"][column])
    shape = shapes()[_MEASURED[name]]
    space = _grid_space(data["cells"])
    rates = {
        space.normalised(EngineConfig.of(cell["config"])): cell["tok_s"][column]
        for cell in data["cells"]
    }

    def look(config: EngineConfig) -> Truth:
        rate = rates[config]
        if rate is None:
            sentence = "Too few requests were answered in the measured time."
            return Broken(Failure(kind=FailureKind.REQUEST_ERRORS, sentence=sentence), engine_s)
        return Known(_of_rate(float(rate), shape), engine_s)

    return Surface(
        name=name,
        measured=True,
        space=space,
        shape=shape,
        length=Length(float(data["warm_up_s"]), float(data["measured_s"])),
        profile=None,
        look=look,
        candidates=tuple(rates),
    )


def _grid_space(cells: list[dict[str, Any]]) -> SearchSpace:
    """The space whose configs are exactly the grid's: one way to batch at a time."""
    knobs = catalogue(hardware=HardwareClass.CPU)
    turned = {name for cell in cells for name in cell["config"]}
    facts = ModelFacts(hybrid=False, mtp_head=False, moe=False, max_model_len=1024, heads=9)
    hardware = Hardware(kind=HardwareClass.CPU, gpus=0, cores=(0, 1))
    space = search_space(
        knobs,
        facts,
        hardware,
        settled={"num_speculative_tokens": 3},
        without={knob.name for knob in knobs.knobs} - turned,
    )
    own = {(name, value) for cell in cells for name, value in cell["config"].items()}

    def in_the_grid(name: str, value: Value, default: Value) -> bool:
        return value == default or (name, value) in own

    unbatched = (Condition("max_num_batched_tokens", (2048,)), Condition("max_num_seqs", (128,)))
    undrafted = Condition("speculative_method", ("none",))
    because = "the grid has one way to batch at a time"
    return SearchSpace(
        knobs=tuple(
            replace(k, domain=tuple(v for v in k.domain if in_the_grid(k.name, v, k.default)))
            for k in space.knobs
        ),
        rules=(
            Rule(
                when=(Condition("max_num_seqs", (4,)),),
                then=(unbatched[0], undrafted),
                because=because,
            ),
            Rule(
                when=(Condition("speculative_method", ("ngram",)),),
                then=unbatched,
                because=because,
            ),
        ),
    )


def _of_rate(tok_s: float, shape: TrafficShape) -> Steady:
    """The figures that follow from a rate, where only that was kept."""
    osl, streams = shape.osl.mean or 1.0, shape.concurrency
    cycle_ms = 1000 * streams * osl / tok_s
    return Steady(
        tok_s=tok_s,
        ttft_ms=0.2 * cycle_ms,
        tpot_ms=0.8 * cycle_ms / osl,
        running=streams,
        kv_cache_usage=0.1,
        hit_rate=shape.prefix_hit_rate or 0.0,
        acceptance=None,
        preemptions=0.0,
    )
