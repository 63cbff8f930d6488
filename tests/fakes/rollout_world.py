"""A world of two slots in memory that does what a rollout asks for, for tests that tick."""

from dataclasses import dataclass, field

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


def fresh_rollout(phase: Phase = Phase.STARTING) -> Rollout:
    return Rollout(
        id="r1",
        study_id="s1",
        version=1,
        created_s=0.0,
        baseline=BASELINE,
        candidate=CANDIDATE,
        plan=PLAN,
        phase=phase,
        phase_since_s=0.0,
    )


@dataclass
class RolloutWorld:
    """Engines become warm ``start_ticks`` observations after their start, and stop at once."""

    start_ticks: int = 2
    weight: int = 0
    readable: bool = True
    broken_configs: set[EngineConfig] = field(default_factory=set)
    acts: list[Intent] = field(default_factory=list)
    unserved: list[str] = field(default_factory=list)
    now: float = 0.0

    def __post_init__(self) -> None:
        self.engines: dict[str, tuple[EngineConfig, int, float]] = {
            "production-0": (BASELINE, 0, 0.0)
        }
        self.dead: set[str] = set()
        self.admitted = {"production-0": True, "canary-0": False}

    def state(self, slot: str) -> ReplicaState | None:
        if slot not in self.engines:
            return None
        config, ticks, _ = self.engines[slot]
        if slot in self.dead or (config in self.broken_configs and ticks <= 0):
            return ReplicaState.DEAD
        return ReplicaState.WARM if ticks <= 0 else ReplicaState.STARTING

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
                    up=self.state(slot.name) is ReplicaState.WARM,
                    in_flight=0,
                    requests=0,
                    errors=0,
                )
                for slot in (PRODUCTION, CANARY)
            ),
        )
        return Observed(
            production=(PRODUCTION,),
            canary=CANARY,
            replicas=replicas,
            split=split if self.readable else None,
        )

    def serves(self) -> bool:
        """Whether new requests reach a warm engine, by weight or by falling through."""
        return any(
            admitted and self.state(slot) is ReplicaState.WARM
            for slot, admitted in self.admitted.items()
        )

    def act(self, intent: Intent) -> None:
        served = self.serves()
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
                self.engines.pop(slot, None)
                self.dead.discard(slot)
            case AdmitSlot(slot=slot):
                self.admitted[slot] = True
            case DrainSlot(slot=slot):
                self.admitted[slot] = False
            case SetWeight(weight=weight):
                self.weight = weight
        if served and not self.serves():
            self.unserved.append(f"after {intent}")
