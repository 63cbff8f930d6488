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
    """What a person may order; each is a row that the loop consumes, and doing it twice is once.

    The first three are for the controller, the others each for one rollout. ABORT ends one that is
    under way; ROLLBACK also takes back one that was promoted.
    """

    TUNE = "tune"
    PAUSE = "pause"
    RESUME = "resume"
    ROLLOUT_PAUSE = "rollout_pause"
    ROLLOUT_RESUME = "rollout_resume"
    ROLLOUT_ABORT = "rollout_abort"
    ROLLOUT_ROLLBACK = "rollout_rollback"

    @property
    def of_rollout(self) -> bool:
        return self not in (CommandKind.TUNE, CommandKind.PAUSE, CommandKind.RESUME)

    @property
    def words(self) -> str:
        """As a person types it after ``serinus``."""
        return self.value.replace("_", " ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """An order by ``actor``; ``outcome`` is the loop's sentence once it has been taken.

    ``rollout_id`` is the rollout that it is for, empty where it is for the controller.
    """

    id: str
    kind: CommandKind
    actor: str
    created_s: float
    rollout_id: str = ""
    outcome: str | None = None
