"""The simulated engine in virtual time: no sockets, no waiting, the same scheduler and model.

A lane starts engines and plays load plans against them as fast as the arithmetic goes, and moves a
clock by the seconds all of it would have taken. It must never read the wall clock.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple

from domain.engine import EngineConfig
from domain.errors import Conflict, NotFound
from domain.fleet import Replica, ReplicaState, Slot
from domain.load import (
    Arrival,
    ClientHealth,
    LoadPlan,
    LoadResult,
    RequestError,
    RequestRecord,
    Session,
)
from domain.ports import unheard
from domain.study import EngineCounters
from serving import failures
from serving.simulator import startup
from serving.simulator.core import Core, EngineDied
from serving.simulator.faults import NEVER_STARTS, Injection, log_lines
from serving.simulator.profile import Profile
from serving.simulator.scheduler import Request
from serving.simulator.startup import NotStarted


class VirtualClock:
    """A Clock whose time passes only by ``sleep``, and at once. ``now`` is Unix seconds."""

    def __init__(self, now_s: float = 0.0) -> None:
        self._now_s = now_s

    def now(self) -> float:
        return self._now_s

    async def sleep(self, seconds: float) -> None:
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        self._now_s += max(seconds, 0.0)


@dataclass(slots=True)
class _Engine:
    """What the slot holds. ``core`` is ``None`` for an engine that never gets ready."""

    slot: Slot
    config: EngineConfig
    started_s: float
    core: Core | None = None
    log: tuple[str, ...] = ("INFO: Application startup complete.",)
    died_s: float | None = None


class VirtualLane:
    """Launcher and LoadGenerator of one slot. One caller at a time; it owns its engine.

    ``seed`` decides which drafts are accepted, anew for each engine; ``injection`` is a fault that
    every engine started here has. ``engine_seconds`` counts virtual seconds from each launch to
    its stop or death.
    """

    def __init__(
        self, profile: Profile, clock: VirtualClock, seed: int, injection: Injection | None = None
    ) -> None:
        self.injection = injection
        self._profile = profile
        self._clock = clock
        self._seeds = count(seed)
        self._engine: _Engine | None = None
        self._stopped_s = 0.0

    async def start(self, slot: Slot, config: EngineConfig) -> None:
        engine = self._engine
        if engine is not None:
            if engine.slot.name == slot.name and engine.config == config:
                return
            raise Conflict(
                f"The lane's slot {engine.slot.name} holds another engine; stop it first."
            )
        seed = next(self._seeds)
        outcome = startup.start(self._profile, config)
        if self.injection is not None and self.injection.fault in NEVER_STARTS:
            outcome = NotStarted(log_lines(self.injection.fault))
        now_s = self._clock.now()
        engine = _Engine(slot=slot, config=config, started_s=now_s)
        if isinstance(outcome, NotStarted):
            engine.log, engine.died_s = outcome.log, now_s + self._profile.start_s
        else:
            engine.core = Core(self._profile, outcome, seed, self.injection)
        self._engine = engine

    async def stop(self, slot: Slot, drain_s: float) -> None:
        """Nothing runs between two runs, so there is nothing to drain."""
        if self._engine is not None and self._engine.slot.name == slot.name:
            self._stopped_s += self._up_s(self._engine)
            self._engine = None

    async def observe(self) -> tuple[Replica, ...]:
        engine = self._engine
        if engine is None:
            return ()
        state, failure = self._state(engine), None
        if state is ReplicaState.DEAD:
            failure = failures.classify(
                exit_code=1, warm=engine.core is not None, log="\n".join(engine.log)
            )
        replica = Replica(
            slot=engine.slot.name,
            config=engine.config,
            state=state,
            started_s=engine.started_s,
            detail=failure.sentence if failure else "",
            failure=failure,
        )
        return (replica,)

    def log_tail(self, slot: Slot) -> str:
        engine = self._engine
        if engine is None or engine.slot.name != slot.name:
            return ""
        return failures.decisive("\n".join(engine.log))

    async def run(
        self,
        plan: LoadPlan,
        url: str,
        model: str,
        stop: Callable[[], bool],
        heard: Callable[[RequestRecord], None] = unheard,
    ) -> LoadResult:
        """Play the plan and advance the clock to its end; ``url`` and ``model`` are not needed."""
        engine = self._engine
        play = _Play(plan, engine.core if engine and self._is_warm(engine) else None, stop, heard)
        start_s = self._clock.now()
        try:
            play.to_the_end()
        except EngineDied as death:
            assert engine is not None
            engine.log, engine.died_s = death.log, start_s + play.now_s
            play.lose_engine()
        self._clock.advance(play.now_s)
        return LoadResult(
            plan_level=plan.level,
            seed=plan.seed,
            warm_up_s=plan.warm_up_s,
            duration_s=play.now_s if play.stopped else plan.duration_s,
            records=tuple(play.records),
            health=ClientHealth(send_lag_ms=0.0, loop_lag_ms=0.0, cpu=0.0),
            arrival=plan.arrival,
        )

    def counters(self, slot: Slot) -> EngineCounters:
        """The engine's own counters since its start; NotFound where none is ready."""
        return self._core(slot).scheduler.counters()

    def reset_prefix_cache(self, slot: Slot) -> bool:
        """Forget every cached prefix; False while a request holds one, NotFound without engine."""
        return self._core(slot).scheduler.blocks.forget()

    def _core(self, slot: Slot) -> Core:
        engine = self._engine
        if engine is None or engine.core is None or engine.slot.name != slot.name:
            raise NotFound(f"The slot {slot.name} holds no engine that serves.")
        return engine.core

    @property
    def engine_seconds(self) -> float:
        return self._stopped_s + (self._up_s(self._engine) if self._engine else 0.0)

    def _up_s(self, engine: _Engine) -> float:
        now_s = self._clock.now()
        return (now_s if engine.died_s is None else min(now_s, engine.died_s)) - engine.started_s

    def _state(self, engine: _Engine) -> ReplicaState:
        now_s = self._clock.now()
        if engine.died_s is not None and now_s >= engine.died_s:
            return ReplicaState.DEAD
        if now_s < engine.started_s + self._profile.start_s:
            return ReplicaState.STARTING
        return ReplicaState.WARM

    def _is_warm(self, engine: _Engine) -> bool:
        return self._state(engine) is ReplicaState.WARM


