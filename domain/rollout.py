"""One attempt to move production to another config: its stored state and the moves it may make."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from domain.engine import EngineConfig


class Phase(Enum):
    """Stored state of a rollout.

    STARTING brings the candidate up on the canary lane; PROGRESSING raises its weight step by
    step; CONVERTING restarts production with the new config while the lane carries the traffic;
    RETURNING gives the traffic back to production and frees the lane.
    """

    WAITING_APPROVAL = "waiting_approval"
    STARTING = "starting"
    PROGRESSING = "progressing"
    CONVERTING = "converting"
    RETURNING = "returning"
    PROMOTED = "promoted"
    ROLLING_BACK = "rolling_back"
    ROLLED_BACK = "rolled_back"
    REJECTED = "rejected"

    @property
    def ended(self) -> bool:
        return self in (Phase.PROMOTED, Phase.ROLLED_BACK, Phase.REJECTED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A planned increment: the candidate's weight in percent and the least time at it."""

    weight: int
    bake_s: float


class StallAction(Enum):
    """What to do when a step stays inconclusive for longer than ``stall_s``."""

    HOLD = "hold"
    ROLL_BACK = "roll_back"


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutPlan:
    """Steps and limits of a rollout, fixed when it is created. Times are seconds.

    ``start_s`` bounds the start of an engine.
    """

    steps: tuple[Step, ...]
    min_requests: int
    stall_s: float
    stall_action: StallAction
    start_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """The whole state of a rollout. ``version`` rises by one with each stored change.

    ``step`` indexes the plan's steps; ``baking_since_s`` is the time at which the step's weight
    was read back from the gateway, ``None`` before that. ``phase_since_s`` is when the phase
    began. ``paused`` stops advancing and nothing else: a roll back always goes through.
    ``reason`` says why it is in its phase, ``rationale`` why the candidate was recommended.
    """

    id: str
    study_id: str
    version: int
    created_s: float
    baseline: EngineConfig
    candidate: EngineConfig
    plan: RolloutPlan
    phase: Phase
    phase_since_s: float
    step: int = 0
    baking_since_s: float | None = None
    paused: bool = False
    reason: str = ""
    rationale: str = ""


@dataclass(frozen=True, slots=True)
class Hold:
    """Change nothing in the world."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StartEngine:
    slot: str
    config: EngineConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class StopEngine:
    """Stop a slot's engine; without ``drain`` at once, since a dead one ends no stream."""

    slot: str
    drain: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmitSlot:
    """Let the gateway send new requests to a slot whose engine is warm."""

    slot: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainSlot:
    """Send a slot no new requests; its streams end where they began."""

    slot: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SetWeight:
    weight: int


Intent: TypeAlias = Hold | StartEngine | StopEngine | AdmitSlot | DrainSlot | SetWeight
