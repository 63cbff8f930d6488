"""Between an EngineConfig and vLLM's own command line, for one vLLM version's knob catalogue.

The catalogue is data (``knobs/vllm-<version>.toml``). This module must not know a model or a GPU:
which knobs fit those is ``serving.space``'s business.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from domain.engine import Condition, EngineConfig, Knob, Place, Value
from domain.errors import BadInput

_VERSIONS = {"0.32": "vllm-0.32.toml"}
_TRUTH = {"true": True, "false": False}
_SPECULATIVE_FIELDS = {
    "method": "speculative_method",
    "num_speculative_tokens": "num_speculative_tokens",
}


class Need(Enum):
    """What a model must have for a knob, or for one of its values, to make sense."""

    HYBRID = "hybrid"
    MTP_HEAD = "mtp_head"


class ValueNeeds(NamedTuple):
    """What one value of a knob needs of the model; ``value`` is ``None`` for the whole knob."""

    value: Value | None
    needs: tuple[Need, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueKnob(Knob):
    """A knob with what it needs of a model. ``unset`` is a value that stands for "not given"."""

    unset: Value | None = None
    needs: tuple[ValueNeeds, ...] = ()

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")


class CommandLine(NamedTuple):
    """vLLM's arguments (after ``vllm serve MODEL``) and the environment variables to add."""

    argv: tuple[str, ...]
    env: dict[str, str]


@cache
def catalogue(version: str = "0.32") -> tuple[CatalogueKnob, ...]:
    """The knobs of a vLLM version; BadInput for a version that has no catalogue."""
    if version not in _VERSIONS:
        raise BadInput(
            f"There is no knob catalogue for vLLM {version} (known: {', '.join(_VERSIONS)})."
        )
    text = (files("serving") / "knobs" / _VERSIONS[version]).read_text(encoding="utf-8")
    return tuple(_knob(name, row) for name, row in tomllib.loads(text).items())


def _knob(name: str, row: dict[str, Any]) -> CatalogueKnob:
    needs = row.get("needs", [])
    by_value = needs.items() if isinstance(needs, dict) else [(None, needs)] if needs else []
    return CatalogueKnob(
        name=name,
        place=Place(row["place"]),
        domain=tuple(row["domain"]),
        default=row["default"],
        unset=row.get("unset"),
        lossy_values=tuple(row.get("lossy_values", ())),
        only_if=tuple(Condition(k, tuple(v)) for k, v in row.get("only_if", {}).items()),
        needs=tuple(ValueNeeds(value, tuple(map(Need, names))) for value, names in by_value),
        about=row.get("about", ""),
    )


def command_line(config: EngineConfig, version: str = "0.32") -> CommandLine:
    """vLLM's own flags and environment for ``config``; BadInput for a knob nobody knows."""
    knobs = {knob.name: knob for knob in catalogue(version)}
    argv: list[str] = []
    env: dict[str, str] = {}
    for name, value in config.values:
        knob = knobs.get(name)
        if knob is None:
            raise BadInput(f"{name} is not a knob of vLLM {version} (known: {', '.join(knobs)}).")
        if value == knob.unset or knob.place is Place.SPECULATIVE:
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
    fields = {"method": method, "num_speculative_tokens": drafts}
    return ("--speculative-config", json.dumps(fields, separators=(",", ":")))


def parse(argv: Sequence[str], env: Mapping[str, str], version: str = "0.32") -> EngineConfig:
    """The config that a command line means; the last of a repeated flag counts, as in vLLM.

    Variables that are no knobs are ignored; an unknown flag or a value of the wrong kind raises
    BadInput. A value outside the knob's domain is kept: judging it is the SearchSpace's business.
    """
    knobs = catalogue(version)
    flags = {knob.flag: knob for knob in knobs if knob.place is Place.FLAG}
    switches = {f: k for f, k in flags.items() if isinstance(k.default, bool)}
    values: dict[str, Value] = {}
    rest = list(argv)
    while rest:
        flag, has_value, text = rest.pop(0).partition("=")
        positive = flag.replace("--no-", "--", 1)
        if positive in switches and not has_value:
            values[switches[positive].name] = flag == positive
            continue
        if flag not in ("--speculative-config", "-sc") and (flag not in flags or flag in switches):
            known = ", ".join(sorted([*flags, "--speculative-config"]))
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


def _value(knob: Knob, text: str) -> Value:
    """``text`` as a value of the knob's own kind."""
    kind = type(knob.default)
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
