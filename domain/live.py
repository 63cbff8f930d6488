"""What both arms of a rollout did in one window, and by which terms it is judged."""

from __future__ import annotations

from dataclasses import dataclass

from domain.slo import SLO
from domain.traffic import Distribution


@dataclass(frozen=True, slots=True, kw_only=True)
class Margins:
    """How much worse is still no harm: latencies as shares of the baseline's, the others as
    differences of two shares of requests (0–1): failed, cut for length, given up by the client."""

    ttft: float = 0.25
    tpot: float = 0.25
    error_rate: float = 0.01
    cut: float = 0.1
    aborted: float = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveArm:
    """What one arm did in the window. ``errors`` are among ``requests``, ``cut`` are those of them
    that ended at their longest length; ``aborted`` are further ones, which their client gave up.
    Histograms are in seconds."""

    requests: int
    errors: int
    ttft: Distribution
    tpot: Distribution
    cut: int = 0
    aborted: int = 0
    prefix_hit_rate: float | None = None

    def with_also(self, other: LiveArm) -> LiveArm:
        """Both windows as one; the hit rate stays this one's."""
        return LiveArm(
            requests=self.requests + other.requests,
            errors=self.errors + other.errors,
            ttft=self.ttft.with_also(other.ttft),
            tpot=self.tpot.with_also(other.tpot),
            cut=self.cut + other.cut,
            aborted=self.aborted + other.aborted,
            prefix_hit_rate=self.prefix_hit_rate,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveTerms:
    """What a step is judged by. ``level`` is that of the whole step, however often it is looked at;
    ``seed`` is that of every draw. While it is ``warming``, sessions meet a cache that does not
    know them yet: how requests end is judged alone, and nothing passes."""

    min_requests: int
    margins: Margins = Margins()
    slo: SLO | None = None
    level: float = 0.95
    seed: int = 0
    warming: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Variation:
    """How much the baseline's mean latencies differ between ``windows`` of time as long as the one
    that is judged: standard deviations of their logarithms."""

    ttft: float
    tpot: float
    windows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """All that a verdict on live traffic rests on, so that it can be given again.

    ``baseline`` is what endings are compared with, and latencies too where ``as_loaded`` is
    ``None``: it is the baseline in another time, in which its engines carried as much as the
    candidate's does. ``variation`` says how much these differ where latencies are of another time,
    and is ``None`` where they are of one."""

    candidate: LiveArm
    baseline: LiveArm
    terms: LiveTerms
    variation: Variation | None = None
    as_loaded: LiveArm | None = None
