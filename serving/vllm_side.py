"""What vLLM says of itself: its options, and what it would make of a command line.

A script that runs under vLLM's own Python, which knows nothing of Serinus: it is started by its
path, uses the standard library and vllm alone, and nothing here imports or is imported by another
module. It starts no engine and allocates nothing on a GPU. What it answers goes to the standard
output as JSON, one document a line; whatever vLLM prints goes to the standard error.

``knobs`` writes one document: version, options of ``vllm serve``, fields of the speculative config,
paths of the resolved config and names of environment variables. ``resolve`` reads requests, one a
line, until its input ends: ``{"argv": [MODEL, "--flag", …], "env": {…}, "paths":
["cache_config.block_size", …]}``, and answers each with ``{"resolved": {path: value}}``, without
the paths that this vLLM lacks, with ``{"refused": sentence}``, or with ``{"unknown": sentence}``
where something beside the config stood in the way: a disk, a network, a driver.
"""

from __future__ import annotations

import argparse
import dataclasses
import enum
import json
import os
import sys
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

_MISSING = object()
_PLAIN = (bool, int, float, str)
_KINDS = {"int": "int", "float": "float", "loads": "json", "parse_dataclass": "json"}


class _Refused(Exception):
    """The command line's own fault, as argparse says it."""


def _parser() -> Any:
    """The parser of ``vllm serve``; a fault of the arguments raises instead of exiting."""
    # vllm is in the other Python, never in the one that checks these types.
    from vllm.entrypoints.cli.serve import make_arg_parser  # type: ignore[import-not-found]
    from vllm.utils.argparse_utils import FlexibleArgumentParser  # type: ignore[import-not-found]

    def error(message: str) -> NoReturn:
        raise _Refused(message)

    parser = make_arg_parser(FlexibleArgumentParser())
    parser.error = error
    return parser


def _knobs() -> dict[str, Any]:
    """Every option: some are in no group, so the actions themselves are walked."""
    # vLLM reads its options' descriptions only where somebody asks for help.
    sys.argv.append("--help")
    import vllm  # type: ignore[import-not-found]
    from vllm import envs
    from vllm.config import SpeculativeConfig, VllmConfig  # type: ignore[import-not-found]

    parser = _parser()
    groups = {
        id(action): group.title or ""
        for group in parser._action_groups
        for action in group._group_actions
    }
    hints = typing.get_type_hints(SpeculativeConfig)
    return {
        "version": vllm.__version__,
        "options": [
            _option(action, groups.get(id(action), ""))
            for action in parser._actions
            if action.option_strings and not isinstance(action, argparse._HelpAction)
        ],
        "speculative": [
            {"name": field.name, "choices": _literals(hints[field.name])}
            for field in dataclasses.fields(SpeculativeConfig)
        ],
        "paths": list(_paths(VllmConfig)),
        "variables": sorted(envs.environment_variables),
    }


def _option(action: argparse.Action, group: str) -> dict[str, Any]:
    return {
        "flags": list(action.option_strings),
        "dest": action.dest,
        "group": group,
        "kind": _kind(action),
        "choices": [_plain(choice) for choice in action.choices or () if choice is not None],
        "default": _plain(action.default),
        "help": " ".join((action.help or "").split()).partition(". ")[0].removesuffix("."),
    }


def _kind(action: argparse.Action) -> str:
    """bool, int, float, str or json; vLLM wraps most of its converters."""
    if action.nargs == 0 or isinstance(action, argparse.BooleanOptionalAction):
        return "bool"
    convert: Any = action.type
    while inner := [c.cell_contents for c in getattr(convert, "__closure__", None) or ()]:
        convert = inner[0]
    name = getattr(convert, "__name__", "str")
    if name.startswith("human_readable_int"):
        return "int"
    return _KINDS.get(name, "str")


def _paths(config: type, prefix: str = "", steps: int = 3) -> Iterator[str]:
    """The dotted paths of a dataclass's fields and, for some steps, of those inside them: a config
    may hold another of its own kind."""
    hints = typing.get_type_hints(config)
    for field in dataclasses.fields(config):
        yield prefix + field.name
        for kind in (hints[field.name], *typing.get_args(hints[field.name])):
            if steps > 1 and isinstance(kind, type) and dataclasses.is_dataclass(kind):
                yield from _paths(kind, f"{prefix}{field.name}.", steps - 1)


