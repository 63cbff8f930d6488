"""Runs that a study was in when it was cut off: nobody runs what its log has as running."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from domain.study import Failure, FailureKind, Trial, TrialState


def closed(trials: Sequence[Trial], sentence: str, now: float) -> tuple[Trial, ...]:
    """Those of ``trials`` that are running, as failed at ``now`` because of ``sentence``."""
    failure = Failure(kind=FailureKind.INTERRUPTED, sentence=sentence)
    return tuple(
        replace(trial, state=TrialState.FAILED, failure=failure, ended_s=now)
        for trial in trials
        if trial.state is TrialState.RUNNING
    )
