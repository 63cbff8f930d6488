"""How a small real vLLM is started on this machine's CPU, by benchmarks and by tests.

It takes no more than its share of the machine and talks to nobody.
"""

from __future__ import annotations

from domain.engine import EngineConfig
from serving.flags import command_line

# Tokens of a prompt and its answer.
LONGEST = 1024
ARGUMENTS = ("--enforce-eager", "--max-model-len", str(LONGEST))
VARIABLES = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    # Offers to reset the prefix cache, between two shapes on one engine.
    "VLLM_SERVER_DEV_MODE": "1",
}


def rendered(config: EngineConfig) -> tuple[tuple[str, ...], dict[str, str]]:
    """The product's own command line, and the variables of a small engine."""
    arguments, variables = command_line(config)
    return arguments, {**VARIABLES, **variables}