def _literals(hint: Any) -> list[Any]:
    """The values of every Literal inside a type hint."""
    found: list[Any] = []
    for inner in typing.get_args(hint):
        if typing.get_origin(hint) is typing.Literal:
            found.append(inner)
        else:
            found += _literals(inner)
    return found


def _plain(value: Any) -> Any:
    """A value as JSON has it, spelt as vLLM's flags take it."""
    if isinstance(value, enum.Enum):
        return value.value if _spelt_by_value(type(value)) else value.name
    if value is None or isinstance(value, _PLAIN):
        return value
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    return str(value).removeprefix("torch.")


def _spelt_by_value(kind: type[enum.Enum]) -> bool:
    """Whether all values are words or numbers; where some are paths or pairs, flags take names."""
    return all(
        isinstance(member.value, int)
        or (isinstance(member.value, str) and member.value.replace("-", "_").isidentifier())
        for member in kind
    )


class _Resolver:
    """One parser for all requests; each request leaves the environment as it found it."""

    def __init__(self) -> None:
        from vllm.engine.arg_utils import AsyncEngineArgs  # type: ignore[import-not-found]
        from vllm.usage.usage_lib import UsageContext  # type: ignore[import-not-found]

        self._parser = _parser()
        self._engine_args = AsyncEngineArgs
        self._context = UsageContext.OPENAI_API_SERVER

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        # vLLM sets variables of its own on the way, and the next config must not inherit them.
        before = dict(os.environ)
        os.environ.update(request["env"])
        try:
            config = self._config(request["argv"])
            told = {path: _at(config, path) for path in request["paths"]}
            return {"resolved": {p: _plain(v) for p, v in told.items() if v is not _MISSING}}
        except (OSError, MemoryError) as error:
            return {"unknown": _sentence(error)}
        except Exception as error:
            return {"refused": _sentence(error)}
        except SystemExit as end:
            return {"refused": f"vLLM ends with code {end.code} on these arguments."}
        finally:
            os.environ.clear()
            os.environ.update(before)

    def _config(self, argv: list[str]) -> Any:
        parsed = self._parser.parse_args(argv)
        # As `vllm serve` does: the model stands before the flags.
        parsed.model = parsed.model_tag or parsed.model
        return self._engine_args.from_cli_args(parsed).create_engine_config(
            usage_context=self._context
        )


def _at(config: Any, path: str) -> Any:
    """What stands at a dotted path: ``None`` where a part of the way is not configured, and
    ``_MISSING`` where this vLLM has no such path."""
    for name in path.split("."):
        if config is None:
            return None
        config = getattr(config, name, _MISSING)
    return config


def _sentence(error: Exception) -> str:
    """The first line that says something; pydantic's wrapping of it is noise."""
    if callable(details := getattr(error, "errors", None)) and (faults := details()):
        said = str(faults[0]["msg"])
        where = ".".join(str(part) for part in faults[0].get("loc", ()))
        said = said.removeprefix("Value error, ") if "Value error, " in said else f"{where}: {said}"
    else:
        said = str(error)
    lines = filter(None, (line.strip() for line in said.splitlines()))
    return next(lines, type(error).__name__)


def main() -> None:
    # The folder of this script holds modules of Serinus, whose names could hide vLLM's own.
    here = str(Path(__file__).resolve().parent)
    sys.path[:] = [entry for entry in sys.path if str(Path(entry).resolve()) != here]
    requests = os.fdopen(os.dup(0), encoding="utf-8")
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    if sys.argv[1:] == ["knobs"]:
        print(json.dumps(_knobs()), file=answers, flush=True)
    elif sys.argv[1:] == ["resolve"]:
        resolver = _Resolver()
        for line in requests:
            print(json.dumps(resolver.answer(json.loads(line))), file=answers, flush=True)
    else:
        sys.exit("usage: vllm_side.py knobs | resolve")


if __name__ == "__main__":
    main()
