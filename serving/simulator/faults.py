"""Faults that a simulated engine can be told to have, and what vLLM would log for each. Pure."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from domain.errors import BadInput
from serving.simulator.startup import OUT_OF_MEMORY

SLOW_FACTOR = 4.0


class Fault(Enum):
    START_FAILURE = "start_failure"
    OOM_AT_START = "oom_at_start"
    OOM_UNDER_LOAD = "oom_under_load"
    HANG_MID_STREAM = "hang_mid_stream"
    DIE_UNDER_LOAD = "die_under_load"
    SLOW = "slow"
    HTTP_500 = "http_500"
    HEALTHY_WHILE_COLD = "healthy_while_cold"


NEVER_STARTS = (Fault.START_FAILURE, Fault.OOM_AT_START)
AT_START = (*NEVER_STARTS, Fault.HEALTHY_WHILE_COLD)
"""Those of a start: they cannot be switched on while the engine serves."""


class Injection(NamedTuple):
    """A fault that begins with the first request after ``after_requests`` others."""

    fault: Fault
    after_requests: int = 0


def parse(text: str) -> Injection:
    """Read ``name`` or ``name:after_requests``; BadInput lists the known names."""
    name, _, after = text.strip().partition(":")
    try:
        return Injection(Fault(name), int(after or 0))
    except ValueError:
        known = ", ".join(fault.value for fault in Fault)
        raise BadInput(
            f"{text!r} is not a fault; write name or name:after_requests (known: {known})."
        ) from None


def log_lines(fault: Fault) -> tuple[str, ...]:
    """What vLLM would have logged last; empty for a fault that it would not notice."""
    return {
        Fault.START_FAILURE: (
            "ERROR [core.py] EngineCore failed to start.",
            "RuntimeError: Engine core initialization failed. See root cause above. "
            "Failed core proc(s): {}",
        ),
        Fault.OOM_AT_START: (
            "ERROR [core.py] EngineCore failed to start.",
            f"{OUT_OF_MEMORY} Tried to allocate 2.00 GiB.",
        ),
        Fault.OOM_UNDER_LOAD: (
            "ERROR [core.py] EngineCore encountered a fatal error.",
            f"{OUT_OF_MEMORY} Tried to allocate 2.00 GiB.",
            "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.",
        ),
        Fault.DIE_UNDER_LOAD: (
            "ERROR [core_client.py] Engine core proc EngineCore_DP0 died unexpectedly, "
            "shutting down client.",
            "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.",
        ),
    }.get(fault, ())
