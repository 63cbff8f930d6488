"""Empties an engine's prefix cache between two measurements on the same engine.

A trial needs none of it, since it begins with a fresh engine. Whether the cache was empty is told
by the hit counters alone: ``measure`` voids what found more than its own prompts.
"""

from __future__ import annotations

import httpx

_TIMEOUT_S = 30.0


async def reset_prefix_cache(url: str, transport: httpx.AsyncBaseTransport | None = None) -> bool:
    """Ask the engine at base URL ``url`` to forget all prefixes; whether it says that it did.

    vLLM offers it where ``VLLM_SERVER_DEV_MODE`` is 1, and refuses while a request runs. It is
    idempotent and never raises. ``transport`` replaces the network.
    """
    try:
        async with httpx.AsyncClient(
            base_url=url, timeout=_TIMEOUT_S, trust_env=False, transport=transport
        ) as client:
            response = await client.post("/reset_prefix_cache")
            if response.status_code != httpx.codes.OK:
                return False
            # Some versions answer with nothing, others say whether it succeeded.
            said = response.json() if response.content else None
    except (httpx.HTTPError, httpx.InvalidURL, ValueError):
        return False
    return not isinstance(said, dict) or bool(said.get("success", True))
