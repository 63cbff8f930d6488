"""Says whether the load client itself was fit to measure: pure.

A client that cannot keep up sends late and stamps late, and the engine gets the blame. It must not
excuse itself: figures of an unfit client are no measurement.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from domain.load import ClientHealth, RequestError, RequestRecord

# A tenth of the usual TTFT limit of 500 ms: sends later than this no longer make the planned load,
# and stamps later than this no longer tell the engine's time.
LAG_LIMIT_MS = 50.0
# An engine that takes seconds for a first token is not loaded or told otherwise by some ms.
LAG_SHARE = 0.05
# One core is all that a loop can use; above this share stamps wait in a queue.
CPU_LIMIT = 0.9


def health(
    records: Iterable[RequestRecord],
    *,
    warm_up_s: float,
    loop_lags_s: Iterable[float],
    cpu_s: float,
    wall_s: float,
) -> ClientHealth:
    """Judge a run by its records and by samples of how late the loop woke (seconds).

    Sends in the warm-up do not count, since opening all connections at once is part of it; the
    samples must be from after it too.
    """
    measured = [record for record in records if record.sent_s >= warm_up_s]
    lags_s = [
        record.sent_s - record.scheduled_s
        for record in measured
        if record.error is not RequestError.CONNECT
    ]
    first_ms = [record.latency.ttft_ms for record in measured if record.latency is not None]
    limit_ms = max(LAG_LIMIT_MS, LAG_SHARE * percentile(first_ms, 50))
    send_lag_ms = percentile(lags_s, 99) * 1000
    loop_lag_ms = percentile(loop_lags_s, 99) * 1000
    cpu = cpu_s / wall_s if wall_s > 0 else 0.0
    fault = None
    if send_lag_ms > limit_ms:
        fault = (
            f"The load client sent {send_lag_ms:.0f} ms late (99th percentile), more than the"
            f" {limit_ms:.0f} ms that leave a measurement fair."
        )
    elif loop_lag_ms > limit_ms:
        fault = (
            f"The load client's loop woke {loop_lag_ms:.0f} ms late (99th percentile), and so did"
            f" its stamps, by more than the {limit_ms:.0f} ms that leave a measurement fair."
        )
    elif cpu > CPU_LIMIT:
        fault = (
            f"The load client used {cpu:.0%} of its core, more than the {CPU_LIMIT:.0%} at which"
            " its stamps are still on time."
        )
    return ClientHealth(
        send_lag_ms=send_lag_ms,
        loop_lag_ms=loop_lag_ms,
        cpu=cpu,
        fault=fault,
    )


def percentile(values: Iterable[float], percent: float) -> float:
    """The smallest value that ``percent`` of all do not exceed; 0 where there is none."""
    ordered = sorted(values)
    return ordered[math.ceil(percent / 100 * len(ordered)) - 1] if ordered else 0.0
