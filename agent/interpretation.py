"""What the settings mean in the rooms' own nouns: slots, the space, the baseline, the policy.

Raises BadInput where a setting makes no sense beside the model or the catalogue of knobs. Only the
driver is asked for the size of a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from agent.graph import ATTEMPTS, CONFIRMATIONS
from agent.settings import Engine, Settings
from agent.triggers import Sensitivity
from agent.tuning import TuningPolicy
from canary.budget import Terms, least_s
from canary.guard import Limits
from canary.quality import longest_s
from domain.engine import EngineConfig, SearchSpace
from domain.errors import BadInput
from domain.fleet import Role, Slot
from domain.rollout import RolloutPlan, Step, carried
from domain.slo import SLO
from serving import flags, hardware
from serving.flags import Catalogue
from serving.hardware import Hardware
from serving.model_card import ModelFacts
from serving.simulator import profile
from serving.simulator.setup import SIMULATED
from serving.space import search_space


def production(settings: Settings) -> tuple[Slot, ...]:
    """The slots that serve users, one at least."""
    first = Engine(port=settings.production_port, gpu_ids=settings.production_gpu_ids)
    return _slots("production", Role.PRODUCTION, [first, *settings.further_replicas])


def lanes(settings: Settings) -> tuple[Slot, ...]:
    """The slots that rehearse; the first is the canary lane."""
    first = Engine(port=settings.canary_port, gpu_ids=settings.canary_gpu_ids)
    return _slots("canary", Role.CANARY, [first, *settings.search_lanes])


def _slots(name: str, role: Role, engines: Sequence[Engine]) -> tuple[Slot, ...]:
    return tuple(
        Slot(name=f"{name}-{n}", role=role, port=engine.port, gpu_ids=engine.gpu_ids)
        for n, engine in enumerate(engines)
    )


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


def terms(settings: Settings) -> Terms:
    """What bounds the runs of a study. BadInput where its minutes could never prove anything."""
    loads = len(settings.load_levels)
    found = Terms(
        start_s=settings.engine_start_s,
        warm_up_s=settings.trial_warm_up_s,
        measured_s=settings.trial_s,
        evaluation_s=longest_s(settings.quality_questions),
        searches=settings.trial_budget,
        confirmations=CONFIRMATIONS,
        rounds=settings.confirm_rounds,
        attempts=ATTEMPTS,
        loads=loads,
        fresh_loads=loads if settings.objective.weighs_heavier else 1,
    )
    for name in ("canary_minutes_a_study", "canary_minutes_a_day"):
        minutes, least = getattr(settings, name), math.ceil(least_s(found) / 60)
        if 0 < minutes < least_s(found) / 60:
            raise BadInput(
                f"{name} is {minutes:g}, and the baseline, one other config and a round of fresh "
                f"runs may take {least} min with engines that may take "
                f"{settings.engine_start_s:g} s to start; raise it, set it to 0 for no bound, or "
                "lower engine_start_s or trial_s"
                + (", or have fewer load_levels." if settings.load_levels[1:] else ".")
            )
    return found


def engine(settings: Settings, catalogue: Catalogue, lane: Hardware) -> str:
    """What configs run on, in words: findings count for the same alone."""
    kind = "simulated engine" if settings.simulated else f"vLLM {catalogue.version}"
    has = f"{lane.gpus} x {lane.kind.value}" if lane.gpus else f"CPU cores {lane.all_cores}"
    return f"{kind} of {settings.model}, {has}"


def policy(settings: Settings, slo: SLO, engine: str, replicas: int) -> TuningPolicy:
    """Limits, sensitivity and the plan of a rollout beside so many production replicas.

    Times are seconds, as in the settings.
    """
    return TuningPolicy(
        engine=engine,
        slo=slo,
        objective=settings.objective,
        limits=Limits(
            autonomy=settings.autonomy,
            changes_a_day=settings.changes_a_day,
            studies_a_day=settings.studies_a_day,
            cooldown_s=settings.cooldown_s,
            lane_s_a_study=60 * settings.canary_minutes_a_study or None,
            lane_s_a_day=60 * settings.canary_minutes_a_day or None,
        ),
        terms=terms(settings),
        sensitivity=Sensitivity(
            min_requests=settings.min_requests,
            drift_distance=settings.drift_distance,
            drift_windows=settings.drift_windows,
        ),
        window_s=settings.window_s,
        trial_budget=settings.trial_budget,
        load_levels=settings.load_levels,
        rollout=RolloutPlan(
            steps=tuple(
                Step(weight=weight, bake_s=settings.bake_s)
                for weight in ([] if settings.in_place else carried(settings.steps, replicas))
            ),
            min_requests=settings.step_requests,
            stall_s=settings.stall_s,
            stall_action=settings.stall_action,
            start_s=settings.engine_start_s,
            replicas=replicas,
            in_place=settings.in_place,
        ),
        approval_ttl_s=settings.approval_ttl_s,
    )
