"""Hard limits that stand outside the planner's reach: what may be begun at all, and why not.

Every question is answered by a refusal in one sentence, or ``None`` where nothing speaks against.
Nothing here acts or remembers; the counts are arguments.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from domain.approval import Autonomy
from domain.rollout import Phase, Rollout

DAY_S = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Budgets and cooldowns. ``cooldown_s`` also bars a return to a config that was left.

    ``lane_s_a_study`` and ``lane_s_a_day`` bound the seconds of the canary lane; ``None`` is none.
    """

    autonomy: Autonomy
    changes_a_day: int
    studies_a_day: int
    cooldown_s: float
    lane_s_a_study: float | None = None
    lane_s_a_day: float | None = None


def refuse_study(
    limits: Limits, started_s: Sequence[float], asked_for: bool, now: float
) -> str | None:
    """Why no study may begin. ``started_s`` are the starts of earlier ones (Unix seconds).

    A person's order (``asked_for``) passes the cooldown, never the autonomy or the day's budget.
    """
    if limits.autonomy is Autonomy.OBSERVE:
        return "Autonomy is observe: nothing is rehearsed."
    today = [at for at in started_s if now - at < DAY_S]
    if len(today) >= limits.studies_a_day:
        return f"The day's budget of {limits.studies_a_day} studies is used up."
    if not asked_for and today and now - max(today) < limits.cooldown_s:
        left_s = limits.cooldown_s - (now - max(today))
        return f"Cooling down for another {left_s:.0f} s after the last study."
    return None


def refuse_minutes(limits: Limits, used_s: float, least_s: float) -> str | None:
    """Why no study fits in the day's canary minutes, of which ``used_s`` went in the last 24 hours.
    A study that can prove anything takes up to ``least_s``."""
    day_s = limits.lane_s_a_day
    if day_s is None or day_s - used_s >= least_s:
        return None
    return (
        f"A study may need {math.ceil(least_s / 60)} min of the canary lane, and of the day's "
        f"{day_s / 60:.0f} min {used_s / 60:.0f} are used up; wait until they are a day old, or "
        "raise canary_minutes_a_day."
    )


def left_today_s(limits: Limits, used_s: float) -> float | None:
    """Seconds of the canary lane that are left of the day's; ``None`` where nothing bounds them."""
    return None if limits.lane_s_a_day is None else max(0.0, limits.lane_s_a_day - used_s)


def refuse_rollout(
    limits: Limits, earlier: Sequence[Rollout], candidate_digest: str, now: float
) -> str | None:
    """Why no rollout of the candidate may begin, given the ``earlier`` ones."""
    if limits.autonomy in (Autonomy.OBSERVE, Autonomy.RECOMMEND):
        return f"Autonomy is {limits.autonomy.value}: nothing is rolled out."
    if any(not rollout.phase.ended for rollout in earlier):
        return "Another rollout is under way."
    moved = [r for r in earlier if r.phase in (Phase.PROMOTED, Phase.ROLLED_BACK)]
    if sum(now - at_s < DAY_S for r in moved for at_s in _changes(r)) >= limits.changes_a_day:
        return f"The day's budget of {limits.changes_a_day} changes is used up."
    for rollout in moved:
        recent = now - rollout.phase_since_s < limits.cooldown_s
        left = rollout.baseline if rollout.phase is Phase.PROMOTED else rollout.candidate
        if recent and left.digest == candidate_digest:
            return f"Config {candidate_digest} was left less than {limits.cooldown_s:.0f} s ago."
    return None


def _changes(rollout: Rollout) -> tuple[float, ...]:
    """When an ended rollout moved production; one that went back after its promotion did twice."""
    if rollout.promoted_s is None:
        return (rollout.created_s,)
    return rollout.created_s, rollout.phase_since_s
