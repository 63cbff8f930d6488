"""The tools about knobs: what one does, and what the simulator thinks a change would do."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from domain.engine import EngineConfig, Knob, Value, is_number
from domain.errors import BadInput
from domain.figure import Figure, Unit
from tools.catalog.tool import Row, Told, Tool, one_of, text_of

_VALUE: Final = 60


class WhatIf(NamedTuple):
    """Figures of the simulator for a config, or in ``fault`` why there are none; then none."""

    figures: tuple[Figure, ...] = ()
    fault: str = ""


Simulate: TypeAlias = Callable[[EngineConfig], Awaitable[WhatIf]]
"""What the simulator says of a config under today's load; it starts no engine."""


def knob(knobs: Sequence[Knob], config: EngineConfig) -> Tool:
    """``config`` is what production runs."""
    named = {one.name: one for one in knobs}

    async def run(given: Mapping[str, Any]) -> Told:
        one = named[given["knob"]]
        own = config.get(one.name)
        words = {
            "knob": one.name,
            "what it does": one.about,
            "values": ", ".join(map(str, one.domain)),
            "vLLM's default": str(one.default),
            "production runs": "the default" if own is None else str(own),
        }
        if one.lossy_values:
            words["may change answers"] = ", ".join(map(str, one.lossy_values))
        if one.only_if:
            words["needs"] = "; ".join(
                f"{c.knob}={' or '.join(map(str, c.values))}" for c in one.only_if
            )
        numbers = (value for value in one.domain if is_number(value))
        return Told(about=words, rows=tuple(_value(n, v) for n, v in enumerate(numbers, start=1)))

    return Tool(
        name="knob",
        about="Tells what one of vLLM's knobs does, its values, its default and what runs now.",
        arguments={"knob": one_of(tuple(named), "the knob's name")},
        run=run,
    )


def what_if(knobs: Sequence[Knob], config: EngineConfig, simulate: Simulate) -> Tool:
    named = {one.name: one for one in knobs}

    async def run(given: Mapping[str, Any]) -> Told:
        value = _own(named[given["knob"]], given["value"])
        about = {"simulated": f"{given['knob']}={value}, the rest as production runs it"}
        now, then = await simulate(config), await simulate(config.having({given["knob"]: value}))
        if fault := now.fault or then.fault:
            return Told(about=about | {"not simulated": fault})
        about["caution"] = "Simulated figures compare configs; they are not measured on a GPU."
        return Told(
            about=about,
            rows=(
                _row("as production runs it, simulated", "now", now),
                _row("with the change, simulated", "then", then),
            ),
        )

    return Tool(
        name="what_if",
        about="Tells what a simulated engine would do with one knob changed, beside production's.",
        arguments={
            "knob": one_of(tuple(named), "the knob's name"),
            "value": text_of(_VALUE, "one of the knob's values"),
        },
        run=run,
    )


def _value(place: int, value: float) -> Row:
    """A value of the knob as a figure, so that a text may name it."""
    figure = Figure(
        name=f"value_{place}", value=value, unit=Unit.NONE, source="the catalogue of knobs"
    )
    return Row(words={}, figures=(figure,))


def _row(what: str, name: str, found: WhatIf) -> Row:
    prefixed = Told(about={}, rows=(Row(words={"config": what}, figures=found.figures),))
    return prefixed.renamed(f"simulated_{name}_").rows[0]


def _own(knob: Knob, text: str) -> Value:
    """The knob's own value that ``text`` spells; BadInput names those that there are."""
    spelt = text.strip().lower()
    for value in knob.domain:
        if str(value).lower() == spelt:
            return value
    raise BadInput(f"{knob.name} may be {', '.join(map(str, knob.domain))}.")
