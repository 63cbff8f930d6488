"""Which knobs of a catalogue fit a model and its hardware, and which rules bind them.

Pure: it reads no file and starts nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from domain.engine import Bound, Condition, Rule, SearchSpace, Value, is_number
from serving.flags import Catalogue, CatalogueKnob, Need
from serving.hardware import Hardware, HardwareClass
from serving.model_card import ModelFacts


def search_space(
    catalogue: Catalogue,
    facts: ModelFacts,
    hardware: Hardware,
    *,
    drafters: Mapping[str, str] | None = None,
    settled: Mapping[str, Value] | None = None,
    written: Mapping[str, Value] | None = None,
    without: Collection[str] = (),
) -> SearchSpace:
    """The knobs that model and hardware can use, each with the values they can use, in order.

    ``drafters`` names the model that each drafting method may use. ``settled`` knobs have the one
    value that is given elsewhere: rules see it, nothing turns it. ``written`` is the config that a
    person wrote, whose values are allowed where they are of the knob's kind, though nothing else
    would search them. ``without`` names the knobs to leave out.
    """
    drafters, settled, written = drafters or {}, settled or {}, written or {}
    met = _met(facts, hardware, drafters)
    knobs = (
        _fixed(knob, settled[knob.name])
        if knob.name in settled
        else _fitted(knob, met, hardware, drafters, written.get(knob.name))
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


def _fixed(knob: CatalogueKnob, value: Value) -> CatalogueKnob:
    return replace(knob, domain=(value,), default=value, default_where=(), searched=False)


def _fitted(
    knob: CatalogueKnob,
    met: frozenset[Need],
    hardware: Hardware,
    drafters: Mapping[str, str],
    written: Value | None,
) -> CatalogueKnob | None:
    """The knob with the values that can be used; ``None`` if it could only stay as it is."""
    barred: set[Value | None] = {value for value, needs in knob.needs if not met.issuperset(needs)}
    if None in barred:
        return None
    named = {
        "$all_cores": (hardware.all_cores,) if len(hardware.cores) > 1 else (),
        "$drafters": tuple(dict.fromkeys(drafters.values())),
    }

    def values() -> Iterator[Value]:
        for value in knob.domain:
            if value not in barred:
                yield from named.get(value, (value,)) if isinstance(value, str) else (value,)

    domain = tuple(values())
    if len(domain) < 2:
        return None
    if written is not None and written not in domain and knob.takes(written):
        numbers = all(is_number(value) for value in (*domain, written))
        domain = tuple(sorted((*domain, written), key=float)) if numbers else (*domain, written)
    return replace(knob, domain=domain)


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
