"""Whether an engine fails to keep up with the rate that an open plan asks of it: pure.

Beyond its capacity an engine's latencies have no end: they grow for as long as the load lasts, and
measuring them longer tells nothing new. What waits for its first token, and what is asked and not
yet ended, tell it early. A burst that the engine works off, and a run that fills up because its
answers are long, must not be taken for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import sqrt
from typing import NamedTuple

from domain.errors import BadInput

# A growth that is steady rises through each of so many equal parts of the time looked at.
PARTS = 5
# The share of what was asked that must be left undone: less is within what a rate means.
UNDONE = 0.1
# A run has filled up once no more than this share of its first requests is under way: then long
# answers alone make it grow by no larger share of what is asked, which is well below UNDONE.
EARLY_LEFT = UNDONE / 2
# Standard deviations of chance arrivals and ends that the growth must exceed.
DEVIATIONS = 4.0
# While a run fills up its growth fades, in over-saturation it does not.
FADED = 0.7
# A schedule that is so much later than before is not kept, whatever the reason.
LEAST_LAG_S = 0.5


class Sample(NamedTuple):
    """A look at a run: requests asked for so far, those not yet ended, the latest send's lag.

    ``waiting`` are those under way without a first token. A run is ``filling`` up while too many of
    its first requests are under way: more of them are under way in any case.
    """

    at_s: float
    asked: int
    under_way: int
    waiting: int
    lag_s: float
    filling: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """When to give up: ``under_way`` requests at once, or steady growth through ``growing_s``.

    ``None`` for ``under_way`` sets no limit, and an infinite ``growing_s`` never gives up.
    """

    under_way: int | None = None
    growing_s: float = 30.0

    def __post_init__(self) -> None:
        if self.under_way is not None and self.under_way < 1:
            raise BadInput(
                f"A limit of {self.under_way} requests under way lets none be sent; give 1 or more."
            )
        if not self.growing_s > 0:
            raise BadInput(f"Growth over {self.growing_s} s cannot be seen; give more than 0 s.")


def over_saturated(samples: Sequence[Sample], limits: Limits) -> str | None:
    """Why the engine cannot keep up, in one sentence; ``None`` where that is not shown.

    ``samples`` are in order of time, from when the run was warm, and about evenly spaced.
    """
    if not samples:
        return None
    last = samples[-1]
    if limits.under_way is not None and last.under_way > limits.under_way:
        return (
            f"{last.under_way} requests were under way at once, more than the limit of"
            f" {limits.under_way}."
        )
    from_s = last.at_s - limits.growing_s
    window = [sample for sample in samples if sample.at_s >= from_s]
    if samples[0].at_s > from_s or len(window) < 2 * PARTS:
        return None
    first = window[0]
    seconds, asked = last.at_s - first.at_s, last.asked - first.asked
    if _left_behind(window, [sample.waiting for sample in window]):
        return (
            f"Requests that wait for a first token grew from {first.waiting} to {last.waiting} in"
            f" {seconds:.0f} s, while {asked} were asked for."
        )
    if not first.filling and _left_behind(window, [sample.under_way for sample in window]):
        return (
            f"Requests under way grew from {first.under_way} to {last.under_way} in"
            f" {seconds:.0f} s, while {asked} were asked for."
        )
    if _growth([sample.lag_s for sample in window]) > LEAST_LAG_S:
        return (
            f"The schedule's lag grew from {first.lag_s:.1f} s to {last.lag_s:.1f} s in"
            f" {seconds:.0f} s."
        )
    return None


def _left_behind(window: Sequence[Sample], undone: Sequence[int]) -> bool:
    """Whether the work ``undone`` grew beyond chance, at fewer done a second than the run asks for.

    The second part lets a burst pass: what the engine does during one is what it can do, and that
    suffices where it is more than the run's rate so far.
    """
    first, last = window[0], window[-1]
    asked = last.asked - first.asked
    if asked == 0:
        return False
    done_rps = (asked - undone[-1] + undone[0]) / (last.at_s - first.at_s)
    if done_rps > (1 - UNDONE) * last.asked / last.at_s:
        return False
    least = max(UNDONE * asked, DEVIATIONS * sqrt(2 * asked))
    # From the middle of the first part to the middle of the last.
    return _growth(undone) > least * (PARTS - 1) / PARTS


def _growth(values: Sequence[float]) -> float:
    """How far values rose from their first part to their last; 0 where not steadily."""
    bounds = [i * len(values) // PARTS for i in range(PARTS + 1)]
    means = [sum(values[low:high]) / (high - low) for low, high in pairwise(bounds)]
    if any(after <= before for before, after in pairwise(means)):
        return 0.0
    middle = means[PARTS // 2]
    faded = means[-1] - middle < FADED * (middle - means[0])
    return 0.0 if faded else means[-1] - means[0]
