"""What a caller may ask of the load client, in one place for every way it is run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from canary.loadgen.saturation import Limits
from domain.errors import BadInput


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The most that a run may spend; ``None`` is no bound.

    Requests and tokens (prompt and answer together) are never exceeded: what is under way when the
    next request would not fit is let to its end, and so ends the run. ``seconds`` cuts off.
    """

    requests: int | None = None
    tokens: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        for name, bound in (("requests", self.requests), ("tokens", self.tokens)):
            if bound is not None and bound < 0:
                raise BadInput(f"A budget of {bound} {name} is none; give 0 or more.")
        if self.seconds is not None and not self.seconds > 0:
            raise BadInput(f"A budget of {self.seconds} seconds is none; give more than 0.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How requests are sent, and what ends a run before its plan does.

    ``path`` may be a completions or a chat completions endpoint. ``request_timeout_s`` bounds one
    request from sending to its end. ``headers`` go with every request, the session's name in
    ``session_header``. With ``records_path`` each finished request is appended to that file as one
    JSON line without its text, for whoever watches or looks back. ``saturation`` matters to open
    plans alone.
    """

    path: str = "/v1/completions"
    request_timeout_s: float = 120.0
    session_header: str = "x-session-id"
    headers: Mapping[str, str] = field(default_factory=dict)
    records_path: Path | None = None
    budget: Budget = field(default_factory=Budget)
    saturation: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        if not self.request_timeout_s > 0:
            raise BadInput(
                f"A request's timeout must be above 0 s; got {self.request_timeout_s} s."
            )
        for name, value in (*self.headers.items(), (self.session_header, "")):
            if not set("\r\n").isdisjoint(name + value):
                raise BadInput(f"The header {name!r} must not hold a line break.")

    @property
    def chat(self) -> bool:
        """Whether ``path`` takes messages instead of a prompt."""
        return self.path.rstrip("/").endswith("/chat/completions")
