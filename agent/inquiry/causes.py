"""What can be the matter, and in which words it is told."""

from __future__ import annotations

from enum import Enum


class Cause(Enum):
    """What limits the fleet, or why nothing can be said. HEALTHY is a finding, UNKNOWN is none."""

    NO_METRICS = "no_metrics"
    NO_TRAFFIC = "no_traffic"
    REPLICA_DOWN = "replica_down"
    COLD_START = "cold_start"
    DEMAND = "demand"
    KV_CACHE = "kv_cache"
    API_SERVER = "api_server"
    SCHEDULER = "scheduler"
    PREFIX_CACHE = "prefix_cache"
    SPECULATION = "speculation"
    BLOCKED_DECODES = "blocked_decodes"
    PREFILL = "prefill"
    DECODE = "decode"
    CLIENTS = "clients"
    HEALTHY = "healthy"
    UNKNOWN = "unknown"


MEANS = {
    Cause.NO_METRICS: "Nothing can be said of the traffic, for its metrics are missing",
    Cause.NO_TRAFFIC: "There is no traffic",
    Cause.REPLICA_DOWN: "An engine is gone, and the others carry its load or nobody does",
    Cause.COLD_START: "An engine was started anew and began with empty caches",
    Cause.DEMAND: "More is asked for than before",
    Cause.KV_CACHE: "Memory for the KV cache limits the traffic",
    Cause.API_SERVER: "The API server limits the traffic, probably by its CPU",
    Cause.SCHEDULER: "Requests wait for a place in the batch, which max_num_seqs bounds",
    Cause.PREFIX_CACHE: "The prefix cache finds less than before, so more of each prompt is read",
    Cause.SPECULATION: "Fewer drafted tokens are accepted, so drafting costs more than it gives",
    Cause.BLOCKED_DECODES: "Long prompts hold up the tokens of all other requests",
    Cause.PREFILL: "Reading prompts limits the traffic",
    Cause.DECODE: "Generating tokens limits the traffic",
    Cause.CLIENTS: "The engines are not the limit: their clients ask for less",
    Cause.HEALTHY: "Nothing is wrong: every limit is kept, and nothing is slower than before",
    Cause.UNKNOWN: "The rules find no cause",
}
