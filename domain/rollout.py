"""One attempt to move production to another config: its stored state and the moves it may make."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from domain.engine import EngineConfig


class Phase(Enum):
    """Stored state of a rollout.

    STARTING brings the candidate up on the canary lane; PROGRESSING raises its weight step by
    step; CONVERTING restarts production with the new config, replica by replica, while the lane
    stands in for the one that is missing; RETURNING gives the traffic back to production and frees
    the lane. In place there is CONVERTING alone, and nothing stands in.
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


def most_weight(replicas: int) -> int:
    """The most percent that a lane can carry beside so many production replicas of its kind.

    That is what one of them carries when all do; 1 where that were less.
    """
    return max(1, 100 // replicas)


def carried(weights: Sequence[int], replicas: int) -> tuple[int, ...]:
    """Those of the rising weights that a lane beside so many replicas can carry, up to its most.

    The last one is always the lane's most, in which it stands in for one replica.
    """
    most = most_weight(replicas)
    return (*(weight for weight in weights if weight < most), most)


class StallAction(Enum):
    """What to do when a step stays inconclusive for longer than ``stall_s``."""

    HOLD = "hold"
    ROLL_BACK = "roll_back"


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutPlan:
    """Steps and limits of a rollout, fixed when it is created. Times are seconds.

    ``start_s`` bounds the start of an engine. ``replicas`` is how many production replicas the
    steps were made for; plans of the time when there was always one do not name it. ``in_place`` is
    that the lane gets no traffic: there are no steps, and a replica is missing while it restarts.
    """

    steps: tuple[Step, ...]
    min_requests: int
    stall_s: float
    stall_action: StallAction
    start_s: float
    replicas: int = 1
    in_place: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """The whole state of a rollout. ``version`` rises by one with each stored change.

    ``step`` indexes the plan's steps; ``baking_since_s`` is the time at which the weight that the
    step or the phase asks for was read back from the gateway, ``None`` before that: a weight that
    differs from then on was changed by hand. ``phase_since_s`` is when the phase began, and
    ``asked_since_s`` since when the lane has been asked to take the candidate in. ``stalled`` is
    that its step stayed inconclusive for longer than ``stall_s``. ``paused`` stops advancing and
    nothing else: a roll back always goes through. ``promoted_s`` is when it was promoted, of one
    that goes back after that; ``None`` of any other. ``reason`` says why it is in its phase,
    ``rationale`` why the candidate was recommended.
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
    asked_since_s: float | None = None
    step: int = 0
    baking_since_s: float | None = None
    stalled: bool = False
    paused: bool = False
    promoted_s: float | None = None
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
