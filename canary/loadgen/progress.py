"""How far a run has come, and whether that is a reason to end it. It has no clock of its own."""

from __future__ import annotations

from collections import deque
from typing import Protocol

from canary.loadgen.options import Options
from canary.loadgen.saturation import EARLY_LEFT, Sample, over_saturated
from domain.load import Arrival, LoadPlan, RequestSpec, StopCause, Stopped

SAMPLE_S = 0.5


class Answering(Protocol):
    """What is known of a request under way: when its first token came."""

    first_s: float | None


class Progress:
    """Counts of one run. ``spent`` says that the budget allows no further request."""

    def __init__(self, plan: LoadPlan, options: Options) -> None:
        self._open = plan.arrival is Arrival.OPEN
        self._warm_up_s = plan.warm_up_s
        self._plan_s = plan.duration_s
        self._budget = options.budget
        self._limits = options.saturation
        self._samples: deque[Sample] = deque()
        self._tokens = 0
        self._asked = 0
        self._lag_s = 0.0
        # When each request that is under way began, and those that had no first token yet.
        self._begun_s: dict[Answering, float] = {}
        self._waiting: set[Answering] = set()
        # The requests that tell whether the run has filled up: those of its first seconds.
        self._early_s = max(plan.warm_up_s, self._limits.growing_s / 2)
        self._early = 0
        self._early_left = 0
        self.spent: Stopped | None = None

    @property
    def duration_s(self) -> float:
        """When to cut off: at the plan's end or that of the budget's seconds."""
        seconds = self._budget.seconds
        return self._plan_s if seconds is None else min(self._plan_s, seconds)

    def ask(self, spec: RequestSpec) -> bool:
        """Count a request that is due; ``False`` where the budget has no room for it."""
        budget, tokens = self._budget, spec.isl + spec.osl
        if budget.requests is not None and self._asked >= budget.requests:
            self._spend(f"{budget.requests:,} requests")
        elif budget.tokens is not None and self._tokens + tokens > budget.tokens:
            self._spend(f"{budget.tokens:,} tokens")
        if self.spent is not None:
            return False
        self._asked += 1
        self._tokens += tokens
        return True

    def sent(self, lag_s: float) -> None:
        """A request went out so late."""
        self._lag_s = max(self._lag_s, lag_s)

    def begun(self, answer: Answering, at_s: float) -> None:
        """A request that was asked for is under way."""
        self._begun_s[answer] = at_s
        self._waiting.add(answer)
        if at_s < self._early_s:
            self._early += 1
            self._early_left += 1

    def ended(self, answer: Answering) -> None:
        self._waiting.discard(answer)
        if self._begun_s.pop(answer) < self._early_s:
            self._early_left -= 1

    def look(self, now_s: float) -> Stopped | None:
        """Why an open run must end at ``now_s`` for want of an engine that keeps up, if it must."""
        if not self._open or (self._samples and now_s < self._samples[-1].at_s + SAMPLE_S):
            return None
        self._waiting = {answer for answer in self._waiting if answer.first_s is None}
        if now_s < self._warm_up_s or len(self._waiting) == self._asked:
            self._samples.clear()  # before the first token all that is asked for waits
        self._samples.append(
            Sample(
                at_s=now_s,
                asked=self._asked,
                under_way=len(self._begun_s),
                waiting=len(self._waiting),
                lag_s=self._lag_s,
                filling=now_s < self._early_s or self._early_left > EARLY_LEFT * self._early,
            )
        )
        self._lag_s = 0.0
        # One sample older than what is looked at shows that all of that time was seen.
        while len(self._samples) > 1 and self._samples[1].at_s < now_s - self._limits.growing_s:
            self._samples.popleft()
        reason = over_saturated(tuple(self._samples), self._limits)
        return Stopped(cause=StopCause.OVER_SATURATED, sentence=reason) if reason else None

    def over(self, now_s: float) -> Stopped | None:
        """Which bound of the budget ended a run that is over at ``now_s``, if one did."""
        if self._budget.seconds is not None and self.duration_s <= now_s < self._plan_s:
            self._spend(f"{self._budget.seconds:g} s")
        return self.spent

    def _spend(self, what: str) -> None:
        self.spent = self.spent or Stopped(
            cause=StopCause.BUDGET, sentence=f"The budget of {what} was spent."
        )
