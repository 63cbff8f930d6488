"""What the API says of rollouts and approvals, made from their nouns by ``of``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from agent.api.schemas import ChangeView, ConfigView, View
from agent.api.verdict_schemas import VerdictView
from agent.store import GivenVerdict
from domain.approval import ApprovalRequest
from domain.rollout import Rollout


class StepView(View):
    weight: int
    bake_s: float


class RolloutView(View):
    """``step`` indexes ``steps``, of which there are none ``in_place``; ``baking_since_s`` is
    ``null`` until its weight is in force. ``replicas`` are those of production that it was planned
    for. ``promoted_s`` is ``null`` but for one that goes back after its promotion."""

    id: str
    study_id: str
    version: int
    created_s: float
    phase: str
    phase_since_s: float
    paused: bool
    stalled: bool
    promoted_s: float | None
    reason: str
    rationale: str
    step: int
    steps: list[StepView]
    replicas: int
    in_place: bool
    baking_since_s: float | None
    baseline: ConfigView
    candidate: ConfigView
    changes: list[ChangeView]

    @classmethod
    def of(cls, rollout: Rollout) -> Self:
        return cls(
            id=rollout.id,
            study_id=rollout.study_id,
            version=rollout.version,
            created_s=rollout.created_s,
            phase=rollout.phase.value,
            phase_since_s=rollout.phase_since_s,
            paused=rollout.paused,
            stalled=rollout.stalled,
            promoted_s=rollout.promoted_s,
            reason=rollout.reason,
            rationale=rollout.rationale,
            step=rollout.step,
            steps=[StepView(weight=s.weight, bake_s=s.bake_s) for s in rollout.plan.steps],
            replicas=rollout.plan.replicas,
            in_place=rollout.plan.in_place,
            baking_since_s=rollout.baking_since_s,
            baseline=ConfigView.of(rollout.baseline),
            candidate=ConfigView.of(rollout.candidate),
            changes=ChangeView.between(rollout.baseline, rollout.candidate),
        )


class ApprovalView(View):
    """A question; ``answer`` and ``answered_s`` are ``null`` while it is open."""

    id: str
    rollout_id: str
    rollout_version: int
    digest: str
    created_s: float
    expires_s: float
    answer: str | None
    answered_by: str
    answered_s: float | None

    @classmethod
    def of(cls, request: ApprovalRequest) -> Self:
        return cls(
            id=request.id,
            rollout_id=request.rollout_id,
            rollout_version=request.rollout_version,
            digest=request.digest,
            created_s=request.created_s,
            expires_s=request.expires_s,
            answer=request.answer.value if request.answer else None,
            answered_by=request.answered_by,
            answered_s=request.answered_s,
        )


class RolloutDetail(View):
    """A rollout with its live verdicts and its questions, each oldest first."""

    rollout: RolloutView
    verdicts: list[VerdictView]
    approvals: list[ApprovalView]

    @classmethod
    def of(
        cls,
        rollout: Rollout,
        verdicts: Sequence[GivenVerdict],
        requests: Sequence[ApprovalRequest],
    ) -> Self:
        return cls(
            rollout=RolloutView.of(rollout),
            verdicts=[VerdictView.of(given) for given in verdicts],
            approvals=[ApprovalView.of(request) for request in requests],
        )


class OpenApproval(View):
    """An open question with what a person needs to answer it.

    ``verdict`` is that of the rehearsal, ``null`` where the config was not rehearsed.
    """

    approval: ApprovalView
    rollout: RolloutView
    verdict: VerdictView | None

    @classmethod
    def of(
        cls, request: ApprovalRequest, rollout: Rollout, rehearsed: Sequence[GivenVerdict]
    ) -> Self:
        return cls(
            approval=ApprovalView.of(request),
            rollout=RolloutView.of(rollout),
            verdict=VerdictView.of(rehearsed[-1]) if rehearsed else None,
        )
