"""How long users waited for requests, which goodput and latency judge by: pure.

In an open plan a request waits from when it was due, in a closed one from when it was sent, since
nobody waited before. It must not let an engine look faster by what it left undone: those that it
answers quickly are often the short ones.
"""

from __future__ import annotations

from collections.abc import Sequence

from domain.load import RequestError, RequestRecord
from domain.slo import RequestLatency


def waited(record: RequestRecord, is_open: bool) -> RequestLatency | None:
    """How long a user would have waited for what the request gave; ``None`` where it gave none."""
    return record.latency_from_schedule if is_open else record.latency


def waits_s(records: Sequence[RequestRecord], is_open: bool) -> tuple[float, ...]:
    """The seconds that each of ``records`` counts as waited.

    Those of a completed request are its E2EL. A failed one counts as waited until it failed, and as
    long as the longest that completed at least. One that was cut off by the end of the test counts
    for nothing, as it does elsewhere, unless it had waited longer than any that completed: an
    engine that leaves some requests lying would be the faster for it.
    """
    done = [None if (of := waited(r, is_open)) is None else of.e2el_ms / 1000 for r in records]
    longest = max((wait for wait in done if wait is not None), default=0.0)

    def undone(record: RequestRecord) -> float:
        so_far = record.end_s - (record.scheduled_s if is_open else record.sent_s)
        if record.error is RequestError.CANCELLED and so_far <= longest:
            return 0.0
        return max(so_far, longest)

    pairs = zip(records, done, strict=True)
    return tuple(undone(record) if wait is None else wait for record, wait in pairs)
