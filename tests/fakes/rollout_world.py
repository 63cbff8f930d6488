"""Production slots and a lane in memory that do what a rollout asks for, for tests that tick."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from canary.rollout import Observed
from domain.engine import EngineConfig
from domain.fleet import Replica, ReplicaState, Role, Slot, SlotTraffic, Split
from domain.rollout import (
    AdmitSlot,
    DrainSlot,
    Hold,
    Intent,
    Phase,
    Rollout,
    RolloutPlan,
    SetWeight,
    StallAction,
    StartEngine,
    Step,
    StopEngine,
    carried,
    most_weight,
)

BASELINE = EngineConfig.of({"max_num_seqs": 64})
CANDIDATE = EngineConfig.of({"max_num_seqs": 128})
PRODUCTION = Slot(name="production-0", role=Role.PRODUCTION, port=8101)
CANARY = Slot(name="canary-0", role=Role.CANARY, port=8201)
PLAN = RolloutPlan(
    steps=tuple(Step(weight=weight, bake_s=10.0) for weight in (5, 25, 50, 100)),
    min_requests=20,
    stall_s=60.0,
    stall_action=StallAction.ROLL_BACK,
    start_s=30.0,
)


def plan_for(replicas: int, weights: Sequence[int] = (5, 25, 50, 100)) -> RolloutPlan:
    steps = tuple(Step(weight=weight, bake_s=10.0) for weight in carried(weights, replicas))
    return replace(PLAN, steps=steps, replicas=replicas)


def in_place_plan(replicas: int) -> RolloutPlan:
    return replace(PLAN, steps=(), replicas=replicas, in_place=True)


def fresh_rollout(phase: Phase = Phase.STARTING, plan: RolloutPlan = PLAN) -> Rollout:
    return Rollout(
        id="r1",
        study_id="s1",
        version=1,
        created_s=0.0,
        baseline=BASELINE,
        candidate=CANDIDATE,
        plan=plan,
        phase=phase,
        phase_since_s=0.0,
    )


@dataclass
class RolloutWorld:
    """Engines become warm ``start_ticks`` observations after their start, and stop at once.

    Each of ``replicas`` production engines carries its equal part of the demand and no more, and
    so does the lane. ``shortages`` names each act by which what was carried until then no longer
    is; a test that kills an engine or moves the weight causes none by that. ``interrupted`` names
    each act by which an engine is ended that new requests still reach. ``in_place`` is that one
    replica may be missing, and ``missing`` names each act that takes away another.
    """

    start_ticks: int = 2
    weight: int = 0
    readable: bool = True
    broken_configs: set[EngineConfig] = field(default_factory=set)
    acts: list[Intent] = field(default_factory=list)
    unserved: list[str] = field(default_factory=list)
    shortages: list[str] = field(default_factory=list)
    interrupted: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    now: float = 0.0
    replicas: int = 1
    in_place: bool = False

    def __post_init__(self) -> None:
        self.production = tuple(
            Slot(name=f"production-{n}", role=Role.PRODUCTION, port=8101 + n)
            for n in range(self.replicas)
        )
        self.engines: dict[str, tuple[EngineConfig, int, float]] = {
            slot.name: (BASELINE, 0, 0.0) for slot in self.production
        }
        self.dead: set[str] = set()
        self.unhealthy: set[str] = set()
        self.admitted = {slot.name: True for slot in self.production} | {CANARY.name: False}

    def state(self, slot: str) -> ReplicaState | None:
        if slot not in self.engines:
            return None
        config, ticks, _ = self.engines[slot]
        if slot in self.dead or (config in self.broken_configs and ticks <= 0):
            return ReplicaState.DEAD
        return ReplicaState.WARM if ticks <= 0 else ReplicaState.STARTING

    def up(self, slot: str) -> bool:
        """Whether the gateway finds the slot's engine healthy."""
        return self.state(slot) is ReplicaState.WARM and slot not in self.unhealthy

    def carries(self, slot: str) -> bool:
        return self.admitted[slot] and self.up(slot)

    def carriers(self) -> list[str]:
        """The production slots that new requests reach."""
        return [slot.name for slot in self.production if self.carries(slot.name)]

    def runs(self, config: EngineConfig) -> bool:
        """Whether all of production serves with this config."""
        return len(self.carriers()) == self.replicas and all(
            self.engines[slot.name][0] == config for slot in self.production
        )

    def suffices(self) -> bool:
        """Whether no engine gets more than its part of the demand; in place, whether all but one
        replica carry it.

        As the gateway has it: an arm of which nothing serves leaves its requests to the other. The
        lane's part is a whole percentage, so the others may get what its rounding leaves.
        """
        if self.in_place:
            return len(self.carriers()) >= self.replicas - 1
        most, carriers = most_weight(self.replicas), len(self.carriers())
        lane = (self.weight if carriers else 100) if self.carries(CANARY.name) else 0
        left = 100 - lane
        allowed = max(100 / self.replicas, (100 - most) / max(1, self.replicas - 1))
        return lane <= most and left <= allowed * carriers

    def observe(self, now: float | None = None) -> Observed:
        self.now = self.now + 1.0 if now is None else now
        self.engines = {s: (config, n - 1, at) for s, (config, n, at) in self.engines.items()}
        replicas = {
            slot: Replica(slot=slot, config=config, state=state, started_s=at)
            for slot, (config, _, at) in self.engines.items()
            if (state := self.state(slot)) is not None
        }
        split = Split(
            weight=self.weight,
            slots=tuple(
                SlotTraffic(
                    slot=slot.name,
                    role=slot.role,
                    admitted=self.admitted[slot.name],
                    up=self.up(slot.name),
                    in_flight=0,
                    requests=0,
                    errors=0,
                )
                for slot in (*self.production, CANARY)
            ),
        )
        return Observed(
            production=self.production,
            canary=CANARY,
            replicas=replicas,
            split=split if self.readable else None,
        )

    def serves(self) -> bool:
        """Whether new requests reach a warm engine, by weight or by falling through."""
        return any(map(self.carries, self.admitted))

    def act(self, intent: Intent) -> None:
        served, sufficed, carried = self.serves(), self.suffices(), set(self.carriers())
        if not isinstance(intent, Hold):
            self.acts.append(intent)
        match intent:
            case Hold():
                pass
            case StartEngine(slot=slot, config=config):
                assert slot not in self.engines, "started twice"
                self.engines[slot] = (config, self.start_ticks, self.now)
                self.dead.discard(slot)
            case StopEngine(slot=slot):
                if self.carries(slot):
                    self.interrupted.append(f"by {intent}")
                self.engines.pop(slot, None)
                self.dead.discard(slot)
            case AdmitSlot(slot=slot):
                self.admitted[slot] = True
            case DrainSlot(slot=slot):
                self.admitted[slot] = False
            case SetWeight(weight=weight):
                self.weight = weight
        gone = carried - set(self.carriers())
        if gone and len(carried) < self.replicas:
            self.missing.append(f"{gone} after {intent}")
        if served and not self.serves() and not (self.in_place and self.replicas == 1):
            self.unserved.append(f"after {intent}")
        if sufficed and not self.suffices():
            self.shortages.append(f"after {intent}")
