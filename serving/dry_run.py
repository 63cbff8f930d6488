"""Asks an installed vLLM what it would make of a config, without starting an engine.

vLLM lives in a Python of its own, so ``vllm_side.py`` is run there: one process, kept for many
questions, since importing vLLM takes half a minute of CPU and a question some hundredths of a
second. Whoever cannot be asked gives no answer, never a refusal: a study goes on without.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from domain.engine import Change, EngineConfig, Refusal, Resolution, Value
from domain.errors import BadInput
from serving.drift import Installed, installed
from serving.flags import CatalogueKnob, catalogue, command_line
from serving.vllm_process import Silent, VllmProcess

_log = logging.getLogger(__name__)
_STARTS = 2
# "auto" leaves the choice to vLLM: whatever comes of it is what was asked for.
_VLLMS_CHOICE = "auto"


async def introspect(python: Path, *, limit_s: float = 180.0) -> Installed:
    """What the vLLM of ``python`` says of itself; BadInput where it has none that answers."""
    process = VllmProcess(python, "knobs", gpu_ids=())
    try:
        await process.start()
        return installed(await process.answer(limit_s))
    except (Silent, KeyError, TypeError) as error:
        raise BadInput(f"The vLLM of {python} does not tell its options: {error}.") from None
    finally:
        await process.end()


class DryRun:
    """The Resolver that asks vLLM itself; see ``domain.ports.Resolver``.

    ``python`` is vLLM's own, ``model`` and ``engine_args`` what the engine is started with besides
    the config. Nothing runs before the first question. A process that fails is started once more;
    after that every answer is ``None``, unless it had answered in between. A config with an
    unknown knob raises BadInput.
    """

    def __init__(
        self,
        *,
        python: Path,
        model: str,
        engine_args: tuple[str, ...] = (),
        gpu_ids: tuple[str, ...] = (),
        version: str = "0.32",
        first_limit_s: float = 120.0,
        limit_s: float = 60.0,
    ) -> None:
        self._python = python
        self._gpu_ids = gpu_ids
        self._fixed = (model, *engine_args)
        self._version = version
        self._knobs = tuple(knob for knob in catalogue(version).knobs if knob.resolved)
        self._first_limit_s = first_limit_s
        self._limit_s = limit_s
        self._process: VllmProcess | None = None
        self._starts_left = _STARTS

    async def resolve(self, config: EngineConfig) -> Resolution | Refusal | None:
        argv, env = command_line(config, self._version)
        question = {
            "argv": [*self._fixed, *argv],
            "env": env,
            "paths": [knob.resolved for knob in self._knobs],
        }
        answered = False
        try:
            asked = await self._asked(question)
            answer = _understood(asked, self._knobs, config)
            answered = True
            if asked is not None:
                self._starts_left = _STARTS
            return answer
        except Silent as failure:
            then = "it is started once more" if self._starts_left else "configs are tried unchecked"
            _log.warning("vLLM cannot be asked about a config: %s; %s.", failure, then)
            return None
        finally:
            # One that was not waited for would answer the next question with this one's answer.
            if not answered:
                await self.aclose()

    async def aclose(self) -> None:
        """End the process, if any runs, and every process that it started."""
        process, self._process = self._process, None
        if process is not None:
            await process.end()

    async def _asked(self, question: Mapping[str, Any]) -> Any:
        limit_s = self._limit_s
        if self._process is None:
            if not self._starts_left:
                return None
            self._starts_left -= 1
            limit_s = self._first_limit_s
            self._process = VllmProcess(self._python, "resolve", gpu_ids=self._gpu_ids)
            await self._process.start()
        return await self._process.answer(limit_s, question)


def _understood(
    answer: Any, knobs: Iterable[CatalogueKnob], config: EngineConfig
) -> Resolution | Refusal | None:
    """The answer in the catalogue's own names and values; Silent where it is none."""
    match answer:
        case None:
            return None
        case {"refused": str(sentence)}:
            return Refusal(sentence)
        case {"unknown": str(sentence)}:
            _log.warning("vLLM cannot tell what it would make of %s: %s", config, sentence)
            return None
        case {"resolved": dict(told)}:
            return _resolution(told, tuple(knobs), config)
    raise Silent("it gave an answer that is neither a config nor a refusal")


def _resolution(
    told: Mapping[str, Any], knobs: tuple[CatalogueKnob, ...], config: EngineConfig
) -> Resolution:
    values: dict[str, Value | None] = {}
    overridden = []
    for knob in knobs:
        if knob.resolved not in told:
            continue
        asked, real = config.get(knob.name), _value(knob, told[knob.resolved])
        values[knob.name] = real
        if asked is None or asked == _VLLMS_CHOICE or _is_unset(knob, asked):
            continue
        if real != asked:
            overridden.append(Change(knob.name, asked, real))
    return Resolution(config.having(values), tuple(overridden))


def _value(knob: CatalogueKnob, told: Any) -> Value | None:
    """What vLLM tells, as a value of the knob; ``None`` where that is nothing the knob can name."""
    if told is None:
        return knob.unset
    if isinstance(told, bool) or knob.kind is bool:
        return told if isinstance(told, bool) else None
    if isinstance(told, int | float | str):
        with suppress(ValueError):
            return knob.kind(told)
    return None


def _is_unset(knob: CatalogueKnob, value: Value) -> bool:
    return value == knob.unset and type(value) is type(knob.unset)
