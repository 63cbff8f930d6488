"""An EngineConfig made definite: every knob that the simulation reads, with vLLM's defaults in."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from domain.engine import EngineConfig, Value
from serving.flags import catalogue
from serving.hardware import HardwareClass

SIMULATED = frozenset(
    {
        "speculative_method",
        "num_speculative_tokens",
        "OMP_NUM_THREADS",
        "async_scheduling",
        "mamba_backend",
        "mamba_ssm_cache_dtype",
        "enable_mamba_cache_stochastic_rounding",
        "max_num_seqs",
        "max_num_batched_tokens",
        "enable_prefix_caching",
        "gpu_memory_utilization",
        "kv_cache_dtype",
    }
)
"""The knobs whose effect is simulated; of any other a simulated engine takes no notice."""

_Kind = TypeVar("_Kind", bool, int, float, str)


class Method(Enum):
    NONE = "none"
    MTP = "mtp"
    NGRAM = "ngram"


class Backend(Enum):
    TRITON = "triton"
    FLASHINFER = "flashinfer"


class StateType(Enum):
    """AUTO is the model's own precision, float32 for the models that are simulated."""

    AUTO = "auto"
    FLOAT32 = "float32"
    FLOAT16 = "float16"


class KVType(Enum):
    AUTO = "auto"
    FP8 = "fp8"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What the engine runs with. ``drafts`` is 0 without speculation; ``threads`` 0 when unset."""

    method: Method
    drafts: int
    threads: int
    async_scheduling: bool
    backend: Backend
    state: StateType
    stochastic_rounding: bool
    max_num_seqs: int
    max_num_batched_tokens: int
    prefix_caching: bool
    memory_share: float
    kv: KVType

    @classmethod
    def of(cls, config: EngineConfig, hardware: HardwareClass) -> Setup:
        """Raises ValueError, as vLLM does, for a value that vLLM does not know."""
        known = {knob.name: knob.default for knob in catalogue(hardware=hardware).knobs}

        def value(name: str, kind: type[_Kind]) -> _Kind:
            own: Value | None = config.get(name)
            return kind(known[name] if own is None else own)

        method = Method(value("speculative_method", str))
        return cls(
            method=method,
            drafts=0 if method is Method.NONE else value("num_speculative_tokens", int),
            threads=value("OMP_NUM_THREADS", int),
            # Left to the engine it stays off, as on the host that the profiles were fitted to.
            async_scheduling=value("async_scheduling", str) == str(True),
            backend=Backend(value("mamba_backend", str)),
            state=StateType(value("mamba_ssm_cache_dtype", str)),
            stochastic_rounding=value("enable_mamba_cache_stochastic_rounding", bool),
            max_num_seqs=value("max_num_seqs", int),
            max_num_batched_tokens=value("max_num_batched_tokens", int),
            prefix_caching=value("enable_prefix_caching", bool),
            memory_share=value("gpu_memory_utilization", float),
            kv=KVType(value("kv_cache_dtype", str)),
        )
