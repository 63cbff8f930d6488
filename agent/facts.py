"""What is known of the model that the settings name: its ``config.json`` and their arguments."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

from agent.settings import Settings
from domain.errors import BadInput
from serving import flags, model_card
from serving.model_card import ModelFacts
from serving.simulator import profile

log = logging.getLogger(__name__)


def known(settings: Settings) -> ModelFacts:
    """What is known; nothing of a model from the hub that is not on this machine yet.

    A ``--max-model-len`` among the engine's arguments outranks what the model says of itself.
    BadInput where the folder or the profile is none.
    """
    told = _told(settings)
    given = flags.tokens(flags.given(settings.engine_args).get("--max-model-len"))
    return told if given is None else replace(told, max_model_len=given)


def _told(settings: Settings) -> ModelFacts:
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
