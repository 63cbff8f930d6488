"""The recent past of a fleet's engines, written into a real Prometheus as its scrapes would be."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import count

from prometheus_client.parser import text_string_to_metric_families

from tests.fakes.metrics import FakeEngineMetrics
from tests.fakes.prometheus import PrometheusServer

OURS = {"arm": "production", "replica": "production-0", "job": "vllm-prod"}


def write_history(
    server: PrometheusServer,
    *,
    end_s: float,
    length_s: float = 180.0,
    every_s: float = 5.0,
    labels: Mapping[str, str] = OURS,
    model: str = "m",
    without: Collection[str] = (),
) -> None:
    """One engine that served all through the ``length_s`` seconds before ``end_s`` (Unix seconds).

    It shows every metric but those ``without``.
    """
    engine = FakeEngineMetrics(model)
    engine.running = 3
    engine.speculate(30, 20)
    series: dict[tuple[tuple[str, str], ...], list[tuple[int, float | None]]] = {}
    for k in count():
        at_s = end_s - length_s + every_s * k
        if at_s > end_s:
            break
        engine.finish(2, isl=400, osl=80, prefix_hits=100)
        shown = [
            sample
            for family in text_string_to_metric_families(engine.text())
            for sample in family.samples
            if sample.name not in without
        ]
        values = {(sample.name, *sample.labels.items()): sample.value for sample in shown}
        for (name, *own), value in {("up",): 1.0, **values}.items():
            key = (("__name__", name), *labels.items(), *own)
            series.setdefault(key, []).append((round(at_s * 1000), value))
    server.write(series)
