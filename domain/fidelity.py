"""How closely a rehearsal of the production config reproduces what production measures live."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple


class Signal(Enum):
    """What both sides measure; hit rate and acceptance are 0–1, lengths are tokens."""

    ISL_MEAN = "isl_mean"
    ISL_P50 = "isl_p50"
    ISL_P95 = "isl_p95"
    OSL_MEAN = "osl_mean"
    OSL_P50 = "osl_p50"
    OSL_P95 = "osl_p95"
    PREFIX_HIT_RATE = "prefix_hit_rate"
    DRAFT_ACCEPTANCE = "draft_acceptance"
    RATE = "rate_rps"
    OUTPUT = "output_tok_s"
    TTFT_P50 = "ttft_p50_ms"
    TTFT_P95 = "ttft_p95_ms"
    TPOT_P50 = "tpot_p50_ms"
    TPOT_P95 = "tpot_p95_ms"

    @property
    def words(self) -> str:
        """As a person says it."""
        return _NAMES[self].words

    @property
    def unit(self) -> str:
        """What follows the figure; empty for a share."""
        return _NAMES[self].unit


class _Name(NamedTuple):
    words: str
    unit: str


_NAMES = {
    Signal.ISL_MEAN: _Name("mean ISL", " tokens"),
    Signal.ISL_P50: _Name("ISL p50", " tokens"),
    Signal.ISL_P95: _Name("ISL p95", " tokens"),
    Signal.OSL_MEAN: _Name("mean OSL", " tokens"),
    Signal.OSL_P50: _Name("OSL p50", " tokens"),
    Signal.OSL_P95: _Name("OSL p95", " tokens"),
    Signal.PREFIX_HIT_RATE: _Name("prefix hit rate", ""),
    Signal.DRAFT_ACCEPTANCE: _Name("draft acceptance", ""),
    Signal.RATE: _Name("request rate", "/s"),
    Signal.OUTPUT: _Name("output", " tokens/s"),
    Signal.TTFT_P50: _Name("TTFT p50", " ms"),
    Signal.TTFT_P95: _Name("TTFT p95", " ms"),
    Signal.TPOT_P50: _Name("TPOT p50", " ms"),
    Signal.TPOT_P95: _Name("TPOT p95", " ms"),
}


class Agreement(Enum):
    """CLOSE is within the allowance, OFF beyond it, FAR so far beyond that neither chance nor
    buckets explain it; UNKNOWN where a side is missing or the samples are too small to tell.
    LEFT_OUT is known and does not count, for a reason that is told: no rehearsal can repeat it."""

    CLOSE = "close"
    OFF = "off"
    FAR = "far"
    UNKNOWN = "unknown"
    LEFT_OUT = "left out"


class Grade(Enum):
    """From A, all is known and close, to D, a figure that matters is far off.

    UNKNOWN is no grade at all: too little of what matters is known to give one.
    """

    A = "A"
    B = "B"
    C = "C"
    D = "D"
    UNKNOWN = "unknown"

    def meets(self, limit: Grade) -> bool:
        """Whether this grade is as good as ``limit`` or better; UNKNOWN meets none, not even D."""
        return self is not Grade.UNKNOWN and self.value <= limit.value

    @property
    def words(self) -> str:
        """What a rehearsal of this grade does."""
        return _GRADES[self]


_GRADES = {
    Grade.A: "reproduces production closely",
    Grade.B: "reproduces production with small gaps",
    Grade.C: "reproduces production in part",
    Grade.D: "does not reproduce production",
    Grade.UNKNOWN: "cannot be compared with production",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FidelityRow:
    """One signal of both sides; ``low`` to ``high`` are the rehearsed figures that count as close.

    ``live_n`` and ``rehearsed_n`` are the requests that each side rests on. A side is ``None``
    where it does not know the signal; then there is no allowance either.
    """

    signal: Signal
    live: float | None
    rehearsed: float | None
    agreement: Agreement
    low: float | None = None
    high: float | None = None
    live_n: float = 0.0
    rehearsed_n: int = 0

    @property
    def difference(self) -> float | None:
        """Rehearsed minus live."""
        if self.live is None or self.rehearsed is None:
            return None
        return self.rehearsed - self.live

    @property
    def sentence(self) -> str:
        """Both figures, for example ``"prefix hit rate 0.02 against 0.71 live"``."""
        rehearsed, live = self._shown(self.rehearsed), self._shown(self.live)
        return f"{self.signal.words} {rehearsed} against {live} live"

    def _shown(self, value: float | None) -> str:
        if value is None:
            return "unknown"
        digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
        return f"{value:,.{digits}f}{self.signal.unit}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fidelity:
    """The grade, all rows, and the grade's reasons as whole sentences."""

    grade: Grade
    rows: tuple[FidelityRow, ...]
    reasons: tuple[str, ...]

    def of(self, agreement: Agreement) -> tuple[FidelityRow, ...]:
        """The rows that agree so."""
        return tuple(row for row in self.rows if row.agreement is agreement)
