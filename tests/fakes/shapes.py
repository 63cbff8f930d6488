"""Traffic shapes for tests."""

from domain.traffic import Distribution, Latencies, TrafficShape

BOUNDS = (100.0, 200.0, 500.0, 1000.0, 2000.0)


def shape(
    *,
    requests: float = 500.0,
    running: float = 30.0,
    waiting: float = 2.0,
    isl: float = 450.0,
    osl: float = 150.0,
    ttft_p95_ms: float | None = 300.0,
    prefix_hit_rate: float | None = 0.5,
) -> TrafficShape:
    return TrafficShape(
        model="m",
        end_s=1000.0,
        window_s=120.0,
        requests=requests,
        rate_rps=requests / 120.0,
        running=running,
        waiting=waiting,
        isl=Distribution.of_values([isl] * int(requests), BOUNDS),
        osl=Distribution.of_values([osl] * int(requests), BOUNDS),
        latencies=Latencies(ttft_p50_ms=200.0, ttft_p95_ms=ttft_p95_ms, tpot_p95_ms=30.0),
        prefix_hit_rate=prefix_hit_rate,
    )
