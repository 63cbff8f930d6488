"""Latency of one request, the limits it must meet, and goodput under them.

Definitions are those of vLLM's own benchmark: TTFT is from sending to the first token, E2EL to the
last, TPOT is (E2EL − TTFT) / (OSL − 1). All are milliseconds.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from domain.errors import BadInput


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLatency:
    """What one completed request took; ``tpot_ms`` is ``None`` where OSL is 1."""

    ttft_ms: float
    e2el_ms: float
    tpot_ms: float | None


_TERM = re.compile(r"^(ttft|tpot|e2el)\s*<=?\s*(\d+(?:\.\d+)?)\s*(ms|s)$")
_SHARE = re.compile(r"^share\s*>?=\s*(\d+(?:\.\d+)?)\s*%$")
_EXAMPLE = "write it like 'ttft<=500ms, tpot<=50ms, share>=95%'"


@dataclass(frozen=True, slots=True, kw_only=True)
class SLO:
    """Limits that a request must meet, and the share of requests (0–1) that must meet them."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    e2el_ms: float | None = None
    share: float = 0.95

    @classmethod
    def parse(cls, text: str) -> SLO:
        """Read ``'ttft<=500ms, tpot<=50ms, share>=95%'``; anything else raises BadInput."""
        limits: dict[str, float] = {}
        share = 0.95
        for term in filter(None, (part.strip().lower() for part in text.split(","))):
            if limit := _TERM.match(term):
                name = f"{limit[1]}_ms"
                if name in limits:
                    raise BadInput(f"The SLO names {limit[1]} twice; name each limit once.")
                limits[name] = float(limit[2]) * (1000 if limit[3] == "s" else 1)
                if limits[name] <= 0:
                    raise BadInput(f"The SLO's {limit[1]} must be above zero; {_EXAMPLE}.")
            elif wanted := _SHARE.match(term):
                share = float(wanted[1]) / 100
                if not 0 < share <= 1:
                    raise BadInput(
                        f"The SLO's share must be above 0 % and at most 100 %; got {term!r}."
                    )
            else:
                raise BadInput(f"The SLO's term {term!r} cannot be read; {_EXAMPLE}.")
        if not limits:
            raise BadInput(f"The SLO {text!r} has no limit; {_EXAMPLE}.")
        return cls(**limits, share=share)

    def met_by(self, latency: RequestLatency) -> bool:
        """Whether one completed request meets all limits."""
        return (
            (self.ttft_ms is None or latency.ttft_ms <= self.ttft_ms)
            and (self.e2el_ms is None or latency.e2el_ms <= self.e2el_ms)
            and (self.tpot_ms is None or latency.tpot_ms is None or latency.tpot_ms <= self.tpot_ms)
        )

    def __str__(self) -> str:
        limits = {"ttft": self.ttft_ms, "tpot": self.tpot_ms, "e2el": self.e2el_ms}
        terms = [f"{name}<={limit:g}ms" for name, limit in limits.items() if limit is not None]
        return ", ".join([*terms, f"share>={self.share * 100:g}%"])
