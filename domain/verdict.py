"""What a comparison rests on and what it concludes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from domain.interval import Interval
from domain.live import Compared


class Outcome(Enum):
    """INCONCLUSIVE is neither proven good nor proven bad; it holds, and never expires to PASS."""

    PASS = "pass"
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"


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
    """What was compared: sample counts, the window (Unix seconds) and the questions asked.

    ``compared`` is the whole of it where live traffic was judged, so that the verdict can be given
    again; ``None`` in a rehearsal, whose measurements stand with its trials.
    """

    baseline_n: int
    candidate_n: int
    start_s: float
    end_s: float
    queries: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    compared: Compared | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """An outcome, the reason in one sentence, and the effects and evidence it rests on."""

    outcome: Outcome
    reason: str
    effects: tuple[Effect, ...] = ()
    evidence: Evidence | None = None
