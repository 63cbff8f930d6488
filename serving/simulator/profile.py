"""A profile: every constant of the simulated model, host and GPU, read from a data file.

Nothing here interprets the numbers; ``performance`` and ``startup`` do.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

from domain.errors import BadInput
from serving import hardware
from serving.hardware import Hardware
from serving.model_card import ModelFacts

_GIB_PER_GB = 1e9 / 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Gigabytes of 10⁹ bytes, unless the name says otherwise.

    ``state_mb`` is the float32 recurrent state of one sequence; a draft needs one more copy.
    ``outside_gb`` and ``outside_mb_per_position`` lie outside the engine's share of the GPU: its
    context, and the workspace of one verified position.
    """

    gpu_gb: float
    weights_gb: float
    activation_kb_per_token: float
    state_mb: float
    kv_kb_per_token: float
    outside_gb: float
    outside_mb_per_position: float
    block_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Costs of one iteration, as ``performance`` adds them up.

    ``state_us`` is for one sequence, float32 and the flashinfer backend; ``triton_factor``
    multiplies it for triton, and each draft adds ``state_draft_share`` of it. ``threads_factor``
    multiplies the host's time when every one of ``host_cores`` has a thread.
    """

    weights_ms: float
    prefill_us: float
    position_us: float
    kv_us_per_ktoken: float
    state_us: float
    state_draft_share: float
    triton_factor: float
    draft_ms: float
    draft_sequence_us: float
    host_ms: float
    host_sequence_us: float
    host_draft_us: float
    ngram_sequence_us: float
    threads_factor: float
    host_cores: int
    overlap_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """By position: the probability that a draft is accepted, given that those before it were."""

    mtp: tuple[float, ...]
    ngram: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WrongAnswers:
    """Probability that one lossy setting makes an answer wrong."""

    float16_state: float
    float16_state_stochastic: float
    fp8_kv: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One simulated model on one simulated host; ``start_s`` is from launch to ready."""

    name: str
    start_s: float
    facts: ModelFacts
    memory: Memory
    timing: Timing
    acceptance: Acceptance
    wrong: WrongAnswers

    @property
    def hardware(self) -> Hardware:
        return hardware.gpu(self.memory.gpu_gb * _GIB_PER_GB, 1)


def names() -> tuple[str, ...]:
    """The profiles that come with Serinus."""
    folder = files("serving") / "simulator" / "profiles"
    return tuple(
        sorted(f.name.removesuffix(".toml") for f in folder.iterdir() if f.name.endswith(".toml"))
    )


def load(name: str) -> Profile:
    """A profile by its name, or by the path of a TOML file; BadInput where there is none."""
    if name in names():
        text = (files("serving") / "simulator" / "profiles" / f"{name}.toml").read_text("utf-8")
        return of_toml(name, text)
    path = Path(name)
    if path.suffix == ".toml" and path.is_file():
        return of_toml(path.stem, path.read_text(encoding="utf-8"))
    raise BadInput(
        f"There is no simulator profile {name} (known: {', '.join(names())}, or a .toml file)."
    )


_Section = TypeVar("_Section")


def of_toml(name: str, text: str) -> Profile:
    """A profile from TOML text; BadInput names what is missing, unknown or of the wrong kind."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadInput(f"The simulator profile {name} is not TOML: {error}.") from None

    def section(kind: type[_Section], key: str) -> _Section:
        return _section(kind, name, key, data.get(key))

    start_s = data.get("start_s")
    if not isinstance(start_s, int | float) or start_s < 0:
        raise BadInput(f"The simulator profile {name} needs start_s, in seconds.")
    return Profile(
        name=name,
        start_s=float(start_s),
        facts=section(ModelFacts, "model"),
        memory=section(Memory, "memory"),
        timing=section(Timing, "timing"),
        acceptance=section(Acceptance, "acceptance"),
        wrong=section(WrongAnswers, "wrong"),
    )


def _section(kind: type[_Section], name: str, key: str, given: Any) -> _Section:
    table = given if isinstance(given, Mapping) else {}
    wanted = set(kind.__annotations__)
    if missing := wanted - table.keys():
        raise BadInput(f"The simulator profile {name} needs {key}.{min(missing)}.")
    if unknown := table.keys() - wanted:
        raise BadInput(f"The simulator profile {name} has an unknown {key}.{min(unknown)}.")
    if bad := [k for k, v in table.items() if not isinstance(v, bool | int | float | list)]:
        raise BadInput(f"The simulator profile {name} has no number at {key}.{bad[0]}.")
    return kind(**{k: tuple(v) if isinstance(v, list) else v for k, v in table.items()})
