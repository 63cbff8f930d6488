"""What is asked of a person, what was answered, and by whom."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Autonomy(Enum):
    """How far the controller may go by itself.

    OBSERVE reads only; RECOMMEND also rehearses; APPROVE moves traffic after a person agreed;
    AUTONOMOUS moves it by itself.
    """

    OBSERVE = "observe"
    RECOMMEND = "recommend"
    APPROVE = "approve"
    AUTONOMOUS = "autonomous"


class Answer(Enum):
    APPROVE = "approve"
    REJECT = "reject"


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalRequest:
    """A question bound to one config and one version of one rollout; it expires and is used once.

    ``answer`` is ``None`` while it is open. ``answered_by`` names the Actor.
    """

    id: str
    rollout_id: str
    rollout_version: int
    digest: str
    created_s: float
    expires_s: float
    answer: Answer | None = None
    answered_by: str = ""
    answered_s: float | None = None


class CommandKind(Enum):
    """What a person may order; each is a row that the loop consumes, and doing it twice is once."""

    TUNE = "tune"
    PAUSE = "pause"
    RESUME = "resume"
    ROLLBACK = "rollback"


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """An order by ``actor``; ``outcome`` is the loop's sentence once it has been taken."""

    id: str
    kind: CommandKind
    actor: str
    created_s: float
    outcome: str | None = None
