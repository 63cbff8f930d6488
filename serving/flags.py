"""Between an EngineConfig and vLLM's own command line, for one vLLM version's knob catalogue.

The catalogue is data (``knobs/vllm-<version>.toml``). This module must not know a model: which
knobs fit one, and the hardware, is ``serving.space``'s business.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from domain.engine import (
    Bound,
    Condition,
    EngineConfig,
    Knob,
    Place,
    Relation,
    Rule,
    Value,
    is_number,
)
from domain.errors import BadInput
from serving.hardware import HardwareClass

_VERSIONS = {"0.32": "vllm-0.32.toml"}
_TRUTH = {"true": True, "false": False}
_TOKENS = re.compile(r"([0-9]+(?:\.[0-9]+)?)([kKmM]?)")
_UNITS = {"": 1, "k": 1000, "m": 1000**2, "K": 1024, "M": 1024**2}
_SPECULATIVE_FIELDS = {
    "method": "speculative_method",
    "model": "speculative_model",
    "num_speculative_tokens": "num_speculative_tokens",
}
_SPECULATIVE_FLAGS = ("--speculative-config", "-sc")
# A class without a row of its own takes that of the next smaller GPU.
_SMALLER = {
    HardwareClass.GPU_160_GIB: HardwareClass.GPU_70_GIB,
    HardwareClass.GPU_70_GIB: HardwareClass.GPU,
}


class Need(Enum):
    """What model or hardware must have for a knob, or for one of its values, to make sense."""

    HYBRID = "hybrid"
    MTP_HEAD = "mtp_head"
    MOE = "moe"
    EAGLE3_DRAFTER = "eagle3_drafter"
    DRAFT_MODEL = "draft_model"
    CPU = "cpu"
    CUDA = "cuda"
    SEVERAL_GPUS = "several_gpus"


class ValueNeeds(NamedTuple):
    """What one value of a knob needs; ``value`` is ``None`` for the whole knob."""

    value: Value | None
    needs: tuple[Need, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueKnob(Knob):
    """A knob with what it needs. ``unset`` is a value that stands for "not given"; ``accepted`` are
    words that vLLM takes beside the domain; ``aliases`` are further spellings of the flag;
    ``resolved`` is where vLLM's own resolved config holds the value, as a dotted path, or empty."""

    unset: Value | None = None
    accepted: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    needs: tuple[ValueNeeds, ...] = ()
    resolved: str = ""

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def kind(self) -> type[bool] | type[int] | type[float] | type[str]:
        """The kind of its values, apart from the one that stands for "not given"."""
        given = [type(value) for value in self.domain if value != self.unset or value is False]
        return given[0] if given else type(self.default)

    def takes(self, value: Value) -> bool:
        """Whether a person may write it though no search tries it: any number above zero for a
        number, else one of the accepted words."""
        if self.kind is int:
            return type(value) is int and value > 0
        if self.kind is float:
            return is_number(value) and value > 0
        return value in self.accepted


class Catalogue(NamedTuple):
    """The knobs of one vLLM version on one class of hardware, and the rules that bind them.

    A bound of a rule may name a fact, for example ``$gpus``: ``serving.space`` fills it in.
    """

    version: str
    knobs: tuple[CatalogueKnob, ...]
    rules: tuple[Rule, ...]


class CommandLine(NamedTuple):
    """vLLM's arguments (after ``vllm serve MODEL``) and the environment variables to add."""

    argv: tuple[str, ...]
    env: dict[str, str]


@cache
def catalogue(
    version: str = "0.32", hardware: HardwareClass = HardwareClass.GPU_160_GIB
) -> Catalogue:
    """The knobs of a vLLM version; BadInput for a version that has no catalogue."""
    if version not in _VERSIONS:
        raise BadInput(
            f"There is no knob catalogue for vLLM {version} (known: {', '.join(_VERSIONS)})."
        )
    text = (files("serving") / "knobs" / _VERSIONS[version]).read_text(encoding="utf-8")
    rows = tomllib.loads(text)
    return Catalogue(
        version=version,
        knobs=tuple(_knob(name, row, hardware) for name, row in rows["knobs"].items()),
        rules=tuple(map(_rule, rows["rules"])),
    )


