"""What a comparison rests on and what it concludes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Outcome(Enum):
    """INCONCLUSIVE is neither proven good nor proven bad; it holds, and never expires to PASS."""

    PASS = "pass"
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A confidence interval at ``level`` (0–1), the method that gave it and its sample size."""

    low: float
    high: float
    level: float
    method: str
    n: int

    @property
    def percent(self) -> str:
        """Its level, as 99.5 %: several looks share one error, and no interval is of 100 %."""
        return f"{100 * self.level:.4g} %"


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """One metric of both arms and the candidate's ratio to (or difference from) the baseline.

    ``interval`` is that of ``estimate``, in ``unit`` ("ratio" or "difference").
    """

    metric: str
    baseline: float
    candidate: float
    estimate: float
    unit: str
    interval: Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What was compared: sample counts, the window (Unix seconds) and the questions asked."""

    baseline_n: int
    candidate_n: int
    start_s: float
    end_s: float
    queries: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """An outcome, the reason in one sentence, and the effects and evidence it rests on."""

    outcome: Outcome
    reason: str
    effects: tuple[Effect, ...] = ()
    evidence: Evidence | None = None
