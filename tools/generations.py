"""The names that older versions of vLLM gave to the signals of ``tools.queries``, as a table.

A rename in vLLM is a line here; both metric sources follow it. A server may show a signal under
two names at once: then the newer one is read and the older one is not added to it. Only names that
meant the same stand here, each read in the source of the releases that are named; see
``docs/decisions/0010-metric-names.md`` for those that look alike and are not. Nothing here reads
or asks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tools.queries import INTER_TOKEN, KV_USAGE, PREFIX_HITS, PREFIX_QUERIES

OLDER: Final[Mapping[str, tuple[str, ...]]] = {
    # 0.8 has the older name alone and counts blocks, 0.9 and 0.10 show both and count tokens,
    # 0.11 hides the older one, 0.12 has dropped it.
    PREFIX_QUERIES: ("vllm:gpu_prefix_cache_queries_total",),
    PREFIX_HITS: ("vllm:gpu_prefix_cache_hits_total",),
    # To 0.8 the older name alone, 0.9 and 0.10 show both.
    KV_USAGE: ("vllm:gpu_cache_usage_perc",),
    # 0.6 to 0.9 have the older name alone, 0.10 and 0.11 show both, 0.12 hides the older one.
    INTER_TOKEN.bucket: ("vllm:time_per_output_token_seconds_bucket",),
    INTER_TOKEN.sum: ("vllm:time_per_output_token_seconds_sum",),
}
"""By today's name, the older ones, the newest of them first."""


def names(metric: str) -> tuple[str, ...]:
    """Every name of the signal that is called ``metric`` today, the newest first."""
    return metric, *OLDER.get(metric, ())
