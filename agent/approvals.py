"""Who must approve what: a pure rule over autonomy and the config, and the question it opens."""

from __future__ import annotations

from domain.approval import ApprovalRequest, Autonomy
from domain.rollout import Phase, Rollout, RolloutPlan


def first_phase(autonomy: Autonomy, plan: RolloutPlan) -> Phase:
    """The phase a new rollout begins in. Whatever is not autonomous waits for a person, and so does
    what nothing is judged by on its way."""
    alone = autonomy is Autonomy.AUTONOMOUS and not plan.in_place
    return Phase.STARTING if alone else Phase.WAITING_APPROVAL


def ask(rollout: Rollout, request_id: str, ttl_s: float, now: float) -> ApprovalRequest:
    """The question that is put to a person, bound to this config and this version."""
    return ApprovalRequest(
        id=request_id,
        rollout_id=rollout.id,
        rollout_version=rollout.version,
        digest=rollout.candidate.digest,
        created_s=now,
        expires_s=now + ttl_s,
    )
