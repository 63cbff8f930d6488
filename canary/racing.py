"""Whether a trial under way can still win: it is ended once it cannot, and keeps what it measured.

An engine that is up takes seconds to show what minutes would only show more exactly. So the
requests that ended are looked at again and again while the load runs, and the run is over once even
the upper end of their interval is below the bar: the best so far, less what two starts of one
engine may differ by. The looks are at growing samples and at a high level, since each of them may
err. There is no clock here: a run is as old as the last end that was heard of.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from canary.intervals import Blocks, Share, rate_interval
from canary.objective import UNITS
from canary.waiting import waited, waits_s
from domain.load import Arrival, LoadPlan, RequestRecord
from domain.slo import SLO
from domain.study import Objective

LEVEL = 0.99
"""Of the two-sided interval at each look, of which the upper end counts."""

START_SPREAD = 0.1
"""How much less a winner may measure in one start than it is worth, as a share."""

LEAST_REQUESTS = 30
GROWTH = 1.3
"""A look at so many requests that began after the warm-up, and then each time that there are so
many times more."""

BLOCKS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """What a trial must be able to reach, in the objective's unit; see ``canary.objective``."""

    objective: Objective
    value: float

    @classmethod
    def below(cls, best: float, objective: Objective) -> Bar:
        """The bar that the best so far sets."""
        return cls(objective=objective, value=(1 - START_SPREAD) * best)


class Race:
    """One trial's run of ``plan`` against ``bar``; without a bar it is never lost."""

    def __init__(self, plan: LoadPlan, slo: SLO, bar: Bar | None) -> None:
        self._plan = plan
        self._slo = slo
        self._bar = bar
        self._ended: list[RequestRecord] = []
        self._fresh = 0
        self._next_look = LEAST_REQUESTS
        self.lost = ""

    def heard(self, record: RequestRecord) -> None:
        """A request ended. The tokens of one that began in the warm-up count where it ended later;
        how it was served does not, since the first ones of a run queue behind each other."""
        if record.end_s >= self._plan.warm_up_s:
            self._ended.append(record)
            self._fresh += self._is_fresh(record)

    def is_lost(self) -> bool:
        """Whether the trial cannot win any more; ``lost`` says why, in a sentence."""
        if self._bar and not self.lost and self._fresh >= self._next_look:
            self._next_look = int(GROWTH * self._fresh) + 1
            self.lost = self._look(self._bar)
        return bool(self.lost)

    def _look(self, bar: Bar) -> str:
        start_s = self._plan.warm_up_s
        seconds = max(record.end_s for record in self._ended) - start_s
        if seconds <= 0:
            return ""
        blocks = self._blocks(start_s, seconds, bar.objective)
        if blocks is None:
            return ""
        interval = rate_interval(blocks, level=LEVEL, seed=self._plan.seed)
        if interval.high >= bar.value:
            return ""
        return (
            f"Ended after {seconds:.0f} s of measuring, for it cannot win: at most"
            f" {interval.high:.4g} {UNITS[bar.objective]} ({LEVEL:.0%} interval,"
            f" {len(self._ended)} requests) where {bar.value:.4g} are needed."
        )

    def _blocks(self, start_s: float, seconds: float, objective: Objective) -> Blocks | None:
        """What ended in equal slices of the time so far. Tokens count where their request ended: of
        those under way nothing is known yet, and they make up for those that began earlier."""
        tokens, tries, good, done, waiting = ([0.0] * BLOCKS for _ in range(5))
        waits = waits_s(self._ended, self._is_open)
        for record, wait_s in zip(self._ended, waits, strict=True):
            block = min(int((record.end_s - start_s) / seconds * BLOCKS), BLOCKS - 1)
            is_fresh = self._is_fresh(record)
            tries[block] += is_fresh
            waiting[block] += wait_s if is_fresh else 0.0
            if record.error is None:
                tokens[block] += record.osl
                good[block] += is_fresh and self._is_good(record)
                done[block] += is_fresh
        slices = (seconds / BLOCKS,) * BLOCKS
        match objective:
            case Objective.GOODPUT:
                share = Share(hits=tuple(good), tries=tuple(tries))
                return Blocks(amounts=tuple(tokens), seconds=slices, share=share)
            case Objective.THROUGHPUT:
                return Blocks(amounts=tuple(tokens), seconds=slices)
            case Objective.LATENCY:
                known = sum(waiting) > 0
                return Blocks(amounts=tuple(done), seconds=tuple(waiting)) if known else None
            case Objective.COST:
                # A heavier load may be the better one for this engine.
                return None
            case _:
                assert_never(objective)

    @property
    def _is_open(self) -> bool:
        return self._plan.arrival is Arrival.OPEN

    def _is_fresh(self, record: RequestRecord) -> bool:
        return record.sent_s >= self._plan.warm_up_s

    def _is_good(self, record: RequestRecord) -> bool:
        latency = waited(record, self._is_open)
        return latency is not None and self._slo.met_by(latency)
