"""What the settings mean in the rooms' own nouns: the model's facts, the baseline, the policy.

Raises BadInput where a setting makes no sense beside the model or the catalogue of knobs. Nothing
is started here; only the model's own ``config.json`` is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from agent.settings import Settings
from agent.triggers import Sensitivity
from agent.tuning import TuningPolicy
from canary.guard import Limits
from domain.engine import EngineConfig, SearchSpace
from domain.errors import BadInput
from domain.rollout import RolloutPlan, Step
from domain.slo import SLO
from serving import flags, model_card
from serving.model_card import ModelFacts
from serving.simulator import profile


def facts(settings: Settings) -> ModelFacts:
    """What is known of the model; little for one that is named and not a folder."""
    if settings.simulated:
        return profile.load(settings.model).facts
    if not _is_path(settings.model):
        return ModelFacts()
    try:
        return model_card.read(Path(settings.model))
    except BadInput as error:
        why = str(error).removesuffix(".")
        raise BadInput(
            f"{why}; set model to the model's folder or to its name on the hub."
        ) from None


def _is_path(model: str) -> bool:
    return model.startswith((".", "/", "~")) or Path(model).exists()


def refuse_knobs(arguments: Sequence[str], knobs: Sequence[flags.CatalogueKnob]) -> None:
    """Further arguments would win over a knob of the search, and every trial would be a lie."""
    named = {argument.split("=")[0] for argument in arguments}
    for knob in knobs:
        if knob.flag in named:
            raise BadInput(
                f"engine_args names {knob.flag}, which is searched over; set baseline.{knob.name} "
                "instead."
            )


def baseline(settings: Settings, space: SearchSpace) -> EngineConfig:
    """The config that production runs until one is promoted, normalised."""
    config = EngineConfig.of(settings.baseline)
    if fault := space.fault(config):
        raise BadInput(f"The setting baseline is wrong: {fault}")
    return space.normalised(config)


def policy(settings: Settings, slo: SLO) -> TuningPolicy:
    """Limits, sensitivity and the plan of a rollout; times are seconds, as in the settings."""
    return TuningPolicy(
        slo=slo,
        objective=settings.objective,
        limits=Limits(
            autonomy=settings.autonomy,
            changes_a_day=settings.changes_a_day,
            studies_a_day=settings.studies_a_day,
            cooldown_s=settings.cooldown_s,
        ),
        sensitivity=Sensitivity(
            min_requests=settings.min_requests, drift_distance=settings.drift_distance
        ),
        window_s=settings.window_s,
        trial_budget=settings.trial_budget,
        rollout=RolloutPlan(
            steps=tuple(Step(weight=w, bake_s=settings.bake_s) for w in settings.steps),
            min_requests=settings.step_requests,
            stall_s=settings.stall_s,
            stall_action=settings.stall_action,
            start_s=settings.engine_start_s,
        ),
        approval_ttl_s=settings.approval_ttl_s,
    )
