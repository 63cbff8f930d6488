"""Which knobs of a catalogue fit a model and its hardware, and which rules bind them.

Pure: it reads no file and starts nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from domain.engine import Bound, Condition, Rule, SearchSpace, Value
from serving.flags import Catalogue, CatalogueKnob, Need
from serving.hardware import Hardware, HardwareClass
from serving.model_card import ModelFacts


def search_space(
    catalogue: Catalogue,
    facts: ModelFacts,
    hardware: Hardware,
    *,
    drafters: Mapping[str, str] | None = None,
    without: Collection[str] = (),
) -> SearchSpace:
    """The knobs that model and hardware can use, each with the values they can use, in order.

    ``drafters`` names the model that each drafting method may use, ``without`` the knobs that are
    settled elsewhere.
    """
    drafters = drafters or {}
    met = _met(facts, hardware, drafters)
    knobs = (
        _fitted(knob, met, hardware, drafters)
        for knob in catalogue.knobs
        if knob.name not in without
    )
    known = {
        "$gpus": float(hardware.gpus) or None,
        "$max_model_len": facts.max_model_len,
        "$heads": facts.heads,
    }
    return SearchSpace(
        knobs=tuple(knob for knob in knobs if knob is not None),
        rules=(*(_settled(rule, known) for rule in catalogue.rules), *_pairings(drafters)),
    )


def _met(facts: ModelFacts, hardware: Hardware, drafters: Mapping[str, str]) -> frozenset[Need]:
    on_cpu = hardware.kind is HardwareClass.CPU
    has = {
        Need.HYBRID: facts.hybrid,
        Need.MTP_HEAD: facts.mtp_head,
        Need.MOE: facts.moe,
        Need.EAGLE3_DRAFTER: "eagle3" in drafters,
        Need.DRAFT_MODEL: "draft_model" in drafters,
        Need.CPU: on_cpu,
        Need.CUDA: not on_cpu,
        Need.SEVERAL_GPUS: hardware.gpus > 1,
    }
    return frozenset(need for need in Need if has[need])


def _fitted(
    knob: CatalogueKnob,
    met: frozenset[Need],
    hardware: Hardware,
    drafters: Mapping[str, str],
) -> CatalogueKnob | None:
    """The knob with the values that can be used; ``None`` if it could only stay as it is."""
    barred: set[Value | None] = {value for value, needs in knob.needs if not met.issuperset(needs)}
    if None in barred:
        return None
    named = {
        "$all_cores": (f"0-{hardware.cores - 1}",) if hardware.cores > 1 else (),
        "$drafters": tuple(dict.fromkeys(drafters.values())),
    }

    def values() -> Iterator[Value]:
        for value in knob.domain:
            if value not in barred:
                yield from named.get(value, (value,)) if isinstance(value, str) else (value,)

    domain = tuple(values())
    return replace(knob, domain=domain) if len(domain) > 1 else None


def _settled(rule: Rule, known: Mapping[str, float | None]) -> Rule:
    """The rule with its facts filled in; a bound by a fact that nobody knows is left to vLLM."""

    def settled() -> Iterator[Bound]:
        for bound in rule.bounds:
            if not isinstance(bound.other, str) or bound.other not in known:
                yield bound
            elif (value := known[bound.other]) is not None:
                yield bound._replace(other=float(value))

    return replace(rule, bounds=tuple(settled()))


def _pairings(drafters: Mapping[str, str]) -> Iterator[Rule]:
    """A drafting method goes with the model that was named for it."""
    for method, model in drafters.items():
        yield Rule(
            when=(Condition("speculative_method", (method,)),),
            then=(Condition("speculative_model", (model,)),),
            because="each drafting method has the model that was named for it",
        )
