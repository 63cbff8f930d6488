"""What the gateway counts of both arms, and whether answers that break of late prove harm alone.

It needs no metrics, so an engine that fails is seen also where it shows none. What is remembered is
of the latest seconds: a controller that was restarted begins anew.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from canary.live import judge_live
from domain.fleet import Role, Split
from domain.live import Compared, LiveArm, LiveTerms
from domain.traffic import Distribution
from domain.verdict import Outcome, Verdict

RECENT_S = 15.0
"""How far back answers are looked at together, where few come between two looks."""
BY_GATEWAY = "The gateway's own counts prove it, without any metrics."


class Counted(NamedTuple):
    """What the gateway counted of one arm."""

    requests: int
    errors: int

    @classmethod
    def of(cls, split: Split, role: Role) -> Counted:
        """Since the gateway started."""
        slots = [slot for slot in split.slots if slot.role is role]
        return cls(sum(slot.requests for slot in slots), sum(slot.errors for slot in slots))

    def since(self, before: Counted) -> Counted:
        return Counted(max(0, self.requests - before.requests), max(0, self.errors - before.errors))

    @property
    def arm(self) -> LiveArm:
        """The arm as far as it is known without metrics."""
        unknown = Distribution(bounds=(), counts=(), total=0.0)
        return LiveArm(requests=self.requests, errors=self.errors, ttft=unknown, tpot=unknown)


class _Look(NamedTuple):
    at_s: float
    candidate: Counted


class Bursts:
    """One caller at a time; it remembers the looks of one rollout."""

    def __init__(self) -> None:
        self._rollout = ""
        self._looks: deque[_Look] = deque()

    def proven(self, rollout: str, split: Split, now: float, seed: int) -> Verdict | None:
        """That more answers broke than chance gives, since the last look or those of the last
        ``RECENT_S``; ``None`` where that is not proven. All that production ever answered tells how
        many break by themselves."""
        here = _Look(now, Counted.of(split, Role.CANARY))
        if rollout != self._rollout or (self._looks and self._looks[-1].at_s > now):
            self._looks.clear()
        self._rollout = rollout
        while len(self._looks) > 1 and self._looks[1].at_s <= now - RECENT_S:
            self._looks.popleft()
        before = [self._looks[-1], self._looks[0]] if self._looks else []
        self._looks.append(here)
        baseline = Counted.of(split, Role.PRODUCTION)
        for look in before:
            seen = here.candidate.since(look.candidate)
            found = broken(seen, baseline, seen.requests + 1, look.at_s, now, seed)
            if found is not None:
                return found
        return None


def broken(
    candidate: Counted, baseline: Counted, least: int, start_s: float, end_s: float, seed: int
) -> Verdict | None:
    """That the candidate breaks answers, as the judge of a step finds it: by a burst alone where it
    has fewer than ``least`` requests."""
    if candidate.errors == 0:
        return None
    found = judge_live(
        Compared(
            candidate=candidate.arm,
            baseline=baseline.arm,
            # As while a cache is warming, nothing but how requests end is judged.
            terms=LiveTerms(min_requests=least, seed=seed, warming=True),
        ),
        start_s=start_s,
        end_s=end_s,
        notes=(BY_GATEWAY,),
    )
    return found if found.outcome is Outcome.FAIL else None
