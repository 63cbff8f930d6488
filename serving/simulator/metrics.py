"""The simulated engine's metrics, under the names, labels and buckets of vLLM 0.32.

Sums are read from the scheduler at each scrape; only histograms are kept here. It decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.process_collector import ProcessCollector

from serving.simulator.core import Core
from serving.simulator.scheduler import Advance, Batch, Finish, Request

_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000)
_STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
_FIRST_S = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40,
    80, 160, 640, 2560,
)  # fmt: skip
_GAP_S = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80,
)  # fmt: skip
_REQUEST_S = (
    0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680,
)  # fmt: skip
_HISTOGRAMS = {
    "vllm:request_prompt_tokens": _TOKENS,
    "vllm:request_generation_tokens": _TOKENS,
    "vllm:request_max_num_generation_tokens": _TOKENS,
    "vllm:request_params_max_tokens": _TOKENS,
    "vllm:request_prefill_kv_computed_tokens": _TOKENS,
    "vllm:iteration_tokens_total": _STEP_TOKENS,
    "vllm:request_params_n": (1, 2, 5, 10, 20),
    "vllm:request_num_preemptions": (1, 2, 3, 4, 5, 10, 20),
    "vllm:time_to_first_token_seconds": _FIRST_S,
    "vllm:inter_token_latency_seconds": _GAP_S,
    "vllm:request_time_per_output_token_seconds": _GAP_S,
    "vllm:e2e_request_latency_seconds": _REQUEST_S,
    "vllm:request_queue_time_seconds": _REQUEST_S,
    "vllm:request_inference_time_seconds": _REQUEST_S,
    "vllm:request_prefill_time_seconds": _REQUEST_S,
    "vllm:request_decode_time_seconds": _REQUEST_S,
}
_SIMULATED = "Simulated, as vLLM counts it."
_REASONS = ("stop", "length", "abort", "error", "repetition")
_SOURCES = ("local_compute", "local_cache_hit", "external_kv_transfer")


class EngineMetrics:
    """All metrics of one engine, in a registry of their own."""

    def __init__(self, model: str, core: Core, started_s: float) -> None:
        self._core = core
        self._labels = {"model_name": model, "engine": "0"}
        self._started_s = started_s
        self._registry = CollectorRegistry()
        names = tuple(self._labels)
        self._histograms = {
            name: Histogram(
                name, _SIMULATED, names, buckets=buckets, registry=self._registry
            ).labels(**self._labels)
            for name, buckets in _HISTOGRAMS.items()
        }
        self._ended = Counter(
            "vllm:request_success", _SIMULATED, (*names, "finished_reason"), registry=self._registry
        )
        for reason in _REASONS:
            self._ended.labels(**self._labels, finished_reason=reason)
        self._http = Counter(
            "http_requests", _SIMULATED, ("handler", "method", "status"), registry=self._registry
        )
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def exposition(self) -> bytes:
        return generate_latest(self._registry)

    def answered(self, handler: str, status: int) -> None:
        """One HTTP answer begun."""
        self._http.labels(handler, "POST", f"{status // 100}xx").inc()

    def iterated(self, batch: Batch, advances: list[Advance]) -> None:
        """One iteration done."""
        gaps = self._histograms["vllm:inter_token_latency_seconds"]
        first = self._histograms["vllm:time_to_first_token_seconds"]
        generated = 0
        for request, tokens, since_s in advances:
            generated += tokens
            if since_s is not None:
                gaps.observe(since_s)
            elif request.first_s is not None:
                first.observe(request.first_s - request.arrived_s)
        step_tokens = batch.work.prefill_tokens + generated
        self._histograms["vllm:iteration_tokens_total"].observe(step_tokens)

    def ended(self, request: Request, max_tokens: int) -> None:
        """One request over, by itself or aborted; times only where it got its first token."""
        finish = request.finish or Finish.ABORT
        self._ended.labels(**self._labels, finished_reason=finish.value).inc()
        observed: dict[str, float] = {
            "request_prompt_tokens": request.isl,
            "request_generation_tokens": request.generated,
            "request_max_num_generation_tokens": request.generated,
            "request_params_max_tokens": max_tokens,
            "request_params_n": 1,
            "request_num_preemptions": request.preemptions,
            "request_prefill_kv_computed_tokens": request.isl - request.cached,
        }
        if request.scheduled_s is not None and request.first_s is not None:
            last_s = request.last_s or request.first_s
            decode_s = last_s - request.first_s
            observed |= {
                "e2e_request_latency_seconds": last_s - request.arrived_s,
                "request_queue_time_seconds": request.scheduled_s - request.arrived_s,
                "request_inference_time_seconds": last_s - request.scheduled_s,
                "request_prefill_time_seconds": request.first_s - request.scheduled_s,
                "request_decode_time_seconds": decode_s,
                "request_time_per_output_token_seconds": decode_s / max(request.generated - 1, 1),
            }
        for name, value in observed.items():
            self._histograms[f"vllm:{name}"].observe(value)

    def collect(self) -> Iterator[Metric]:
        """Sums and states, as the scheduler has them now."""
        scheduler = self._core.scheduler
        hits, prompt = scheduler.prefix_hits, scheduler.prompt_tokens
        drafts = self._core.setup.drafts
        sums: dict[str, float] = {
            "prompt_tokens": prompt,
            "prompt_tokens_cached": hits,
            "generation_tokens": scheduler.generation_tokens,
            "num_preemptions": scheduler.preemptions,
            "prefix_cache_queries": scheduler.prefix_queries,
            "prefix_cache_hits": hits,
            "external_prefix_cache_queries": 0,
            "external_prefix_cache_hits": 0,
        }
        if drafts:
            sums |= {
                "spec_decode_num_drafts": scheduler.drafts,
                "spec_decode_num_draft_tokens": scheduler.drafts * drafts,
                "spec_decode_num_accepted_tokens": sum(scheduler.accepted_by_position),
            }
        for name, value in sums.items():
            yield self._family(CounterMetricFamily, name, "", {"": value})
        by_source = dict(zip(_SOURCES, (max(prompt - hits, 0), hits, 0), strict=True))
        yield self._family(CounterMetricFamily, "prompt_tokens_by_source", "source", by_source)
        if drafts:
            positions = {str(i): n for i, n in enumerate(scheduler.accepted_by_position)}
            name = "spec_decode_num_accepted_tokens_per_pos"
            yield self._family(CounterMetricFamily, name, "position", positions)
        waiting = len(scheduler.waiting)
        states: dict[str, float] = {
            "num_requests_running": len(scheduler.running),
            "num_requests_waiting": waiting,
            "kv_cache_usage_perc": scheduler.blocks.usage,
        }
        for name, value in states.items():
            yield self._family(GaugeMetricFamily, name, "", {"": value})
        by_reason = {"capacity": float(waiting), "deferred": 0.0}
        name = "num_requests_waiting_by_reason"
        yield self._family(GaugeMetricFamily, name, "reason", by_reason)
        yield self._cache_config()

    def _family(
        self,
        kind: type[CounterMetricFamily] | type[GaugeMetricFamily],
        name: str,
        label: str,
        values: Mapping[str, float],
    ) -> Metric:
        """One metric; ``values`` by the value of the extra ``label``, if there is one."""
        names = (*self._labels, label) if label else tuple(self._labels)
        family = kind(f"vllm:{name}", _SIMULATED, labels=names)
        for key, value in values.items():
            labels = (*self._labels.values(), key) if label else tuple(self._labels.values())
            if isinstance(family, CounterMetricFamily):
                family.add_metric(labels, value, created=self._started_s)
            else:
                family.add_metric(labels, value)
        return family

    def _cache_config(self) -> Metric:
        setup, memory = self._core.setup, self._core.profile.memory
        capacity = self._core.scheduler.blocks.capacity
        labels = {
            "engine": "0",
            "block_size": str(memory.block_tokens),
            "cache_dtype": setup.kv.value,
            "enable_prefix_caching": str(setup.prefix_caching),
            "gpu_memory_utilization": str(setup.memory_share),
            "kv_cache_size_tokens": str(capacity * memory.block_tokens),
            "mamba_ssm_cache_dtype": setup.state.value,
            "num_gpu_blocks": str(capacity),
        }
        family = GaugeMetricFamily("vllm:cache_config_info", _SIMULATED, labels=tuple(labels))
        family.add_metric(tuple(labels.values()), 1)
        return family
