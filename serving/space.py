"""Which knobs of a catalogue fit a model. Pure: it reads no file and starts nothing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from domain.engine import Knob, SearchSpace, Value
from serving.flags import CatalogueKnob, Need
from serving.model_card import ModelFacts


def search_space(catalogue: Iterable[CatalogueKnob], facts: ModelFacts) -> SearchSpace:
    """The knobs the model can use, each with the values it can use, in the catalogue's order."""
    knobs = (_fitted(knob, facts) for knob in catalogue)
    return SearchSpace(knobs=tuple(knob for knob in knobs if knob is not None))


def _fitted(knob: CatalogueKnob, facts: ModelFacts) -> Knob | None:
    """The knob without the values that the model lacks something for; ``None`` if nothing stays."""
    barred: set[Value | None] = {
        value for value, needs in knob.needs if not all(_has(facts, need) for need in needs)
    }
    if None in barred:
        return None
    return replace(knob, domain=tuple(value for value in knob.domain if value not in barred))


def _has(facts: ModelFacts, need: Need) -> bool:
    return {Need.HYBRID: facts.hybrid, Need.MTP_HEAD: facts.mtp_head}[need]