def _knob(name: str, row: dict[str, Any], hardware: HardwareClass) -> CatalogueKnob:
    needs = row.get("needs", [])
    by_value = needs.items() if isinstance(needs, dict) else [(None, needs)] if needs else []
    return CatalogueKnob(
        name=name,
        place=Place(row["place"]),
        domain=tuple(_on(hardware, row["domain"])),
        default=_on(hardware, row["default"]),
        default_where=_conditions(row.get("default_where", {})),
        unset=row.get("unset"),
        accepted=tuple(row.get("accepted", ())),
        aliases=tuple(row.get("aliases", ())),
        lossy_values=tuple(row.get("lossy_values", ())),
        only_if=_conditions(row.get("only_if", {})),
        needs=tuple(ValueNeeds(value, tuple(map(Need, names))) for value, names in by_value),
        resolved=row.get("resolved", ""),
        searched=row.get("searched", True),
        about=row.get("about", ""),
    )


def _on(hardware: HardwareClass, given: Any) -> Any:
    """What a row gives for this hardware; the nearest smaller GPU's where it has no own."""
    if not isinstance(given, dict):
        return given
    row = hardware
    while row.value not in given:
        row = _SMALLER[row]
    return given[row.value]


def _conditions(given: Mapping[str, Sequence[Value]]) -> tuple[Condition, ...]:
    return tuple(Condition(knob, tuple(values)) for knob, values in given.items())


def _rule(row: dict[str, Any]) -> Rule:
    bounds = (
        Bound(tuple(bound["knobs"]), Relation(bound["relation"]), bound["other"])
        for bound in row.get("bounds", ())
    )
    return Rule(
        when=_conditions(row.get("when", {})),
        then=_conditions(row.get("then", {})),
        bounds=tuple(bounds),
        because=row["because"],
    )


def command_line(config: EngineConfig, version: str = "0.32") -> CommandLine:
    """vLLM's own flags and environment for ``config``; BadInput for a knob nobody knows."""
    knobs = {knob.name: knob for knob in catalogue(version).knobs}
    argv: list[str] = []
    env: dict[str, str] = {}
    for name, value in config.values:
        knob = knobs.get(name)
        if knob is None:
            raise BadInput(f"{name} is not a knob of vLLM {version} (known: {', '.join(knobs)}).")
        # False is a value where zero stands for "not given".
        if (value == knob.unset and type(value) is type(knob.unset)) or (
            knob.place is Place.SPECULATIVE
        ):
            continue
        if knob.place is Place.ENVIRONMENT:
            env[name] = str(value)
        elif isinstance(value, bool):
            argv.append(knob.flag if value else "--no-" + knob.flag.removeprefix("--"))
        else:
            argv += [knob.flag, str(value)]
    return CommandLine((*argv, *_speculative_argv(config, knobs)), env)


def _speculative_argv(config: EngineConfig, knobs: Mapping[str, CatalogueKnob]) -> tuple[str, ...]:
    """The draft count is always written: without it vLLM refuses ngram."""
    method = config.get("speculative_method")
    if method is None or method == knobs["speculative_method"].unset:
        return ()
    drafts = config.get("num_speculative_tokens") or knobs["num_speculative_tokens"].default
    drafter = config.get("speculative_model")
    fields = {
        "method": method,
        **({"model": drafter} if drafter else {}),
        "num_speculative_tokens": drafts,
    }
    return (_SPECULATIVE_FLAGS[0], json.dumps(fields, separators=(",", ":")))


def parse(argv: Sequence[str], env: Mapping[str, str], version: str = "0.32") -> EngineConfig:
    """The config that a command line means; the last of a repeated flag counts, as in vLLM.

    Variables that are no knobs are ignored; an unknown flag or a value of the wrong kind raises
    BadInput. A value outside the knob's domain is kept: judging it is the SearchSpace's business.
    """
    knobs = catalogue(version).knobs
    flags = {knob.flag: knob for knob in knobs if knob.place is Place.FLAG}
    switches = {f: k for f, k in flags.items() if k.kind is bool}
    values: dict[str, Value] = {}
    rest = list(argv)
    while rest:
        flag, has_value, text = rest.pop(0).partition("=")
        positive = flag.replace("--no-", "--", 1)
        if positive in switches and not has_value:
            values[switches[positive].name] = flag == positive
            continue
        if flag not in _SPECULATIVE_FLAGS and (flag not in flags or flag in switches):
            known = ", ".join(sorted([*flags, _SPECULATIVE_FLAGS[0]]))
            raise BadInput(f"{flag} is not a flag that Serinus knows (known: {known}).")
        if not has_value:
            if not rest:
                raise BadInput(f"{flag} needs a value.")
            text = rest.pop(0)
        if flag in flags:
            values[flags[flag].name] = _value(flags[flag], text)
        else:
            values |= _speculative_values(text)
    for knob in knobs:
        if knob.place is Place.ENVIRONMENT and env.get(knob.name):
            values[knob.name] = _value(knob, env[knob.name])
    return EngineConfig.of(values)


