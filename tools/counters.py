"""An engine's own counters, read from it directly: what a load client's figures are held against.

One scrape, no history. It reads only; to reset a cache is another room's business.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Final

import httpx

from domain.study import EngineCounters
from tools import queries
from tools.exposition import parse

_TIMEOUT_S: Final = 5.0


async def read_counters(url: str) -> EngineCounters | None:
    """The counters of the engine at base URL ``url``, summed over its data-parallel engines.

    ``None`` where it cannot be asked or does not show the three that every engine has.
    """
    try:
        async with httpx.AsyncClient(trust_env=False, timeout=_TIMEOUT_S) as client:
            response = await client.get(f"{url.rstrip('/')}/metrics")
        if response.status_code != httpx.codes.OK:
            return None
        return counters(response.text)
    except (httpx.HTTPError, httpx.InvalidURL, ValueError):
        return None


def counters(text: str) -> EngineCounters | None:
    """The counters in an exposition; raises ValueError where it is none."""
    sums: Mapping[str, float] = _sums(text)
    if not {queries.FINISHED, queries.PROMPT_TOKENS, queries.GENERATION_TOKENS} <= sums.keys():
        return None
    return EngineCounters(
        requests=sums[queries.FINISHED],
        prompt_tokens=sums[queries.PROMPT_TOKENS],
        generation_tokens=sums[queries.GENERATION_TOKENS],
        prefix_queries=sums.get(queries.PREFIX_QUERIES),
        prefix_hits=sums.get(queries.PREFIX_HITS),
        draft_tokens=sums.get(queries.DRAFT_TOKENS),
        accepted_tokens=sums.get(queries.ACCEPTED_TOKENS),
        preemptions=sums.get(queries.PREEMPTIONS),
    )


def _sums(text: str) -> dict[str, float]:
    sums: dict[str, float] = defaultdict(float)
    for point in parse(text, queries.COUNTERS):
        sums[point.name] += point.value
    return dict(sums)
