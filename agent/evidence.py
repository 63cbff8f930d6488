"""What is known of both arms at a rollout's step, handed to the judge; nothing is decided here.

Latency and completions come from the engines' metrics, broken answers from the gateway's counts.
At 100 % no traffic is left on the baseline: its figures are then those of an equally long window
just before the rollout, when it carried all of the traffic too. A controller that was restarted
since may not know that window any more; those of the first step, which are stored, stand in.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

from agent.leadership import Leadership
from agent.store import decode, encode
from canary.live import judge_live
from domain.fleet import Role, Split
from domain.live import Compared, LiveArm, LiveTerms
from domain.ports import MetricSource
from domain.rollout import Phase, Rollout
from domain.slo import SLO
from domain.verdict import Outcome, Verdict
from tools.arm import ArmReading, read_arm
from tools.profiler import Missing

LEAST_WINDOW_S = 2.0
FIRST_STEP = "baseline_at_first_step"
STEP_BEGAN = "gateway_errors_as_the_step_began"
BEFORE = "The baseline's figures are those of an equally long window just before the rollout."
STOOD_IN = (
    "The baseline's figures are those of the rollout's first step: the time before it is not known."
)


class _Step(NamedTuple):
    """A step under way, and the gateway's count of broken answers when it was first seen."""

    rollout: str
    step: int
    baking_since_s: float | None
    errors: dict[Role, int]

    @property
    def began(self) -> tuple[str, int, float | None]:
        return self.rollout, self.step, self.baking_since_s


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

    async def verdict(self, rollout: Rollout, split: Split, now: float) -> Verdict | None:
        """The verdict on the step under way; ``None`` where no step is baking.

        Missing metrics give an inconclusive verdict that names what is missing.
        """
        if rollout.phase is not Phase.PROGRESSING or rollout.baking_since_s is None:
            return None
        errors = self._errors(rollout, split)
        start_s, window_s = rollout.baking_since_s, now - rollout.baking_since_s
        if window_s < LEAST_WINDOW_S:
            return None
        whole = rollout.plan.steps[rollout.step].weight == 100
        candidate = await self._read(Role.CANARY, now, window_s)
        baseline = await self._read(Role.PRODUCTION, rollout.created_s if whole else now, window_s)
        kept = self._kept(rollout) if whole and isinstance(baseline, Missing) else None
        baseline = kept or baseline
        for role, arm in ((Role.CANARY, candidate), (Role.PRODUCTION, baseline)):
            if isinstance(arm, Missing):
                reason = f"The metrics of the {role.arm} arm cannot be judged: {arm.reason}."
                return Verdict(outcome=Outcome.INCONCLUSIVE, reason=reason)
        assert isinstance(candidate, ArmReading) and isinstance(baseline, ArmReading)
        verdict = judge_live(
            Compared(
                candidate=_arm(candidate, errors[Role.CANARY]),
                baseline=_arm(baseline, 0 if whole else errors[Role.PRODUCTION]),
                terms=LiveTerms(
                    min_requests=rollout.plan.min_requests, slo=self._slo, seed=_seed(rollout)
                ),
            ),
            start_s=start_s,
            end_s=now,
            queries=(*candidate.queries, *baseline.queries),
            notes=(BEFORE if kept is None else STOOD_IN,) if whole else (),
        )
        if rollout.step == 0 and verdict.outcome is Outcome.PASS:
            self._keep(rollout, baseline)
        return verdict

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
        return decode(ArmReading, kept["reading"])

    def _errors(self, rollout: Rollout, split: Split) -> dict[Role, int]:
        """Broken answers of each arm since the step was first seen here."""
        seen = {role: sum(s.errors for s in split.slots if s.role is role) for role in Role}
        step = _Step(rollout.id, rollout.step, rollout.baking_since_s, seen)
        with self._leadership.view() as uow:
            kept = uow.state.get(STEP_BEGAN)
        begun = decode(_Step, kept) if kept is not None else step
        if begun.began != step.began:
            begun = step
        elif any(seen[role] < begun.errors[role] for role in Role):
            # The gateway was started anew, and counts from nothing.
            begun = step._replace(errors=dict.fromkeys(Role, 0))
        if (found := encode(begun)) != kept:
            with self._leadership.work() as uow:
                uow.state.set(STEP_BEGAN, found)
                uow.commit()
        return {role: seen[role] - begun.errors[role] for role in Role}


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
