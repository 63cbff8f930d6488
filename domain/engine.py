"""What an engine is started with: its configuration, the knobs and the space they span.

Values are vLLM's own (``max_num_seqs``, ``async_scheduling``, ``OMP_NUM_THREADS`` …). How they
become a command line is ``serving.flags``' business, which of them fit a model and a GPU is
``serving.space``'s; nothing here knows a vLLM version.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from math import prod
from typing import NamedTuple, TypeAlias, TypeGuard

Value: TypeAlias = bool | int | float | str


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether it counts something; a switch does not, though Python takes it for a number."""
    return isinstance(value, int | float) and not isinstance(value, bool)


class Change(NamedTuple):
    """One knob that differs between two configs; ``None`` means left at vLLM's default."""

    knob: str
    before: Value | None
    after: Value | None

    def __str__(self) -> str:
        def shown(value: Value | None) -> str:
            return "default" if value is None else str(value)

        return f"{self.knob}: {shown(self.before)} → {shown(self.after)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """One full set of knob values; a knob that is absent is left at vLLM's default."""

    values: tuple[tuple[str, Value], ...] = ()

    @classmethod
    def of(cls, values: Mapping[str, Value]) -> EngineConfig:
        return cls(values=tuple(sorted(values.items())))

    def as_dict(self) -> dict[str, Value]:
        return dict(self.values)

    def get(self, knob: str) -> Value | None:
        return dict(self.values).get(knob)

    def having(self, changes: Mapping[str, Value | None]) -> EngineConfig:
        """This config with ``changes`` made; a change to ``None`` returns a knob to its default."""
        merged = {**self.as_dict(), **changes}
        return EngineConfig.of({k: v for k, v in merged.items() if v is not None})

    @property
    def digest(self) -> str:
        """Twelve hexadecimal digits of the SHA-256 of the canonical JSON of the values."""
        text = json.dumps(self.as_dict(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def diff(self, other: EngineConfig) -> tuple[Change, ...]:
        """What must change in this config to get ``other``, in order of knob."""
        mine, theirs = self.as_dict(), other.as_dict()
        return tuple(
            Change(knob, mine.get(knob), theirs.get(knob))
            for knob in sorted(mine.keys() | theirs.keys())
            if mine.get(knob) != theirs.get(knob)
        )

    def __str__(self) -> str:
        return " ".join(f"{knob}={value}" for knob, value in self.values) or "vLLM's defaults"


class Place(Enum):
    """Where a knob's value stands on vLLM's command line."""

    FLAG = "flag"
    ENVIRONMENT = "environment"
    SPECULATIVE = "speculative"


class Condition(NamedTuple):
    """A knob that must have one of ``values`` for another knob to make sense."""

    knob: str
    values: tuple[Value, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """One tunable flag or variable: its domain, its default and its rules.

    ``default`` is the value vLLM takes when the knob is absent, as long as all of
    ``default_where`` hold; nobody knows which it takes otherwise. ``lossy_values`` can change what
    the model answers, as against the others: a change to one of them, also back to such a default,
    is accepted only after the evaluation set has been run again.
    ``only_if`` conditions must all hold for any value but the default. A knob that is not
    ``searched`` may be set by a person, and no search tries it.
    """

    name: str
    place: Place
    domain: tuple[Value, ...]
    default: Value
    default_where: tuple[Condition, ...] = ()
    lossy_values: tuple[Value, ...] = ()
    only_if: tuple[Condition, ...] = ()
    searched: bool = True
    about: str = ""


class Relation(Enum):
    """How the product of some knobs must stand to a number."""

    AT_LEAST = "at_least"
    AT_MOST = "at_most"
    DIVIDES = "divides"

    def holds(self, left: float, right: float) -> bool:
        if self is Relation.DIVIDES:
            return right % left == 0
        return left >= right if self is Relation.AT_LEAST else left <= right

    @property
    def words(self) -> str:
        return {"at_least": "be at least", "at_most": "be at most", "divides": "divide"}[self.value]


class Bound(NamedTuple):
    """The product of ``knobs`` must stand in ``relation`` to ``other``, a knob or a number."""

    knobs: tuple[str, ...]
    relation: Relation
    other: str | float


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What vLLM demands of several knobs together: where all of ``when`` hold, so must all of
    ``then`` and ``bounds``. A knob that the space lacks never meets a ``when`` and breaks nothing
    else; ``because`` is a clause for people.
    """

    when: tuple[Condition, ...] = ()
    then: tuple[Condition, ...] = ()
    bounds: tuple[Bound, ...] = ()
    because: str = ""


class Resolution(NamedTuple):
    """What an engine would really run: two configs with equal resolutions are one.

    ``config`` is the one that was asked about, with every value in it that the engine tells;
    ``overridden`` holds what was asked for and comes out otherwise.
    """

    config: EngineConfig
    overridden: tuple[Change, ...] = ()


class Refusal(NamedTuple):
    """Why an engine would refuse a config, in one sentence."""

    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSpace:
    """The feasible configs of one model on one kind of hardware under one vLLM version."""

    knobs: tuple[Knob, ...]
    rules: tuple[Rule, ...] = ()

    @property
    def searched(self) -> tuple[Knob, ...]:
        """The knobs that a search and a planner may turn."""
        return tuple(knob for knob in self.knobs if knob.searched)

    def knob(self, name: str) -> Knob | None:
        return next((knob for knob in self.knobs if knob.name == name), None)

    def effective(self, config: EngineConfig, name: str) -> Value | None:
        """The value in force: the config's own, else the knob's default; ``None`` if unknown."""
        own = config.get(name)
        return own if own is not None else self._default(config, self.knob(name))

    def _default(self, config: EngineConfig, knob: Knob | None) -> Value | None:
        """What an engine takes for the absent knob in ``config``; ``None`` where nobody knows."""
        if knob is None:
            return None
        for condition in knob.default_where:
            known = self.knob(condition.knob) is not None
            if known and self.effective(config, condition.knob) not in condition.values:
                return None
        return knob.default

    def fault(self, config: EngineConfig) -> str | None:
        """Why ``config`` is outside the space, in one sentence; ``None`` where it is inside."""
        for name, value in config.values:
            knob = self.knob(name)
            if knob is None:
                known = ", ".join(k.name for k in self.knobs)
                return f"{name} is not a knob of this space (known: {known})."
            if value not in knob.domain:
                allowed = ", ".join(map(str, knob.domain))
                return f"{name}={value} is outside its domain ({allowed})."
            if value == knob.default:
                continue
            for condition in knob.only_if:
                if self.effective(config, condition.knob) not in condition.values:
                    return f"{name}={value} needs {_wanted(condition)}."
        return next(filter(None, (self._broken(rule, config) for rule in self.rules)), None)

    def _broken(self, rule: Rule, config: EngineConfig) -> str | None:
        """How ``config`` breaks ``rule``, in one sentence."""
        if not all(self.effective(config, c.knob) in c.values for c in rule.when):
            return None
        given = " ".join(f"{c.knob}={self.effective(config, c.knob)}" for c in rule.when)
        rest = (f" with {given}" if given else "") + (f": {rule.because}." if rule.because else ".")
        for condition in rule.then:
            value = self.effective(config, condition.knob)
            if value is not None and value not in condition.values:
                return f"{condition.knob}={value} does not go{rest}"
        for bound in rule.bounds:
            left = [self._number(config, knob) for knob in bound.knobs]
            right = self._number(config, bound.other)
            factors = [number for number in left if number is not None]
            if not factors or right is None or bound.relation.holds(prod(factors), right):
                continue
            pairs = zip(bound.knobs, left, strict=True)
            named = " × ".join(f"{k}={n:g}" for k, n in pairs if n is not None)
            limit = f"{bound.other}={right:g}" if isinstance(bound.other, str) else f"{right:g}"
            return f"{named} must {bound.relation.words} {limit}{rest}"
        return None

    def _number(self, config: EngineConfig, of: str | float) -> float | None:
        value = self.effective(config, of) if isinstance(of, str) else of
        return value if is_number(value) else None

    def normalised(self, config: EngineConfig) -> EngineConfig:
        """The same config without values that only repeat a default: one digest for one config."""
        return EngineConfig.of(
            {
                name: value
                for name, value in config.values
                if (knob := self.knob(name)) is None or value != self._default(config, knob)
            }
        )

    def lossy_changes(self, config: EngineConfig) -> tuple[str, ...]:
        """The knobs whose value in force can change what the model answers."""
        return tuple(
            knob.name
            for knob in self.knobs
            if self.effective(config, knob.name) in knob.lossy_values
        )


def _wanted(condition: Condition) -> str:
    return f"{condition.knob}={' or '.join(map(str, condition.values))}"
