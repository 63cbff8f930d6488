"""The concrete requests of a load test, and what became of each.

Times are seconds since the start of the run; lengths are tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from domain.slo import RequestLatency

BLOCK_TOKENS = 16
"""Tokens that vLLM, left at its default on a GPU, hashes, keeps and finds again as one."""


class Arrival(Enum):
    """CLOSED keeps ``concurrency`` sessions under way; OPEN starts each at its own time."""

    CLOSED = "closed"
    OPEN = "open"


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestSpec:
    """One request: the prompt's token ids, how many tokens to generate, and the pause before it.

    ``think_s`` is the time between the end of the session's previous turn and this request. A chat
    endpoint takes no token ids: there ``text`` is sent instead, and ``text_isl`` is how many tokens
    it should make, the chat template's included (0 where nobody knows).
    """

    prompt: tuple[int, ...] = ()
    osl: int
    think_s: float = 0.0
    text: str | None = None
    text_isl: int = 0

    @property
    def isl(self) -> int:
        return len(self.prompt) if self.text is None else self.text_isl


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """Turns of one conversation, sent one after another with one session header."""

    name: str
    turns: tuple[RequestSpec, ...]
    start_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """What a load test sends. Only requests sent in [``warm_up_s``, ``duration_s``) are measured.

    A closed plan that runs out of sessions before ``duration_s`` ends early. ``level`` names the
    load in reports, for example ``"48 streams"``. ``block_tokens`` are those of one block of the
    prefix cache that its shared prompts are made for.
    """

    level: str
    arrival: Arrival
    concurrency: int
    sessions: tuple[Session, ...]
    warm_up_s: float
    duration_s: float
    seed: int
    block_tokens: int = BLOCK_TOKENS


class RequestError(Enum):
    """How a request failed; CANCELLED was cut off by the end of the test and is no failure."""

    CONNECT = "connect"
    HTTP_4XX = "http_4xx"
    HTTP_429 = "http_429"
    HTTP_5XX = "http_5xx"
    DISCONNECTED = "disconnected"
    TIMEOUT = "timeout"
    MALFORMED = "malformed"
    EMPTY = "empty"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """One request as it went. ``first_s`` and ``last_s`` are stamps of the first and last token.

    ``isl`` and ``osl`` are the engine's own counts where it told them, the planned ones are what
    was asked for (0 where nobody knows).
    """

    session: str
    turn: int
    scheduled_s: float
    sent_s: float
    end_s: float
    isl: int
    osl: int
    first_s: float | None = None
    last_s: float | None = None
    error: RequestError | None = None
    arm: str | None = None
    planned_isl: int = 0
    planned_osl: int = 0

    @property
    def failed(self) -> bool:
        return self.error is not None and self.error is not RequestError.CANCELLED

    @property
    def latency(self) -> RequestLatency | None:
        """Latency of a completed request, from sending; ``None`` for any other."""
        return self._latency(self.sent_s)

    @property
    def latency_from_schedule(self) -> RequestLatency | None:
        """The same from when it was due, so that a send that had to wait is no time saved."""
        return self._latency(self.scheduled_s)

    def _latency(self, from_s: float) -> RequestLatency | None:
        if self.error is not None or self.first_s is None or self.last_s is None:
            return None
        ttft_s, e2el_s = self.first_s - from_s, self.last_s - from_s
        tpot_ms = (e2el_s - ttft_s) / (self.osl - 1) * 1000 if self.osl > 1 else None
        return RequestLatency(ttft_ms=ttft_s * 1000, e2el_ms=e2el_s * 1000, tpot_ms=tpot_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientHealth:
    """Whether the load client itself was fit to measure; ``fault`` is a sentence when it was not.

    ``send_lag_ms`` and ``loop_lag_ms`` are 99th percentiles; ``cpu`` is the share of one core.
    """

    send_lag_ms: float
    loop_lag_ms: float
    cpu: float
    fault: str | None = None


class StopCause(Enum):
    """Why a run ended before its plan did: the caller asked, the budget was spent, or the engine
    could not keep up with an open plan."""

    ASKED = "asked"
    BUDGET = "budget"
    OVER_SATURATED = "over_saturated"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """That a run was stopped early, and why in one sentence."""

    cause: StopCause
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadResult:
    """All records of one run, warm-up included, and the client's health.

    ``stopped`` is ``None`` where the plan was played to its end.
    """

    plan_level: str
    seed: int
    warm_up_s: float
    duration_s: float
    records: tuple[RequestRecord, ...]
    health: ClientHealth
    arrival: Arrival = Arrival.CLOSED
    stopped: Stopped | None = None
