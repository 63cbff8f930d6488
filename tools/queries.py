"""The signals of a vLLM engine as typed queries: the one place where a metric is named.

Names and labels are those of vLLM 0.32; older names stand in ``tools.generations``. Until a newer
version's name is written here, the renamed signal is missing, never wrong. Nothing here asks.

Targets carry the labels ``arm``, ``config`` and ``replica``, set by whoever scrapes them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

from domain.metrics import Function, Query
from tools.jobs import SCRAPED

Where: TypeAlias = tuple[tuple[str, str], ...]

FINISHED: Final = "vllm:request_success_total"
REJECTED: Final = "vllm:admission_rejections_total"
RUNNING: Final = "vllm:num_requests_running"
WAITING: Final = "vllm:num_requests_waiting"
KV_USAGE: Final = "vllm:kv_cache_usage_perc"
PROMPT_TOKENS: Final = "vllm:prompt_tokens_total"
GENERATION_TOKENS: Final = "vllm:generation_tokens_total"
PREFIX_QUERIES: Final = "vllm:prefix_cache_queries_total"
PREFIX_HITS: Final = "vllm:prefix_cache_hits_total"
DRAFT_TOKENS: Final = "vllm:spec_decode_num_draft_tokens_total"
ACCEPTED_TOKENS: Final = "vllm:spec_decode_num_accepted_tokens_total"
PREEMPTIONS: Final = "vllm:num_preemptions_total"
ADAPTERS: Final = "vllm:lora_requests_info"
UP: Final = "up"


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """A histogram metric by its family name; its series are buckets, a sum and a count."""

    family: str

    @property
    def bucket(self) -> str:
        return f"{self.family}_bucket"

    @property
    def sum(self) -> str:
        return f"{self.family}_sum"


ISL: Final = Histogram(family="vllm:request_prompt_tokens")
OSL: Final = Histogram(family="vllm:request_generation_tokens")
TTFT: Final = Histogram(family="vllm:time_to_first_token_seconds")
INTER_TOKEN: Final = Histogram(family="vllm:inter_token_latency_seconds")
TPOT: Final = Histogram(family="vllm:request_time_per_output_token_seconds")
E2EL: Final = Histogram(family="vllm:e2e_request_latency_seconds")
QUEUED: Final = Histogram(family="vllm:request_queue_time_seconds")
PREFILL: Final = Histogram(family="vllm:request_prefill_time_seconds")

COUNTERS: Final = frozenset(
    {
        FINISHED,
        REJECTED,
        PROMPT_TOKENS,
        GENERATION_TOKENS,
        PREFIX_QUERIES,
        PREFIX_HITS,
        DRAFT_TOKENS,
        ACCEPTED_TOKENS,
        PREEMPTIONS,
    }
)
METRICS: Final = (
    COUNTERS
    | {RUNNING, WAITING, KV_USAGE}
    | {name for h in (ISL, OSL, TTFT, INTER_TOKEN, TPOT, E2EL) for name in (h.bucket, h.sum)}
)
"""Every name that a query below can ask for: what the embedded scraper keeps.

Not ADAPTERS, whose series grow with every set of LoRA adapters that ever ran together.
"""

ENGINE_TIMES: Final = frozenset({QUEUED.sum, PREFILL.sum})
"""Names that only a question about the past asks for, which the embedded scraper does not keep."""

ENGINE: Final = ("config", "instance", "replica")
"""What tells one engine's series from another's, and from those of another config in its place."""

COMPLETED_REASONS: Final = frozenset({"stop", "length", "repetition"})
CUT_REASON: Final = "length"
ABORTED_REASON: Final = "abort"
ERROR_REASON: Final = "error"


def where(**labels: str | None) -> Where:
    """Exact label matches, without those that are ``None``, for example ``where(arm="candidate")``.

    The engine's own label for the served model is ``model_name``.
    """
    return tuple(sorted((name, value) for name, value in labels.items() if value is not None))


def increase(metric: str, window_s: float, where: Where = ()) -> Query:
    """How much a counter rose in the window, summed over all engines that match."""
    return Query(metric=metric, function=Function.INCREASE, window_s=window_s, where=where)


def finished(window_s: float, where: Where = ()) -> Query:
    """Requests that ended in the window, by ``finished_reason`` and by who scraped them."""
    return Query(
        metric=FINISHED,
        function=Function.INCREASE,
        window_s=window_s,
        where=where,
        by=("finished_reason", *SCRAPED),
    )


def rejected(window_s: float, where: Where = ()) -> Query:
    """Requests turned away at a queue limit in the window."""
    return increase(REJECTED, window_s, where)


def average(metric: str, window_s: float, where: Where = ()) -> Query:
    """A gauge's mean over the window, summed over all engines that match."""
    return Query(metric=metric, function=Function.AVG, window_s=window_s, where=where)


def kv_usage(window_s: float, where: Where = ()) -> Query:
    """The share (0–1) of its KV cache that each engine used on average in the window."""
    return Query(
        metric=KV_USAGE,
        function=Function.AVG,
        window_s=window_s,
        where=where,
        by=("engine", *ENGINE),
    )


def now(metric: str, where: Where = (), by: tuple[str, ...] = ()) -> Query:
    """A gauge's newest value, summed over all engines that match, or told ``by`` these labels."""
    return Query(metric=metric, function=Function.LAST, where=where, by=by)


def buckets(histogram: Histogram, window_s: float, where: Where = ()) -> Query:
    """Cumulative counts of a histogram that were added in the window, by ``le`` and engine.

    They are told engine by engine: bounds differ by version and by context length, and counts up to
    a bound that not all engines have must not be summed. ISL and OSL are tokens of finished
    requests, TTFT, INTER_TOKEN, TPOT and E2EL are seconds.
    """
    return Query(
        metric=histogram.bucket,
        function=Function.INCREASE,
        window_s=window_s,
        where=where,
        by=("le", *ENGINE),
    )


def total(histogram: Histogram, window_s: float, where: Where = ()) -> Query:
    """The sum of the values that a histogram took in the window."""
    return increase(histogram.sum, window_s, where)
