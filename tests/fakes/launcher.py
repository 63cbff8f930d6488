"""An in-memory Launcher whose engines behave as a test writes down."""

from collections.abc import Callable
from dataclasses import dataclass, field

from domain.engine import EngineConfig
from domain.errors import Conflict, SerinusError, Temporary
from domain.fleet import Replica, ReplicaState, Slot
from domain.study import Failure, FailureKind
from tests.fakes.clock import FakeClock

DIED = Failure(
    kind=FailureKind.DIED,
    sentence="The engine ended with exit code 1 after it had served.",
)
KILLED = Failure(
    kind=FailureKind.KILLED,
    sentence="The engine was killed after it had served.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Behaviour:
    """What an engine does.

    It is STARTING in ``observes_until_warm`` observes and WARM after them. ``refusal`` is raised by
    ``start``. In observe number ``dies_at`` (the first is 1) it is found DEAD of ``failure``.
    ``busy`` engines use up the whole drain of a stop.
    """

    observes_until_warm: int = 1
    refusal: SerinusError | None = None
    dies_at: int | None = None
    failure: Failure = DIED
    log: str = ""
    busy: bool = False


@dataclass(slots=True)
class _Engine:
    config: EngineConfig
    behaviour: Behaviour
    started_s: float
    pid: int
    observes: int = 0
    dead: Failure | None = None
    stopping: bool = False


@dataclass(slots=True)
class _World:
    """The engines, which outlive the launcher object that started them."""

    engines: dict[str, _Engine] = field(default_factory=dict)
    logs: dict[str, str] = field(default_factory=dict)
    starts: list[tuple[str, EngineConfig]] = field(default_factory=list)
    stops: list[tuple[str, float]] = field(default_factory=list)


def _well_behaved(slot: Slot, config: EngineConfig) -> Behaviour:
    return Behaviour()


class FakeLauncher:
    """``behaviour`` is asked at each start. ``starts`` and ``stops`` are what was really done."""

    def __init__(
        self,
        *,
        clock: FakeClock | None = None,
        behaviour: Callable[[Slot, EngineConfig], Behaviour] = _well_behaved,
    ) -> None:
        self._clock = clock or FakeClock()
        self._behaviour = behaviour
        self._world = _World()

    @property
    def starts(self) -> list[tuple[str, EngineConfig]]:
        return self._world.starts

    @property
    def stops(self) -> list[tuple[str, float]]:
        return self._world.stops

    @property
    def engines(self) -> dict[str, EngineConfig]:
        """The config of the engine in each slot that has one, in whatever state; not an observe."""
        return {slot: engine.config for slot, engine in self._world.engines.items()}

    def restarted(self) -> "FakeLauncher":
        """The launcher of a controller that was killed and started again: the same engines."""
        launcher = FakeLauncher(clock=self._clock, behaviour=self._behaviour)
        launcher._world = self._world
        return launcher

    def kill(self, slot: str) -> None:
        """Let the slot's engine die now, from outside."""
        self._world.engines[slot].dead = KILLED

    async def start(self, slot: Slot, config: EngineConfig) -> None:
        engine = self._world.engines.get(slot.name)
        if engine is None:
            self._launch(slot, config)
        elif engine.stopping:
            raise Temporary(f"Slot {slot.name} is still being stopped; start it once it is empty.")
        elif engine.config.digest != config.digest or engine.dead:
            raise Conflict(f"Slot {slot.name} holds another or a dead engine: stop it first.")

    async def stop(self, slot: Slot, drain_s: float) -> None:
        engine = self._world.engines.get(slot.name)
        if engine is None:
            return
        engine.stopping = True
        await self._clock.sleep(drain_s if engine.behaviour.busy and not engine.dead else 0)
        if self._world.engines.pop(slot.name, None) is not None:
            self._world.stops.append((slot.name, drain_s))

    async def observe(self) -> tuple[Replica, ...]:
        return tuple(_seen(name, engine) for name, engine in sorted(self._world.engines.items()))

    def log_tail(self, slot: Slot) -> str:
        return self._world.logs.get(slot.name, "")

    def _launch(self, slot: Slot, config: EngineConfig) -> None:
        behaviour = self._behaviour(slot, config)
        if behaviour.refusal is not None:
            raise behaviour.refusal
        self._world.starts.append((slot.name, config))
        self._world.logs[slot.name] = behaviour.log
        self._world.engines[slot.name] = _Engine(
            config=config,
            behaviour=behaviour,
            started_s=self._clock.now(),
            pid=1000 + len(self._world.starts),
        )


def _seen(slot: str, engine: _Engine) -> Replica:
    engine.observes += 1
    behaviour = engine.behaviour
    if behaviour.dies_at is not None and engine.observes >= behaviour.dies_at:
        engine.dead = engine.dead or behaviour.failure
    if engine.stopping:
        state = ReplicaState.STOPPING
    elif engine.dead:
        state = ReplicaState.DEAD
    elif engine.observes > behaviour.observes_until_warm:
        state = ReplicaState.WARM
    else:
        state = ReplicaState.STARTING
    return Replica(
        slot=slot,
        config=engine.config,
        state=state,
        started_s=engine.started_s,
        pid=engine.pid,
        detail=engine.dead.sentence if engine.dead else "",
        failure=engine.dead,
    )
