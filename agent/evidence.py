"""What is known of both arms at a rollout's step, handed to the judge; nothing is decided here.

Latency and completions come from the engines' metrics, broken answers from the gateway's counts.
At 100 % no traffic is left on the baseline: its figures are then those of some windows just before
the rollout, when it carried all of the traffic too, each as long as the one judged. A controller
that was restarted since may not know that time any more; those of the first step, which are stored,
stand in. Where the lane carries the part of one of several replicas, all of them are still there
and carry less each than it does: latencies of the time before, when each carried as much, are
handed to the judge beside theirs.
"""

from __future__ import annotations

import asyncio
import hashlib
from functools import reduce
from itertools import takewhile
from typing import NamedTuple

from agent.bursts import Bursts, Counted, broken
from agent.leadership import Leadership
from agent.store import decode, encode
from canary.live import judge_live
from canary.variation import variation_of
from domain.errors import InvariantViolation
from domain.fleet import Role, Split
from domain.live import Compared, LiveArm, LiveTerms
from domain.ports import MetricSource
from domain.rollout import Phase, Rollout, most_weight
from domain.slo import SLO
from domain.traffic import Distribution
from domain.verdict import Outcome, Verdict
from tools.arm import ArmReading, read_arm
from tools.profiler import Missing

LEAST_WINDOW_S = 2.0
SOON_S = 15.0
"""Seconds in which a window that began is looked at, unless no controller ran."""
FIRST_STEP = "baseline_at_first_step"
STEP_BEGAN = "gateway_errors_as_the_step_began"
BEFORE = "The baseline's figures are those of windows as long, just before the rollout."
WINDOWS = 6
"""Windows before the rollout, as long as the one that is judged and a step's least time apart at
least, since what is close in time is alike."""
WARMING = 0.2
"""Share of a step's least time in which sessions that are new to the candidate meet a cache that
does not know them."""
MORE_LOAD = 1.1
"""Times what a replica carries beside it, that the lane may carry and be compared with it alone."""
AS_LOADED = (
    "Beside it production's replicas carry less each than the candidate's engine; where that tells "
    "latencies apart, the baseline's are those of before, when each carried as much."
)
STOOD_IN = (
    "The baseline's figures are those of the rollout's first step: the time before it is not known."
)


class _Step(NamedTuple):
    """The window of a step, and the gateway's counts when it was first seen: broken answers, and
    requests, of which rows of older versions know nothing."""

    rollout: str
    step: int
    start_s: float
    errors: dict[Role, int]
    requests: dict[Role, int] | None = None

    @property
    def began(self) -> tuple[str, int, float]:
        return self.rollout, self.step, self.start_s


class _Baseline(NamedTuple):
    """What the baseline did, in one window or in several, the ``latest`` first, and what there is
    to say of that."""

    latest: ArmReading
    windows: tuple[LiveArm, ...]
    notes: tuple[str, ...]

    @property
    def pooled(self) -> LiveArm:
        return reduce(LiveArm.with_also, self.windows)


UNKNOWN = Distribution(bounds=(), counts=(), total=0.0)
NOTHING = LiveArm(requests=0, errors=0, ttft=UNKNOWN, tpot=UNKNOWN)


