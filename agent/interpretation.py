"""What the settings mean in the rooms' own nouns: the model's facts, the baseline, the policy.

Raises BadInput where a setting makes no sense beside the model or the catalogue of knobs. Only the
model's own ``config.json`` is read, and the driver asked for the size of a GPU.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

from agent.settings import Settings
from agent.triggers import Sensitivity
from agent.tuning import TuningPolicy
from canary.guard import Limits
from domain.engine import EngineConfig, SearchSpace
from domain.errors import BadInput
from domain.rollout import RolloutPlan, Step
from domain.slo import SLO
from serving import flags, hardware, model_card
from serving.flags import Catalogue
from serving.hardware import Hardware
from serving.model_card import ModelFacts
from serving.simulator import profile
from serving.simulator.setup import SIMULATED
from serving.space import search_space

log = logging.getLogger(__name__)


def facts(settings: Settings) -> ModelFacts:
    """What is known of the model; nothing of one from the hub that is not on this machine yet.

    A ``--max-model-len`` among the engine's arguments outranks what the model says of itself.
    """
    found = _model_facts(settings)
    shorter = flags.tokens(flags.given(settings.engine_args).get("--max-model-len"))
    return found if shorter is None else replace(found, max_model_len=shorter)


def _model_facts(settings: Settings) -> ModelFacts:
    if settings.simulated:
        return profile.load(settings.model).facts
    if not _is_path(settings.model):
        config = model_card.downloaded(settings.model, settings.hub_cache)
        if config is None:
            log.warning(
                "Nothing is known of %s until it has been downloaded: knobs that need a hybrid, "
                "a mixture of experts or a prediction head are left out.",
                settings.model,
            )
            return ModelFacts()
        return model_card.read(config)
    try:
        return model_card.read(settings.model)
    except BadInput as error:
        why = str(error).removesuffix(".")
        raise BadInput(
            f"{why}; set model to the model's folder or to its name on the hub."
        ) from None


def _is_path(model: str) -> bool:
    return model.startswith((".", "/")) or Path(model).exists()


def lane(settings: Settings) -> Hardware:
    """What one lane's engine runs on."""
    if settings.simulated:
        return profile.load(settings.model).hardware
    if settings.gpus == "none":
        return hardware.cpu()
    if settings.gpu_memory_gib:
        return hardware.gpu(settings.gpu_memory_gib, len(settings.canary_gpu_ids))
    return hardware.ask(settings.canary_gpu_ids)


def space(
    settings: Settings, catalogue: Catalogue, facts: ModelFacts, lane: Hardware
) -> SearchSpace:
    """The knobs that are left to the search: those that ``engine_args`` names are settled, and a
    simulated engine has those that are simulated."""
    settled = flags.settled(settings.engine_args, catalogue.version)
    for name in sorted(settled.keys() & settings.baseline.keys()):
        raise BadInput(f"engine_args and baseline both name {name}; leave it to one of them.")
    unknown = {name for name, value in settled.items() if value is None}
    if settings.simulated:
        unknown |= {knob.name for knob in catalogue.knobs} - SIMULATED
    return search_space(
        catalogue,
        facts,
        lane,
        drafters={str(method): model for method, model in settings.drafters.items()},
        settled={name: value for name, value in settled.items() if value is not None},
        written=settings.baseline,
        without=unknown,
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