class _Turn(NamedTuple):
    """A turn that is due; ``number`` keeps turns due at one moment in their order."""

    due_s: float
    number: int
    session: Session
    turn: int


class _Sent(NamedTuple):
    turn: _Turn
    sent_s: float


class _Play:
    """One run of a plan against one engine; ``now_s`` is seconds since the run's start."""

    def __init__(
        self,
        plan: LoadPlan,
        core: Core | None,
        stop: Callable[[], bool],
        heard: Callable[[RequestRecord], None],
    ) -> None:
        self.records: list[RequestRecord] = []
        self.now_s = 0.0
        self.stopped = False
        self._plan = plan
        self._core = core
        self._stop = stop
        self._heard = heard
        self._numbers = count()
        self._due: list[_Turn] = []
        self._sent: dict[Request, _Sent] = {}
        self._closed = plan.arrival is Arrival.CLOSED
        self._sessions = deque(plan.sessions)
        first = plan.concurrency if self._closed else len(plan.sessions)
        for _ in range(min(first, len(plan.sessions))):
            self._begin_session()

    def _begin_session(self) -> None:
        if self._sessions:
            session = self._sessions.popleft()
            start_s = self.now_s if self._closed else session.start_s
            self._schedule(session, 0, start_s)

    def _schedule(self, session: Session, index: int, after_s: float) -> None:
        """Make a turn due after its think time, or the session's successor if there is none."""
        if index < len(session.turns):
            due_s = after_s + session.turns[index].think_s
            heapq.heappush(self._due, _Turn(due_s, next(self._numbers), session, index))
        elif self._closed:
            self._begin_session()

    def to_the_end(self) -> None:
        """Play until nothing is left to do, the plan's time is over, or ``stop`` says so."""
        while self._core is not None and self.now_s < self._plan.duration_s:
            self.stopped = self._stop()
            if self.stopped:
                break
            self._send_due()
            if self._core.scheduler.busy and not self._core.hangs:
                self._iterate(self._core)
            elif self._due or self._sent:
                next_s = self._due[0].due_s if self._due else self._plan.duration_s
                self.now_s = min(next_s, self._plan.duration_s)
            else:
                return
        if self._core is None:
            self.lose_engine()
        for request, (turn, sent_s) in self._sent.items():
            if self._core is not None:
                self._core.scheduler.abort(request)
            self._record(request, turn, sent_s, RequestError.CANCELLED)
        self._sent.clear()

    def _send_due(self) -> None:
        while self._core is not None and self._due and self._due[0].due_s <= self.now_s:
            turn = heapq.heappop(self._due)
            spec = turn.session.turns[turn.turn]
            request = Request(spec.prompt, spec.osl, self.now_s)
            if self._core.refuses():
                self._fail(request, turn, self.now_s, RequestError.HTTP_5XX)
                continue
            self._sent[request] = _Sent(turn, self.now_s)
            self._core.submit(request)

    def _iterate(self, core: Core) -> None:
        step = core.step(self.now_s)
        if self.now_s + step.seconds >= self._plan.duration_s:
            self.now_s = self._plan.duration_s
            return
        self.now_s += step.seconds
        for advance in core.scheduler.complete(step.batch, self.now_s):
            if advance.request.finish is not None:
                turn, sent_s = self._sent.pop(advance.request)
                self._record(advance.request, turn, sent_s, None)
                self._schedule(turn.session, turn.turn + 1, self.now_s)

    def lose_engine(self) -> None:
        """Fail what is under way, and everything that falls due in the time that is left."""
        for request, (turn, sent_s) in self._sent.items():
            self._fail(request, turn, sent_s, RequestError.DISCONNECTED)
        self._sent.clear()
        while self._due and self._due[0].due_s < self._plan.duration_s:
            turn = heapq.heappop(self._due)
            self.now_s = max(self.now_s, turn.due_s)
            spec = turn.session.turns[turn.turn]
            request = Request(spec.prompt, spec.osl, self.now_s)
            self._fail(request, turn, self.now_s, RequestError.CONNECT)

    def _fail(self, request: Request, turn: _Turn, sent_s: float, error: RequestError) -> None:
        """Record a failure; it ends its session."""
        self._record(request, turn, sent_s, error)
        if self._closed:
            self._begin_session()

    def _record(
        self, request: Request, turn: _Turn, sent_s: float, error: RequestError | None
    ) -> None:
        record = RequestRecord(
            session=turn.session.name,
            turn=turn.turn,
            scheduled_s=turn.due_s,
            sent_s=sent_s,
            end_s=self.now_s,
            isl=request.isl,
            osl=request.generated,
            first_s=request.first_s,
            last_s=request.last_s,
            error=error,
        )
        self.records.append(record)
        self._heard(record)
