"""How far arms of two times may differ by the times alone: pure.

At the last step no traffic is left on the baseline, and its figures are of the time before the
rollout. Load and prompts are never quite the same in two windows of some minutes, so an interval
from within the windows errs there by far. What the baseline itself did in several such windows says
how far a further one may lie off: Student's prediction interval on the logarithms of its means,
with a spread that is moderated by what is usual, since a few windows say little of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from scipy.special import stdtrit

from domain.interval import Interval
from domain.live import LiveArm, Variation
from domain.traffic import Distribution

USUAL = 0.1
"""Standard deviation of the logarithm of a mean latency between two windows, as it usually is;
weighed with ``USUAL_DOF`` degrees of freedom against what was seen."""
USUAL_DOF = 2

LOOKS = 5
"""Times, at most about, that are unlike each other among all those of the looks at one step: they
share its error."""


def variation_of(windows: Sequence[LiveArm]) -> Variation:
    """How much the baseline varies, by equally long windows of it, one at least."""
    return Variation(
        ttft=_spread(arm.ttft for arm in windows),
        tpot=_spread(arm.tpot for arm in windows),
        windows=len(windows),
    )


def _spread(latencies: Iterable[Distribution]) -> float:
    logs = [math.log(each.mean) for each in latencies if each.mean]
    middle = fmean(logs) if logs else 0.0
    squares = sum((log - middle) ** 2 for log in logs)
    return math.sqrt((squares + USUAL_DOF * USUAL**2) / (max(len(logs) - 1, 0) + USUAL_DOF))


@dataclass(frozen=True, slots=True, kw_only=True)
class Elsewhen:
    """How far a figure of another time may lie off, as a share of it, by so many windows; of no
    windows where it is of the same time."""

    share: float
    windows: int

    @classmethod
    def of(cls, spread: float, windows: int, level: float) -> Elsewhen:
        deviate = float(stdtrit(windows - 1 + USUAL_DOF, 1 - (1 - level) / 2 / LOOKS))
        return cls(share=deviate * spread * math.sqrt(1 + 1 / windows), windows=windows)

    def widened(self, interval: Interval, estimate: float, baseline: float) -> Interval:
        """The interval of a difference from ``baseline`` with this in it."""
        if not self.windows:
            return interval
        off = self.share * baseline
        return replace(
            interval,
            low=estimate - math.hypot(estimate - interval.low, off),
            high=estimate + math.hypot(interval.high - estimate, off),
            method=f"{interval.method}, and for what {self.windows} windows of time differ",
        )


SAME_TIME = Elsewhen(share=0.0, windows=0)
