"""`serinus rollout show`: one rollout with every verdict on it, from the store alone.

Each verdict on live traffic is given again from its own evidence, so that a person sees that what
is stored is what was judged.
"""

from __future__ import annotations

import time

from agent.api.rollout_schemas import RolloutDetail
from agent.status import existing, named
from agent.store import GivenVerdict
from canary.live import replayed
from domain.rollout import Rollout


def text(url: str, rollout_id: str, *, as_json: bool) -> str:
    """The rollout of that id; without one that under way, else the latest. NotFound for none."""
    with existing(url) as store, store.view() as uow:
        rollout = named(uow, rollout_id)
        verdicts = uow.verdicts.of(rollout.id)
        if as_json:
            detail = RolloutDetail.of(rollout, verdicts, uow.approvals.of(rollout.id))
            return detail.model_dump_json(indent=2)
    return "\n".join(_lines(rollout, verdicts))


def _lines(rollout: Rollout, verdicts: tuple[GivenVerdict, ...]) -> list[str]:
    paused = ", paused" if rollout.paused else ""
    lines = [
        f"Rollout {rollout.id} of config {rollout.candidate.digest}, begun {_at(rollout.created_s)}"
        f" after study {rollout.study_id}.",
        f"It is {rollout.phase.value}{paused} since {_at(rollout.phase_since_s)}: {rollout.reason}",
        _way(rollout),
    ]
    lines += [f"  {_at(g.at_s)} {g.verdict.outcome.value}: {g.verdict.reason}" for g in verdicts]
    return [*lines, _again(verdicts) if verdicts else "Nothing was judged so far."]


def _way(rollout: Rollout) -> str:
    plan = rollout.plan
    if plan.in_place:
        several = f", one of {plan.replicas} replicas at a time" if plan.replicas > 1 else ""
        return f"In place: production restarts{several}, without a lane."
    steps = ", ".join(f"{step.weight} % for {step.bake_s:g} s" for step in plan.steps)
    return f"Steps: {steps}; now at {plan.steps[rollout.step].weight} %."


def _again(verdicts: tuple[GivenVerdict, ...]) -> str:
    """How many verdicts come out the same from what is stored."""
    live = [g.verdict for g in verdicts if g.verdict.evidence and g.verdict.evidence.compared]
    same = [v for v in live if v.evidence is not None and replayed(v.evidence) == v]
    return (
        f"{len(same)} of {len(live)} verdicts with evidence of live traffic come out the same when"
        " judged anew from the store."
    )


def _at(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
