"""What is known of the model that the settings name, from its own ``config.json`` alone."""

from __future__ import annotations

import logging
from pathlib import Path

from agent.settings import Settings
from domain.errors import BadInput
from serving import model_card
from serving.model_card import ModelFacts
from serving.simulator import profile

log = logging.getLogger(__name__)


def known(settings: Settings) -> ModelFacts:
    """What is known; nothing of a model from the hub that is not on this machine yet.

    BadInput where the folder or the profile is none.
    """
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
    return model.startswith((".", "/", "~")) or Path(model).exists()
