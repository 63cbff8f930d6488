"""Where engines run, what they run, and in which state they are."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from domain.engine import EngineConfig
from domain.study import Failure


class Role(Enum):
    """PRODUCTION serves users; CANARY rehearses, and carries traffic only in a rollout."""

    PRODUCTION = "production"
    CANARY = "canary"

    @property
    def arm(self) -> str:
        """The arm that an engine of this role is in, as metrics and the gateway name it."""
        return "candidate" if self is Role.CANARY else "production"


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """A place where one engine can run: its GPUs and its port stay the same over restarts."""

    name: str
    role: Role
    port: int
    gpu_ids: tuple[str, ...] = ()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


def forgotten(name: str) -> Slot:
    """A slot that the settings no longer have: its engine can be stopped, which takes its name."""
    return Slot(name=name, role=Role.CANARY, port=0)


class ReplicaState(Enum):
    """STARTING until a warm-up inference has completed; DEAD needs a stop before a new start."""

    STARTING = "starting"
    WARM = "warm"
    STOPPING = "stopping"
    DEAD = "dead"


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """One engine in a slot, as last observed. A slot without an engine has no replica.

    ``failure`` is why it is DEAD, and ``None`` otherwise. ``detail`` tells people in a sentence
    what is not well, be the engine dead or only late.
    """

    slot: str
    config: EngineConfig
    state: ReplicaState
    started_s: float
    pid: int | None = None
    detail: str = ""
    failure: Failure | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotTraffic:
    """What the gateway says of one slot: whether it may get new requests, and what it carries.

    ``requests`` and ``errors`` (5xx answers and broken responses) count since the gateway started.
    """

    slot: str
    role: Role
    admitted: bool
    up: bool
    in_flight: int
    requests: int
    errors: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """The split as read back from the gateway: the candidate's weight in percent, slot by slot."""

    weight: int
    slots: tuple[SlotTraffic, ...]

    def slot(self, name: str) -> SlotTraffic | None:
        return next((slot for slot in self.slots if slot.slot == name), None)