class LiveEvidence:
    """One caller at a time. What it must know of earlier looks is stored, for the next controller.

    ``model`` is the served model's name.
    """

    def __init__(
        self, source: MetricSource, slo: SLO, leadership: Leadership, *, model: str
    ) -> None:
        self._source = source
        self._model = model
        self._slo = slo
        self._leadership = leadership
        self._bursts = Bursts()

    async def verdict(self, rollout: Rollout, split: Split, now: float) -> Verdict | None:
        """The verdict on the step under way; ``None`` where no step is baking.

        Missing metrics give an inconclusive verdict that names what is missing.
        """
        if rollout.phase is not Phase.PROGRESSING or rollout.baking_since_s is None:
            return None
        began_s = rollout.baking_since_s
        warm_s = began_s + WARMING * rollout.plan.steps[rollout.step].bake_s
        start_s = warm_s if now >= warm_s + LEAST_WINDOW_S else began_s
        window_s = now - start_s
        counted = self._counted(rollout, split, start_s, now)
        arms = counted[Role.CANARY], counted[Role.PRODUCTION]
        errors = {role: of_role.errors for role, of_role in counted.items()}
        if burst := self._bursts.proven(rollout.id, split, now, _seed(rollout)):
            return burst
        if window_s < LEAST_WINDOW_S:
            return None
        weight = rollout.plan.steps[rollout.step].weight
        whole = weight == 100
        candidate = await self._read(Role.CANARY, now, window_s)
        if whole:
            baseline = await self._before(rollout, window_s)
        else:
            baseline = await self._beside(now, window_s, errors[Role.PRODUCTION])
        for role, arm in ((Role.CANARY, candidate), (Role.PRODUCTION, baseline)):
            if isinstance(arm, Missing):
                least = rollout.plan.min_requests
                if found := broken(*arms, least, start_s, now, _seed(rollout)):
                    return found
                reason = f"The metrics of the {role.arm} arm cannot be judged: {arm.reason}."
                return Verdict(outcome=Outcome.INCONCLUSIVE, reason=reason)
        assert isinstance(candidate, ArmReading) and isinstance(baseline, _Baseline)
        varying, as_loaded, notes = baseline.windows if whole else (), None, baseline.notes
        if not whole and _carries_more(weight, rollout.plan.replicas):
            before = await self._before(rollout, window_s)
            as_loaded, notes = NOTHING, (*notes, AS_LOADED)
            if isinstance(before, _Baseline):
                varying, as_loaded = before.windows, before.pooled
                notes = (*notes, *before.notes)
        verdict = judge_live(
            Compared(
                candidate=_arm(candidate, errors[Role.CANARY]),
                baseline=baseline.pooled,
                terms=LiveTerms(
                    min_requests=rollout.plan.min_requests,
                    slo=self._slo,
                    seed=_seed(rollout),
                    warming=start_s < warm_s,
                ),
                variation=variation_of(varying) if varying else None,
                as_loaded=as_loaded,
            ),
            start_s=start_s,
            end_s=now,
            queries=(*candidate.queries, *baseline.latest.queries),
            notes=notes,
        )
        lighter = not whole and as_loaded is None
        if rollout.step == 0 and lighter and verdict.outcome is Outcome.PASS:
            self._keep(rollout, baseline.latest)
        return verdict

    async def _beside(self, now: float, window_s: float, errors: int) -> _Baseline | Missing:
        """The baseline in the same window."""
        reading = await self._read(Role.PRODUCTION, now, window_s)
        if isinstance(reading, Missing):
            return reading
        return _Baseline(reading, (_arm(reading, errors),), ())

    async def _before(self, rollout: Rollout, window_s: float) -> _Baseline | Missing:
        """The baseline in windows just before the rollout, the latest first, as far as they are
        known; else at its first step."""
        apart_s = max(window_s, rollout.plan.steps[rollout.step].bake_s)
        ends_s = (rollout.created_s - place * apart_s for place in range(WINDOWS))
        latest, *earlier = await asyncio.gather(
            *(self._read(Role.PRODUCTION, end_s, window_s) for end_s in ends_s)
        )
        if isinstance(latest, ArmReading):
            known = takewhile(lambda one: isinstance(one, ArmReading), earlier)
            arms = [_arm(one, 0) for one in known if isinstance(one, ArmReading)]
            # An idle window says nothing of how much the busy ones differ.
            busy = [arm for arm in arms if arm.requests >= rollout.plan.min_requests]
            return _Baseline(latest, (_arm(latest, 0), *busy), (BEFORE,))
        kept = self._kept(rollout)
        return latest if kept is None else _Baseline(kept, (_arm(kept, 0),), (STOOD_IN,))

    async def _read(self, role: Role, end_s: float, window_s: float) -> ArmReading | Missing:
        return await read_arm(
            self._source, model=self._model, arm=role.arm, end_s=end_s, window_s=window_s
        )

    def _keep(self, rollout: Rollout, baseline: ArmReading) -> None:
        with self._leadership.work() as uow:
            uow.state.set(FIRST_STEP, {"rollout": rollout.id, "reading": encode(baseline)})
            uow.commit()

    def _kept(self, rollout: Rollout) -> ArmReading | None:
        """The baseline's figures at the first step of this rollout, if it was judged there."""
        with self._leadership.view() as uow:
            kept = uow.state.get(FIRST_STEP)
        if not isinstance(kept, dict) or kept["rollout"] != rollout.id:
            return None
        try:
            return decode(ArmReading, kept["reading"])
        except InvariantViolation:
            # An older version wrote it, of which less is known than is judged now.
            return None

    def _counted(
        self, rollout: Rollout, split: Split, start_s: float, now: float
    ) -> dict[Role, Counted]:
        """What the gateway counted of each arm since this window of the step was first seen."""
        ever = {role: Counted.of(split, role) for role in Role}
        seen = {role: counted.errors for role, counted in ever.items()}
        sent = {role: counted.requests for role, counted in ever.items()}
        step = _Step(rollout.id, rollout.step, start_s, seen, sent)
        with self._leadership.view() as uow:
            kept = uow.state.get(STEP_BEGAN)
        begun = decode(_Step, kept) if kept is not None else step
        if begun.rollout != step.rollout:
            begun = step
        elif begun.began != step.began:
            # Broken answers of a time in which no controller looked are this window's.
            soon = now <= start_s + LEAST_WINDOW_S + SOON_S
            begun = step if soon else step._replace(errors=begun.errors, requests=begun.requests)
        asked = begun.requests or {}
        fewer = any(sent[role] < asked.get(role, 0) for role in Role)
        if fewer or any(seen[role] < begun.errors[role] for role in Role):
            # The gateway was started anew, and counts from nothing.
            nothing = dict.fromkeys(Role, 0)
            begun = step._replace(errors=nothing, requests=nothing)
        if (found := encode(begun)) != kept:
            with self._leadership.work() as uow:
                uow.state.set(STEP_BEGAN, found)
                uow.commit()
        before = begun.requests or sent
        return {
            role: counted.since(Counted(before[role], begun.errors[role]))
            for role, counted in ever.items()
        }


def _carries_more(weight: int, replicas: int) -> bool:
    """Whether the lane stands in for one of several replicas while the others carry less each."""
    in_for_one = replicas > 1 and weight == most_weight(replicas)
    return in_for_one and weight * replicas > MORE_LOAD * (100 - weight)


def _arm(reading: ArmReading, broken: int) -> LiveArm:
    errors = reading.errored + broken
    return LiveArm(
        requests=round(reading.completed + errors),
        errors=round(errors),
        ttft=reading.ttft_s,
        tpot=reading.tpot_s,
        cut=round(reading.cut),
        aborted=round(reading.aborted),
        prefix_hit_rate=reading.prefix_hit_rate,
    )


def _seed(rollout: Rollout) -> int:
    """The same for the same rollout and step, so that a verdict can be given again."""
    text = f"{rollout.id}/{rollout.step}".encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:4])
