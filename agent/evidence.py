"""What is known of both arms at a rollout's step, handed to the judge; nothing is decided here.

Latency and completions come from the engines' metrics, broken answers from the gateway's counts.
At 100 % no traffic is left on the baseline: its figures are then those of an equally long window
just before the rollout, when it carried all of the traffic too. A controller that was restarted
since may not know that window any more; those of the first step, which are stored, stand in.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace

from agent.leadership import Leadership
from agent.store import decode, encode
from canary.live import LiveArm, judge_live
from domain.fleet import Role, Split
from domain.ports import MetricSource
from domain.rollout import Phase, Rollout
from domain.slo import SLO
from domain.verdict import Outcome, Verdict
from tools.arm import ArmReading, read_arm
from tools.profiler import Missing

LEAST_WINDOW_S = 2.0
FIRST_STEP = "baseline_at_first_step"
BEFORE = "The baseline's figures are those of an equally long window just before the rollout."
STOOD_IN = (
    "The baseline's figures are those of the rollout's first step: the time before it is not known."
)


class LiveEvidence:
    """One caller at a time. Remembers the gateway's counts from when a step was first seen.

    ``model`` is the served model's name.
    """

    def __init__(
        self, source: MetricSource, slo: SLO, leadership: Leadership, *, model: str
    ) -> None:
        self._source = source
        self._model = model
        self._slo = slo
        self._leadership = leadership
        self._step: tuple[str, int, float | None] | None = None
        self._errors_at_first: dict[Role, int] = {}

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
            _arm(candidate, errors[Role.CANARY]),
            _arm(baseline, 0 if whole else errors[Role.PRODUCTION]),
            min_requests=rollout.plan.min_requests,
            start_s=start_s,
            end_s=now,
            slo=self._slo,
            seed=_seed(rollout),
            queries=(*candidate.queries, *baseline.queries),
        )
        if rollout.step == 0 and verdict.outcome is Outcome.PASS:
            self._keep(rollout, baseline)
        if not whole:
            return verdict
        return _noted(verdict, BEFORE if kept is None else STOOD_IN)

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
        step = (rollout.id, rollout.step, rollout.baking_since_s)
        restarted = any(seen[role] < self._errors_at_first.get(role, 0) for role in Role)
        if step != self._step or restarted:
            self._step, self._errors_at_first = step, seen
        return {role: seen[role] - self._errors_at_first[role] for role in Role}


def _arm(reading: ArmReading, broken: int) -> LiveArm:
    errors = reading.errored + broken
    return LiveArm(
        requests=round(reading.completed + errors),
        errors=round(errors),
        ttft=reading.ttft_s,
        tpot=reading.tpot_s,
        prefix_hit_rate=reading.prefix_hit_rate,
    )


def _noted(verdict: Verdict, note: str) -> Verdict:
    if verdict.evidence is None:
        return verdict
    notes = (*verdict.evidence.notes, note)
    return replace(verdict, evidence=replace(verdict.evidence, notes=notes))


def _seed(rollout: Rollout) -> int:
    """The same for the same rollout and step, so that a verdict can be given again."""
    text = f"{rollout.id}/{rollout.step}".encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:4])
