"""A started engine without its surroundings: scheduler, performance model, memory and faults.

The HTTP server and the virtual lane both drive it, each with its own time; it waits for nothing.
"""

from __future__ import annotations

from typing import NamedTuple

from serving.simulator import performance
from serving.simulator.faults import SLOW_FACTOR, Fault, Injection, log_lines
from serving.simulator.profile import Profile
from serving.simulator.scheduler import Batch, Request, Scheduler
from serving.simulator.startup import Started, thresholds


class EngineDied(Exception):
    """The engine's process is gone; ``log`` is what it logged last."""

    def __init__(self, log: tuple[str, ...]) -> None:
        super().__init__(log[-1] if log else "")
        self.log = log


class Step(NamedTuple):
    """A planned iteration and the seconds it takes."""

    batch: Batch
    seconds: float


class Core:
    """One caller at a time. ``seed`` decides which drafts are accepted."""

    def __init__(
        self, profile: Profile, started: Started, seed: int, injection: Injection | None = None
    ) -> None:
        self.profile = profile
        self.setup = started.setup
        self.scheduler = Scheduler(
            started.setup,
            started.blocks,
            profile.memory.block_tokens,
            thresholds(profile, started.setup),
            seed,
        )
        self._injection = injection
        self._submitted = 0

    def inject(self, injection: Injection | None) -> None:
        """Have a fault from now on, or none; ``after_requests`` counts from now."""
        self._injection = injection
        self._submitted = 0

    def submit(self, request: Request) -> None:
        self._submitted += 1
        self.scheduler.add(request)

    def refuses(self) -> bool:
        """Whether the next request is answered with an internal error; it counts as submitted."""
        refused = (
            self._injection is not None
            and self._injection.fault is Fault.HTTP_500
            and self._submitted >= self._injection.after_requests
        )
        if refused:
            self._submitted += 1
        return refused

    @property
    def hangs(self) -> bool:
        """Whether the engine makes no progress, once a token has been streamed."""
        return self._active() is Fault.HANG_MID_STREAM and any(
            request.generated for request in self.scheduler.running
        )

    def step(self, now_s: float) -> Step:
        """Plan the next iteration; EngineDied where it would break the engine."""
        fault = self._active()
        if fault in (Fault.OOM_UNDER_LOAD, Fault.DIE_UNDER_LOAD):
            raise EngineDied(log_lines(fault))
        batch = self.scheduler.plan(now_s)
        peak_gb = performance.peak_gb(self.profile.memory, self.setup, batch.work)
        if peak_gb > performance.room_gb(self.profile.memory, self.setup):
            raise EngineDied(log_lines(Fault.OOM_UNDER_LOAD))
        seconds = performance.iteration_s(self.profile, self.setup, batch.work)
        return Step(batch, seconds * SLOW_FACTOR if fault is Fault.SLOW else seconds)

    def _active(self) -> Fault | None:
        """The fault that requests have brought about."""
        injection = self._injection
        if injection is None or self._submitted <= injection.after_requests:
            return None
        return injection.fault
