"""A MetricSource that tests script: by what engines showed at which time, or answer by answer."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping

from domain.metrics import Query, Reading, moments
from tools.exposition import Labels, parse
from tools.history import History
from tools.queries import ENGINE_TIMES, METRICS

_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000)
_TTFT = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1),
    *(2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560),
)
_GAP = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1),
    *(2.5, 5, 7.5, 10, 20, 40, 80),
)
_E2EL = (
    *(0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60),
    *(120, 240, 480, 960, 1920, 7680),
)
_HISTOGRAMS: Mapping[str, tuple[float, ...]] = {
    "vllm:request_prompt_tokens": _TOKENS,
    "vllm:request_generation_tokens": _TOKENS,
    "vllm:time_to_first_token_seconds": _TTFT,
    "vllm:inter_token_latency_seconds": _GAP,
    "vllm:request_time_per_output_token_seconds": _GAP,
    "vllm:e2e_request_latency_seconds": _E2EL,
    "vllm:request_queue_time_seconds": _E2EL,
    "vllm:request_prefill_time_seconds": _E2EL,
}
_COUNTERS = (
    "vllm:prompt_tokens_total",
    "vllm:generation_tokens_total",
    "vllm:prefix_cache_queries_total",
    "vllm:prefix_cache_hits_total",
    "vllm:num_preemptions_total",
)


def target(*, arm: str, replica: str = "r0", config: str = "c0", job: str = "") -> Labels:
    """The labels of a target, as a scraper sets them; only a Prometheus server's have a job."""
    labels = {"arm": arm, "config": config, "instance": replica, "replica": replica}
    return tuple(sorted((labels | {"job": job} if job else labels).items()))


class FakeMetricSource:
    """Answers from the recorded past like the real sources, unless an answer is scripted.

    ``asked`` holds every question with its time.
    """

    def __init__(self, *, retention_s: float = 86_400.0, lookback_s: float = 15.0) -> None:
        self._history = History(retention_s=retention_s, lookback_s=lookback_s, series_cap=100_000)
        self._scripted: dict[str, Reading] = {}
        self.asked: list[tuple[Query, float]] = []

    def scrape(self, at_s: float, shown: Mapping[Labels, str | None]) -> None:
        """One round of scrapes: the text of each target, ``None`` where it is down.

        A target seen before and absent now has been removed.
        """
        self._history.record(
            at_s,
            {
                labels: None if text is None else parse(text, METRICS | ENGINE_TIMES)
                for labels, text in shown.items()
            },
        )

    def answer(self, metric: str, reading: Reading) -> None:
        """From now on every query of ``metric`` is answered with ``reading``."""
        self._scripted[metric] = reading

    def forget(self, metric: str) -> None:
        """Undo ``answer``."""
        self._scripted.pop(metric, None)

    async def read(self, query: Query, at_s: float) -> Reading:
        self.asked.append((query, at_s))
        return self._scripted.get(query.metric) or self._history.read(query, at_s)

    async def read_range(
        self, query: Query, start_s: float, end_s: float, step_s: float
    ) -> tuple[Reading, ...]:
        at = moments(start_s, end_s, step_s)
        self.asked += [(query, at_s) for at_s in at]
        if scripted := self._scripted.get(query.metric):
            return (scripted,) * len(at)
        return self._history.read_at(query, at)


class FakeEngineMetrics:
    """What a vLLM 0.32 engine shows at ``/metrics`` after the requests that a test says it had."""

    def __init__(self, model: str = "m") -> None:
        self.running = 0.0
        self.waiting = 0.0
        self.kv_usage = 0.0
        self._labels = f'engine="0",model_name="{model}"'
        self._model = f'model_name="{model}"'
        self._finished = Counter(dict.fromkeys(("stop", "length", "abort", "error"), 0))
        self._counters = Counter(dict.fromkeys(_COUNTERS, 0.0))
        self._rejected = 0
        self._sums = Counter(dict.fromkeys(_HISTOGRAMS, 0.0))
        self._counts = {name: [0] * (len(bounds) + 1) for name, bounds in _HISTOGRAMS.items()}

    def finish(
        self,
        n: int = 1,
        *,
        isl: int = 512,
        osl: int = 128,
        ttft_s: float = 0.2,
        tpot_s: float = 0.02,
        prefix_hits: int = 0,
        queued_s: float = 0.01,
        prefill_s: float = 0.1,
        stalled: int = 0,
        stall_s: float = 0.0,
        reason: str = "stop",
    ) -> None:
        """``n`` requests ended for ``reason``, each alike; ``stalled`` gaps of each were longer."""
        self._finished[reason] += n
        self.count("vllm:prompt_tokens_total", n * isl)
        self.count("vllm:generation_tokens_total", n * osl)
        self.count("vllm:prefix_cache_queries_total", n * isl)
        self.count("vllm:prefix_cache_hits_total", n * prefix_hits)
        self._observe("vllm:request_prompt_tokens", isl, n)
        self._observe("vllm:request_generation_tokens", osl, n)
        self._observe("vllm:time_to_first_token_seconds", ttft_s, n)
        self._observe("vllm:inter_token_latency_seconds", tpot_s, n * (osl - 1 - stalled))
        self._observe("vllm:inter_token_latency_seconds", stall_s, n * stalled)
        self._observe("vllm:request_time_per_output_token_seconds", tpot_s, n)
        self._observe("vllm:e2e_request_latency_seconds", ttft_s + tpot_s * (osl - 1), n)
        self._observe("vllm:request_queue_time_seconds", queued_s, n)
        self._observe("vllm:request_prefill_time_seconds", prefill_s, n)

    def reject(self, n: int = 1) -> None:
        self._rejected += n

    def speculate(self, drafted: int, accepted: int) -> None:
        """Draft tokens proposed and accepted; without it the engine shows no such counters."""
        self.count("vllm:spec_decode_num_draft_tokens_total", drafted)
        self.count("vllm:spec_decode_num_accepted_tokens_total", accepted)

    def count(self, metric: str, by: float) -> None:
        """Raise a counter that carries only the engine's labels."""
        self._counters[metric] += by

    def text(self) -> str:
        """The exposition, as a scrape gets it."""
        lines = [
            f"vllm:num_requests_running{{{self._labels}}} {self.running}",
            f"vllm:num_requests_waiting{{{self._labels}}} {self.waiting}",
            f"vllm:kv_cache_usage_perc{{{self._labels}}} {self.kv_usage}",
            f'vllm:admission_rejections_total{{{self._model},reason="queue"}} {self._rejected}',
        ]
        lines += [f"{name}{{{self._labels}}} {value}" for name, value in self._counters.items()]
        lines += [
            f'vllm:request_success_total{{{self._labels},finished_reason="{reason}"}} {n}'
            for reason, n in self._finished.items()
        ]
        for name, bounds in _HISTOGRAMS.items():
            cumulative = 0
            edges = [*(str(float(bound)) for bound in bounds), "+Inf"]
            for edge, count in zip(edges, self._counts[name], strict=True):
                cumulative += count
                lines.append(f'{name}_bucket{{{self._labels},le="{edge}"}} {cumulative}')
            lines.append(f"{name}_count{{{self._labels}}} {cumulative}")
            lines.append(f"{name}_sum{{{self._labels}}} {self._sums[name]}")
        return "\n".join(lines) + "\n"

    def _observe(self, name: str, value: float, n: int) -> None:
        self._counts[name][bisect_left(_HISTOGRAMS[name], value)] += n
        self._sums[name] += value * n
