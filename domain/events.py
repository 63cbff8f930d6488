"""Facts in the past tense: the log a person reads, and Grafana's annotations."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class EventKind(Enum):
    STUDY_STARTED = "study_started"
    STUDY_ENDED = "study_ended"
    APPROVAL_ASKED = "approval_asked"
    APPROVAL_ANSWERED = "approval_answered"
    COMMAND_TAKEN = "command_taken"
    ROLLOUT_STARTED = "rollout_started"
    ROLLOUT_ADVANCED = "rollout_advanced"
    WEIGHT_SET = "weight_set"
    ROLLED_BACK = "rolled_back"
    PROMOTED = "promoted"
    ENGINE_STARTED = "engine_started"
    ENGINE_STOPPED = "engine_stopped"
    HELD = "held"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One fact. ``subject`` is the id of the study, trial, rollout, request or slot it is about."""

    at_s: float
    kind: EventKind
    sentence: str
    subject: str = ""
