"""Where a knob catalogue and an installed vLLM disagree. Pure: it starts nothing.

Drift is what the catalogue says and vLLM does not: a knob, a value or a default that is gone or
otherwise. That vLLM has more than the catalogue is no drift, most of it is not for tuning:
``unnamed`` lists it for people who look for new knobs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from typing import Any, NamedTuple

from domain.engine import Place, Value
from serving.flags import CatalogueKnob


class Option(NamedTuple):
    """One option of ``vllm serve``; no choices means that any value of its kind is taken.

    ``default`` is ``None`` also where vLLM decides later, by model and hardware.
    """

    flags: tuple[str, ...]
    group: str
    kind: str
    choices: tuple[Value, ...]
    default: Any
    about: str


class Installed(NamedTuple):
    """What an installed vLLM says of itself.

    ``speculative`` holds the fields of the speculative config with their choices, ``paths`` where
    a resolved config holds values.
    """

    version: str
    options: tuple[Option, ...]
    speculative: Mapping[str, tuple[Value, ...]]
    paths: frozenset[str]
    variables: frozenset[str]

    def option(self, flag: str) -> Option | None:
        return next((option for option in self.options if flag in option.flags), None)


class Difference(Enum):
    GONE = "gone"
    PATH_GONE = "path_gone"
    VALUE_GONE = "value_gone"
    DEFAULT_CHANGED = "default_changed"


class Finding(NamedTuple):
    """One statement of the catalogue that does not hold for the installed vLLM, for people."""

    knob: str
    difference: Difference
    sentence: str


class Unnamed(NamedTuple):
    """A flag, or with ``values`` some of a knob's values, that the catalogue does not name."""

    flag: str
    group: str
    about: str
    values: tuple[Value, ...] = ()


def installed(document: Mapping[str, Any]) -> Installed:
    """What ``vllm_side.py knobs`` wrote; KeyError or TypeError where it is something else."""
    return Installed(
        version=document["version"],
        options=tuple(
            Option(
                flags=tuple(row["flags"]),
                group=row["group"],
                kind=row["kind"],
                choices=tuple(row["choices"]),
                default=row["default"],
                about=row["help"],
            )
            for row in document["options"]
        ),
        speculative={row["name"]: tuple(row["choices"]) for row in document["speculative"]},
        paths=frozenset(document["paths"]),
        variables=frozenset(document["variables"]),
    )


def drift(knobs: Iterable[CatalogueKnob], vllm: Installed) -> tuple[Finding, ...]:
    """Each disagreement once, in the order of ``knobs``; a knob may be given once a hardware."""
    found = (finding for knob in knobs for finding in _findings(knob, vllm))
    return tuple(dict.fromkeys(found))


def unnamed(knobs: Iterable[CatalogueKnob], vllm: Installed) -> tuple[Unnamed, ...]:
    """What vLLM takes and the catalogue does not name, in vLLM's own order."""
    domains: dict[str, set[Value]] = {}
    for knob in knobs:
        if knob.place is Place.FLAG:
            domains.setdefault(knob.flag, set()).update((*knob.domain, *knob.accepted))
        elif knob.place is Place.SPECULATIVE:
            domains["--speculative-config"] = set()
    rows = []
    for option in vllm.options:
        named = next((flag for flag in option.flags if flag in domains), None)
        if named is None:
            rows.append(Unnamed(option.flags[0], option.group, option.about))
        elif other := tuple(value for value in option.choices if value not in domains[named]):
            rows.append(Unnamed(named, option.group, option.about, other))
    return tuple(rows)


def _findings(knob: CatalogueKnob, vllm: Installed) -> Iterator[Finding]:
    if knob.resolved and knob.resolved not in vllm.paths:
        yield Finding(
            knob.name,
            Difference.PATH_GONE,
            f"{knob.name}: vLLM's resolved config has no {knob.resolved}.",
        )
    if knob.place is Place.ENVIRONMENT:
        if knob.name.startswith("VLLM_") and knob.name not in vllm.variables:
            yield _gone(knob, "vLLM reads no such environment variable")
    elif knob.place is Place.SPECULATIVE:
        field = knob.resolved.rpartition(".")[2]
        if field and field not in vllm.speculative:
            yield _gone(knob, f"the speculative config has no field {field}")
        yield from _values_gone(knob, vllm.speculative.get(field, ()))
    elif (option := vllm.option(knob.flag)) is None:
        yield _gone(knob, f"vllm serve has no {knob.flag}")
    else:
        yield from _values_gone(knob, option.choices)
        # vLLM tells no default where it decides later; the catalogue may tell of it all the same.
        if option.default is not None and option.default != knob.default:
            yield Finding(
                knob.name,
                Difference.DEFAULT_CHANGED,
                f"{knob.name}: vLLM's default is {option.default}, the catalogue's {knob.default}.",
            )


def _gone(knob: CatalogueKnob, reason: str) -> Finding:
    return Finding(knob.name, Difference.GONE, f"{knob.name} is gone: {reason}.")


def _values_gone(knob: CatalogueKnob, choices: tuple[Value, ...]) -> Iterator[Finding]:
    """Values that vLLM does not take. One that begins with ``$`` stands for a fact."""
    for value in (*knob.domain, *knob.accepted) if choices else ():
        stands_for_other = value == knob.unset or str(value).startswith("$")
        if not stands_for_other and value not in choices:
            taken = ", ".join(map(str, choices))
            yield Finding(
                knob.name,
                Difference.VALUE_GONE,
                f"{knob.name}={value} is gone: vLLM takes {taken}.",
            )