def given(arguments: Sequence[str]) -> dict[str, str | None]:
    """What free arguments of ``vllm serve`` give, by flag in its long-dashed spelling; ``None`` for
    one without a value. The last of a repeated flag counts, as in vLLM."""
    found: dict[str, str | None] = {}
    flag = ""
    for argument in arguments:
        if argument.startswith("-") and not _is_number(argument):
            flag, has_value, text = argument.partition("=")
            flag = flag.replace("_", "-")
            if flag.startswith("-O") and flag != "-O":
                flag, has_value, text = "-O", "=", flag.removeprefix("-O")
            found[flag] = text if has_value else None
        elif flag and found[flag] is None:
            found[flag] = argument
    return found


def settled(arguments: Sequence[str], version: str = "0.32") -> dict[str, Value | None]:
    """The knobs that free arguments name, with the value they give; ``None`` where that cannot be
    read as one. What is no knob is passed over."""
    flags = given(arguments)
    found: dict[str, Value | None] = {}
    for knob in catalogue(version).knobs:
        for spelling in (knob.flag, *knob.aliases):
            if spelling in flags:
                found[knob.name] = _readable(knob, flags[spelling])
            if knob.kind is bool and spelling.replace("--", "--no-", 1) in flags:
                found[knob.name] = False
    for flag in _SPECULATIVE_FLAGS:
        if (text := flags.get(flag)) is not None:
            found |= {
                k.name: None for k in catalogue(version).knobs if k.place is Place.SPECULATIVE
            }
            with suppress(BadInput):
                found |= _speculative_values(text)
    return found


def _readable(knob: CatalogueKnob, text: str | None) -> Value | None:
    if text is None:
        return True if knob.kind is bool else None
    try:
        return _value(knob, text)
    except BadInput:
        return None


def tokens(text: str | None) -> int | None:
    """A number of tokens as vLLM's flags take it (``32768``, ``32k``, ``25.6K``); else ``None``.

    Small letters count by thousands, capitals by 1,024.
    """
    found = _TOKENS.fullmatch(text or "")
    if found is None:
        return None
    number, unit = found.groups()
    return int(float(number) * _UNITS[unit])


def _is_number(text: str) -> bool:
    return re.fullmatch(r"-[0-9.]+", text) is not None


def _value(knob: CatalogueKnob, text: str) -> Value:
    """``text`` as a value of the knob's own kind."""
    if text == knob.unset:
        return text
    kind = knob.kind
    if kind is bool and text.lower() in _TRUTH:
        return _TRUTH[text.lower()]
    try:
        return text if kind is str else kind(text)
    except ValueError:
        raise BadInput(f"{knob.name} must be of kind {kind.__name__}; got {text!r}.") from None


def _speculative_values(text: str) -> dict[str, Value]:
    try:
        fields = json.loads(text)
    except json.JSONDecodeError:
        fields = None
    if not isinstance(fields, dict) or not isinstance(fields.get("method"), str):
        raise BadInput(f"--speculative-config must be a JSON object with a method; got {text!r}.")
    if unknown := sorted(fields.keys() - _SPECULATIVE_FIELDS.keys()):
        raise BadInput(
            f"--speculative-config has the unknown field {unknown[0]} "
            f"(known: {', '.join(_SPECULATIVE_FIELDS)})."
        )
    drafts = fields.get("num_speculative_tokens", 1)
    if type(drafts) is not int or drafts < 1:
        raise BadInput(f"num_speculative_tokens must be a whole number above 0; got {drafts!r}.")
    return {_SPECULATIVE_FIELDS[field]: value for field, value in fields.items()}
