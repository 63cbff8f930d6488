"""What to type: the recommended config as a command line, and a study like this one (pure).

The store keeps what a study was for, not the settings it ran under. What it does not know is named
and never guessed.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from domain.engine import EngineConfig, Value
from domain.errors import BadInput
from domain.study import Study
from serving.flags import command_line

SETTINGS_FILE = "study.toml"
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_NOT_KEPT = (
    "The store does not keep these: add model, executable, engine_args, the GPUs,",
    "further_replicas, the trials' lengths and confirm_rounds as they were set.",
)


class Reproduction(NamedTuple):
    """``settings`` is a settings file's text as far as the store knows it, for ``commands``;
    ``serve`` starts the recommended config, empty where there is none, and ``serve_fault`` says
    why where there should be one."""

    settings: str
    commands: tuple[str, ...]
    serve: str
    serve_fault: str


def reproduction(study: Study, recommended: EngineConfig | None) -> Reproduction:
    serve, fault = "", ""
    if recommended is not None:
        name = ("--served-model-name", study.shape.model)
        try:
            serve = serve_line(recommended, name if study.shape.model else ())
        except BadInput as error:
            fault = str(error)
    return Reproduction(
        settings=settings_of(study),
        commands=tuple(f"serinus {word} --config {SETTINGS_FILE}" for word in ("up", "tune")),
        serve=serve,
        serve_fault=fault,
    )


def serve_line(config: EngineConfig, arguments: Sequence[str] = ()) -> str:
    """One line for a shell: variables, ``vllm serve MODEL``, then ``arguments`` and the config's
    own; BadInput for a knob that nobody knows."""
    argv, env = command_line(config)
    variables = [f"{name}={shlex.quote(value)}" for name, value in sorted(env.items())]
    words = map(shlex.quote, (*arguments, *argv))
    return " ".join([*variables, "vllm", "serve", "MODEL", *words])


def settings_of(study: Study) -> str:
    """TOML; plain settings stand before the table, as the settings' reader wants."""
    known: Mapping[str, Value] = {
        "served_model_name": study.shape.model,
        "slo": str(study.slo),
        "objective": study.objective.value,
        "trial_budget": study.trial_budget,
        "window_s": study.shape.window_s,
    }
    lines = [f"# {line}" for line in _NOT_KEPT]
    lines += [f"{name} = {_toml(value)}" for name, value in known.items()]
    lines += ["", "[baseline]"]
    lines += [f"{_key(name)} = {_toml(value)}" for name, value in study.baseline.values]
    return "\n".join(lines) + "\n"


def _key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else _toml(name)


def _toml(value: Value) -> str:
    """A TOML value. Its strings are JSON's, but for DEL, which it wants escaped too."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
