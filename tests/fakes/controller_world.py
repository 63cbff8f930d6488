"""Controllers over engines, a gateway and a store that tests steer, in simulated time.

The store is a real one; studies end when the test says so, and what the metrics say is a value.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeAlias

from agent import active_config
from agent.executor import Executor
from agent.graph import Conclusion
from agent.leadership import Leadership
from agent.loop import Controller
from agent.orders import Orders
from agent.schedule import Schedule
from agent.store import Store, migrate, open_store
from agent.study_job import StudyJob
from agent.triggers import Sensitivity
from agent.tuning import Tuning, TuningPolicy
from canary.budget import Terms
from canary.guard import Limits
from canary.rollout import Observed
from domain.approval import Autonomy, Command, CommandKind
from domain.engine import EngineConfig
from domain.errors import Temporary
from domain.events import Event
from domain.fleet import Role, Slot, Split
from domain.rollout import Rollout, RolloutPlan, StallAction, Step
from domain.slo import SLO
from domain.study import Objective, Recommendation, Study, StudyState
from domain.traffic import TrafficShape
from domain.verdict import Outcome, Verdict
from tests.fakes.clock import FakeClock
from tests.fakes.gateway import FakeGateway
from tests.fakes.launcher import FakeLauncher
from tests.fakes.shapes import shape
from tools.profiler import Missing

BASELINE = EngineConfig.of({"max_num_seqs": 64})
CANDIDATE = EngineConfig.of({"max_num_seqs": 128})
PRODUCTION = Slot(name="production-0", role=Role.PRODUCTION, port=8101)
CANARY = Slot(name="canary-0", role=Role.CANARY, port=8201)
SLOTS = {slot.name: slot for slot in (PRODUCTION, CANARY)}
Judge: TypeAlias = Callable[[Rollout, Split, float], Awaitable[Verdict | None]]
CYCLE_S = 2.0
LEASE_S = 6.0
PASS = Verdict(outcome=Outcome.PASS, reason="No harm.")
TERMS = Terms(
    start_s=30.0,
    warm_up_s=2.0,
    measured_s=8.0,
    evaluation_s=0.0,
    searches=4,
    confirmations=2,
    rounds=2,
    attempts=2,
)
PLAN = RolloutPlan(
    steps=(Step(weight=25, bake_s=10.0), Step(weight=100, bake_s=10.0)),
    min_requests=8,
    stall_s=60.0,
    stall_action=StallAction.ROLL_BACK,
    start_s=30.0,
)
POLICY = TuningPolicy(
    load_levels=(1.0, 2.0),
    engine="simulated engine",
    slo=SLO.parse("ttft<=1s"),
    objective=Objective.GOODPUT,
    limits=Limits(autonomy=Autonomy.AUTONOMOUS, changes_a_day=6, studies_a_day=12, cooldown_s=0.0),
    sensitivity=Sensitivity(min_requests=8, drift_distance=1.0, drift_windows=1),
    window_s=120.0,
    trial_budget=4,
    terms=TERMS,
    rollout=PLAN,
    approval_ttl_s=3600.0,
)


@dataclass(slots=True)
class KeptEvents:
    """A Notifier that keeps what it was told."""

    told: list[Event] = field(default_factory=list)

    async def notify(self, event: Event) -> None:
        self.told.append(event)


@dataclass(slots=True)
class SteeredStudies:
    """Studies that go on until the test ends them; ``begun`` holds each time one was run. One that
    is asked to stop is on the lane for as long as ``lingers``."""

    begun: list[Study] = field(default_factory=list)
    lingers: bool = False
    _ends: list[asyncio.Future[Conclusion]] = field(default_factory=list)

    @property
    def under_way(self) -> int:
        return sum(not end.done() for end in self._ends)

    async def run(self, study: Study) -> Conclusion:
        self.begun.append(study)
        self._ends.append(asyncio.get_running_loop().create_future())
        try:
            return await self._ends[-1]
        finally:
            while self.lingers:
                await asyncio.sleep(0)

    def drain(self) -> None:
        """Nothing of it takes only seconds."""

    def recommend(self, config: EngineConfig) -> None:
        study = replace(self.begun[-1], state=StudyState.RECOMMENDED, conclusion="It is better.")
        found = Recommendation(study_id=study.id, config=config, verdict=PASS, rationale="Better.")
        self._ends[-1].set_result(Conclusion(study, found))

    def find_nothing(self) -> None:
        study = replace(self.begun[-1], state=StudyState.NOTHING_BETTER, conclusion="None is.")
        self._ends[-1].set_result(Conclusion(study, None))

    def break_off(self, error: Exception) -> None:
        self._ends[-1].set_exception(error)


class ControllerWorld:
    """``shape`` is what the metrics show, ``verdict`` what a step is judged; an error is raised.

    ``gateway_fault`` is raised by a start of the gateway; ``meanwhile`` happens once, while the
    next cycle looks at the world. Controllers share the store, the engines and the gateway;
    ``tick`` runs ``controller``, ``tuning`` is that of the newest one.
    """

    def __init__(
        self,
        store: Store,
        *,
        policy: TuningPolicy = POLICY,
        crontab: str = "",
        production: tuple[Slot, ...] = (PRODUCTION,),
    ) -> None:
        self.clock = FakeClock(1_000_000.0)
        self.launcher = FakeLauncher(clock=self.clock)
        self.production = production
        self.gateway = FakeGateway((*production, CANARY))
        self.store = store
        self.notifier = KeptEvents()
        self.studies = SteeredStudies()
        self.shape: TrafficShape | Missing | Exception = shape()
        self.verdict: Verdict | None = PASS
        self.gateway_fault: Exception | None = None
        self.meanwhile: Callable[[], Awaitable[object]] | None = None
        self.revivals = 0
        self._policy = policy
        self._schedule = Schedule(crontab, "UTC") if crontab else None
        self._ids = itertools.count(1)
        self.controller = self.another("first")

    def another(self, holder: str, baseline: EngineConfig = BASELINE) -> Controller:
        """A controller as a process of its own would have it; ``baseline`` is its settings'."""
        leadership = Leadership(self.store, holder=holder, ttl_s=LEASE_S)
        self.tuning = Tuning(
            leadership=leadership,
            job=StudyJob(lambda study: self.studies),
            read_shape=self._read_shape,
            policy=self._policy,
            baseline=baseline,
            schedule=self._schedule,
            new_id=lambda: f"{next(self._ids):08x}",
            notifier=self.notifier,
            clock=self.clock,
        )
        return Controller(
            observe=self._observe,
            executor=Executor(
                launcher=self.launcher,
                gateway=self.gateway,
                slots={slot.name: slot for slot in (*self.production, CANARY)},
                leadership=leadership,
                clock=self.clock,
                drain_s=30.0,
            ),
            leadership=leadership,
            orders=Orders(leadership),
            tuning=self.tuning,
            judge=self._judge_for(leadership),
            revive_gateway=self._revive,
            notifier=self.notifier,
            clock=self.clock,
        )

    async def tick(self, times: int = 1) -> str:
        """Run so many cycles, each followed by its pause; the last one's sentence."""
        sentence = ""
        for _ in range(times):
            await self._turns()
            sentence = await self.controller.cycle()
            await self._turns()
            self.clock.advance(CYCLE_S)
        return sentence

    async def settle(self) -> None:
        """Until production serves."""
        await self.gateway.start()
        await self.until(lambda: self.gateway.route() is not None)

    async def until(self, true: Callable[[], object], cycles: int = 60) -> str:
        """Tick until ``true``; the last sentence."""
        for _ in range(cycles):
            sentence = await self.tick()
            if true():
                return sentence
        raise AssertionError(f"Not within {cycles} cycles; the last one said: {sentence}")

    def order(self, kind: CommandKind, actor: str = "ada", rollout_id: str = "") -> None:
        """An order for one rollout is for the newest one unless its id is given."""
        with self.store.work() as uow:
            if kind.of_rollout and not rollout_id:
                rollout_id = uow.rollouts.latest(1)[0].id
            ordered = Command(
                id=f"c{next(self._ids)}",
                kind=kind,
                rollout_id=rollout_id,
                actor=actor,
                created_s=self.clock.now(),
            )
            uow.commands.add(ordered)
            uow.commit()

    def rollout(self) -> Rollout | None:
        """The newest one."""
        with self.store.view() as uow:
            return next(iter(uow.rollouts.latest(1)), None)

    def study(self) -> Study | None:
        with self.store.view() as uow:
            return next(iter(uow.studies.latest(1)), None)

    def active(self) -> EngineConfig | None:
        """The config that was promoted last."""
        with self.store.view() as uow:
            return active_config.stored(uow)

    async def split(self) -> Split:
        return await self.gateway.read()

    async def _turns(self) -> None:
        """Jobs under way get their turns, as they do while a real controller waits."""
        for _ in range(5):
            await asyncio.sleep(0)

    async def _observe(self) -> Observed:
        if meanwhile := self.meanwhile:
            self.meanwhile = None
            await meanwhile()
        try:
            split = await self.gateway.read()
        except Temporary:
            split = None
        replicas = await self.launcher.observe()
        return Observed(
            production=self.production,
            canary=CANARY,
            replicas={replica.slot: replica for replica in replicas},
            split=split,
        )

    async def _read_shape(self, end_s: float, window_s: float) -> TrafficShape | Missing:
        if isinstance(self.shape, Exception):
            raise self.shape
        if isinstance(self.shape, Missing):
            return self.shape
        return replace(self.shape, end_s=end_s, window_s=window_s)

    def _judge_for(self, leadership: Leadership) -> Judge:
        return self._judge

    async def _judge(self, rollout: Rollout, split: Split, now: float) -> Verdict | None:
        return self.verdict

    async def _revive(self) -> None:
        self.revivals += 1
        if self.gateway_fault is not None:
            raise self.gateway_fault
        await self.gateway.start()


def opened(folder: Path) -> Store:
    """A fresh, migrated store in the folder."""
    path = folder / "serinus.db"
    path.write_bytes(_migrated())
    return open_store(f"sqlite:///{path}")


@cache
def _migrated() -> bytes:
    with TemporaryDirectory() as folder:
        path = Path(folder, "serinus.db")
        migrate(f"sqlite:///{path}")
        return path.read_bytes()
