"""In which state an engine is, decided from what was observed of it; pure.

An engine that answers ``/health`` is not yet ready: only a completed inference through its own
endpoint makes it warm. The one who observes keeps what must be remembered between two looks
(``Silence``, whether it was ever warm) and hands it in; nothing here asks anything by itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from domain.fleet import ReplicaState
from domain.study import Failure, FailureKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How long an engine may take. Times are seconds.

    A warm engine is taken for hung after ``hung_after_observes`` observes in a row without an
    answer that also span ``hung_after_s``: neither a fast cycle nor a jump of the clock alone
    condemns it.
    """

    start_timeout_s: float
    hung_after_s: float = 15.0
    hung_after_observes: int = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """Observes in a row without a healthy answer, and when the first of them was."""

    observes: int = 0
    since_s: float = 0.0

    def after(self, healthy: bool, now: float) -> Silence:
        if healthy:
            return Silence()
        # A clock that was set back begins the time anew.
        since_s = min(self.since_s, now) if self.observes else now
        return Silence(observes=self.observes + 1, since_s=since_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What is known of one engine: ``warm`` if it ever completed an inference in this start,
    ``ended`` if its process is gone, ``note`` what it is waiting for while it is not warm."""

    started_s: float
    warm: bool
    stopping: bool = False
    ended: Failure | None = None
    silence: Silence = Silence()
    note: str = ""


class Readiness(NamedTuple):
    """``detail`` says what is not well; ``failure`` is set where the state is DEAD."""

    state: ReplicaState
    detail: str = ""
    failure: Failure | None = None


def readiness(seen: Observation, limits: Limits, now: float) -> Readiness:
    """The state of an engine at ``now`` (Unix seconds)."""
    if seen.stopping:
        return Readiness(ReplicaState.STOPPING)
    if seen.ended is not None:
        return _dead(seen.ended)
    if seen.warm:
        return _while_serving(seen.silence, limits, now)
    if now - seen.started_s > limits.start_timeout_s:
        sentence = f"Not ready {limits.start_timeout_s:g} s after its start"
        return _dead(
            Failure(
                kind=FailureKind.START_TIMEOUT,
                sentence=f"{sentence}: {seen.note}" if seen.note else f"{sentence}.",
            )
        )
    return Readiness(ReplicaState.STARTING, seen.note)


def _while_serving(silence: Silence, limits: Limits, now: float) -> Readiness:
    if not silence.observes:
        return Readiness(ReplicaState.WARM)
    seconds = now - silence.since_s
    looks = f"{silence.observes} look{'s' if silence.observes > 1 else ''}"
    sentence = f"No healthy answer in the last {looks}, over {seconds:.0f} s."
    if silence.observes >= limits.hung_after_observes and seconds >= limits.hung_after_s:
        return _dead(Failure(kind=FailureKind.HUNG, sentence=sentence))
    return Readiness(ReplicaState.WARM, sentence)


def _dead(failure: Failure) -> Readiness:
    return Readiness(ReplicaState.DEAD, failure.sentence, failure)
