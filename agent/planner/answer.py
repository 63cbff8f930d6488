"""A language model's answer, read and checked: only what the search space allows gets through.

Pure. Around the one JSON object there may be prose or a code fence. A proposal outside the space is
dropped and named; an answer that leaves nothing is unusable, with a reason that a model can mend it
by.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agent.planner import history
from agent.planner.history import History
from agent.planner.switches import Metric
from domain.engine import EngineConfig, Knob, SearchSpace, Value
from domain.outside import cleaned
from domain.ports import Proposal
from domain.study import Expectation, Study, Trial

HYPOTHESIS_CHARACTERS = 400
"""Most characters of a model's hypothesis that are kept."""

FAULT_CHARACTERS = 400
"""Most characters spent on what is wrong with an answer."""

PROPOSALS = 100
"""Most proposals of an answer, and most changes of a proposal; more answers no question of ours."""

_MARK = re.compile(r'[{}"]|\\.', re.DOTALL)


MOST_TIMES = 100.0
"""Nobody may expect more of a config than so many times what another one has."""


class Unusable(Exception):
    """An answer that one more try may mend; its text says what was wrong."""


class Checked(NamedTuple):
    """The proposals that may be tried, best first, and a sentence for each that may not."""

    proposals: tuple[Proposal, ...]
    dropped: tuple[str, ...]


class _Change(BaseModel):
    model_config = ConfigDict(extra="forbid")

    knob: str
    value: str


class _Proposal(BaseModel):
    model_config = ConfigDict(extra="forbid")

    changes: list[_Change] = Field(min_length=1, max_length=PROPOSALS)
    hypothesis: str
    metric: Metric
    expected_times: float = Field(gt=0, le=MOST_TIMES, allow_inf_nan=False)


class _Answer(BaseModel):
    model_config = ConfigDict(extra="forbid")

    proposals: list[_Proposal] = Field(min_length=1, max_length=PROPOSALS)


def check(
    content: str, study: Study, space: SearchSpace, trials: Sequence[Trial], author: str
) -> Checked:
    """The new proposals that the space allows, as changes on the best config so far."""
    try:
        answer = _Answer.model_validate_json(_one_object(content))
    except ValidationError as error:
        raise Unusable(_faults(error)) from None
    past = history.read(study, space, trials)
    kept: dict[EngineConfig, Proposal] = {}
    dropped: list[str] = []
    for number, proposal in enumerate(answer.proposals, start=1):
        config, fault = _config(proposal, past, space)
        if not fault and (config in kept or config == past.baseline or config in past.tried):
            fault = "It was tried or proposed before."
        if fault:
            dropped.append(f"Proposal {number}: {fault}")
            continue
        kept[config] = Proposal(
            config=config,
            hypothesis=cleaned(proposal.hypothesis, HYPOTHESIS_CHARACTERS),
            metric=proposal.metric.value,
            expected=Expectation(
                author=author,
                metric=proposal.metric.value,
                times=proposal.expected_times,
                over=past.incumbent.digest,
            ),
        )
    if not kept:
        raise Unusable(cleaned(" ".join(dropped), FAULT_CHARACTERS))
    return Checked(tuple(kept.values()), tuple(dropped))


def _one_object(text: str) -> str:
    """The first JSON object in ``text``, where no brace follows it; else ``text`` as it is."""
    start = text.find("{")
    depth, quoted = 0, False
    for mark in _MARK.finditer(text, max(start, 0)):
        if mark[0] == '"':
            quoted = not quoted
        elif mark[0] in "{}" and not quoted:
            depth += 1 if mark[0] == "{" else -1
            if depth == 0:
                end = mark.end()
                return text if "{" in text[end:] or "}" in text[end:] else text[start:end]
    return text


class _Configured(NamedTuple):
    config: EngineConfig
    fault: str | None


def _config(proposal: _Proposal, past: History, space: SearchSpace) -> _Configured:
    values: dict[str, Value] = {}
    for change in proposal.changes:
        name = cleaned(change.knob, 60)
        knob = space.knob(change.knob)
        if knob is None:
            return _Configured(past.incumbent, f"{name} is not a knob of this space.")
        value = _own(knob, change.value)
        if value is None:
            allowed = ", ".join(map(str, knob.domain))
            given = cleaned(change.value, 60)
            return _Configured(past.incumbent, f"{name} cannot be {given!r}, only {allowed}.")
        values[knob.name] = value
    config = past.incumbent.having(values)
    return _Configured(space.normalised(config), space.fault(config))


def _own(knob: Knob, text: str) -> Value | None:
    """The knob's own value that ``text`` spells."""
    spelt = text.strip().lower()
    return next((value for value in knob.domain if str(value).lower() == spelt), None)


def _faults(error: ValidationError) -> str:
    """Where the answer departs from the schema, without repeating what it said."""
    faults = [
        f"{'.'.join(map(str, fault['loc'])) or 'the answer'}: {fault['msg']}"
        for fault in error.errors(include_input=False, include_url=False)[:3]
    ]
    return cleaned(f"It does not match the JSON schema ({'; '.join(faults)}).", FAULT_CHARACTERS)
