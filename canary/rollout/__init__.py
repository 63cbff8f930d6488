"""What a rollout does next: a pure step from its stored state and the world as observed."""

from canary.rollout.fleet import free_lane
from canary.rollout.observed import Observed, carries
from canary.rollout.orders import abort, approve, pause, reject, resume, roll_back
from canary.rollout.phases import Advance, advance

__all__ = [
    "Advance",
    "Observed",
    "abort",
    "advance",
    "approve",
    "carries",
    "free_lane",
    "pause",
    "reject",
    "resume",
    "roll_back",
]
