"""A rollout of one to four replicas, with a lane or in place, under whatever may happen: what must
hold in each state.

Guards the requirements that a controller which is killed at any line goes on where it stood, that
capacity never goes below demand by an act of Serinus, and that each rollout ends.
"""

from enum import Enum

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from agent.healing import remedy
from canary.rollout import Observed, abort, advance, approve, pause, resume, roll_back
from domain.engine import EngineConfig
from domain.fleet import ReplicaState
from domain.rollout import (
    AdmitSlot,
    DrainSlot,
    Hold,
    Intent,
    Phase,
    Rollout,
    SetWeight,
    StopEngine,
    most_weight,
)
from domain.verdict import Outcome, Verdict
from tests.fakes.rollout_world import (
    BASELINE,
    CANARY,
    CANDIDATE,
    RolloutWorld,
    fresh_rollout,
    in_place_plan,
    plan_for,
)

CYCLE_S = 4.0
ENOUGH_CYCLES = 200
PASS = Verdict(outcome=Outcome.PASS, reason="as good.")
FAIL = Verdict(outcome=Outcome.FAIL, reason="TTFT p95 +80 %.")
UNSURE = Verdict(outcome=Outcome.INCONCLUSIVE, reason="7 of 20 requests.")
REHEARSED = EngineConfig.of({"max_num_seqs": 7})
STEPS = ((5, 25, 50, 100), (100,), (1, 2, 99, 100))


class Kill(Enum):
    """Where in a cycle the controller is killed."""

    NEVER = "never"
    BEFORE_STORING = "before storing"
    BEFORE_ACTING = "before acting"
    ACTED_UNSTORED = "acted, and the state is lost"


class AnyRollout(RuleBasedStateMachine):
    """The loop's part of a cycle is as in ``agent.loop``: healing first, then the rollout."""

    @initialize(
        replicas=st.integers(1, 4),
        weights=st.sampled_from(STEPS),
        phase=st.sampled_from((Phase.WAITING_APPROVAL, Phase.STARTING)),
        in_place=st.sampled_from((False, False, True)),
    )
    def begin(self, replicas: int, weights: tuple[int, ...], phase: Phase, in_place: bool) -> None:
        self.now = 0.0
        self.world = RolloutWorld(replicas=replicas, in_place=in_place)
        plan = in_place_plan(replicas) if in_place else plan_for(replicas, weights)
        self.rollout = fresh_rollout(Phase.WAITING_APPROVAL if in_place else phase, plan)
        self.most = 0 if in_place else most_weight(replicas)
        self.proven = self.approved = False

    # What happens.

    @rule(
        verdict=st.sampled_from((PASS, PASS, UNSURE, FAIL, None)),
        kill=st.sampled_from((Kill.NEVER, Kill.NEVER, *Kill)),
    )
    def cycle(self, verdict: Verdict | None, kill: Kill) -> None:
        self.tick(verdict, kill)

    @rule(cycles=st.integers(2, 12))
    def all_is_well_for_a_while(self, cycles: int) -> None:
        for _ in range(cycles):
            self.tick(PASS)

    @rule(phase=st.sampled_from((Phase.CONVERTING, Phase.RETURNING)), cycles=st.integers(0, 12))
    def all_is_well_up_to_a_phase_and_a_little_on(self, phase: Phase, cycles: int) -> None:
        for _ in range(ENOUGH_CYCLES):
            if self.rollout.phase is phase:
                break
            self.tick(PASS)
        for _ in range(cycles):
            self.tick(PASS)

    @rule(dies=st.booleans())
    def all_is_well_until_a_replica_starts_anew(self, dies: bool) -> None:
        for _ in range(ENOUGH_CYCLES):
            anew = self.starting_anew()
            if anew is not None or self.rollout.phase.ended:
                break
            self.tick(PASS)
        if anew is not None and dies:
            self.world.dead.add(anew)

    @precondition(lambda self: self.rollout.phase.ended)
    @rule(replicas=st.integers(1, 4), weights=st.sampled_from(STEPS))
    def another_begins(self, replicas: int, weights: tuple[int, ...]) -> None:
        self.tick(PASS)
        self.begin(replicas, weights, Phase.STARTING, self.world.in_place)

    @rule(cycles=st.integers(0, 4))
    def all_is_well_up_to_the_last_step_and_a_little_on(self, cycles: int) -> None:
        last = max(0, len(self.rollout.plan.steps) - 1)
        for _ in range(ENOUGH_CYCLES):
            if self.rollout.step == last and self.rollout.phase is not Phase.STARTING:
                break
            self.tick(PASS)
        for _ in range(cycles):
            self.tick(UNSURE)

    @rule(engine=st.integers(0, 4))
    def engine_dies(self, engine: int) -> None:
        names = [*self.world.admitted]
        if (name := names[engine % len(names)]) in self.world.engines:
            self.world.dead.add(name)

    @rule(engine=st.integers(0, 4))
    def gateway_loses_sight_of_an_engine_for_a_cycle(self, engine: int) -> None:
        names = [*self.world.admitted]
        self.world.unhealthy.add(names[engine % len(names)])
        self.tick(None)
        self.world.unhealthy.clear()

    @rule()
    def gateway_is_unreadable_for_a_cycle(self) -> None:
        self.world.readable = False
        before, acts = self.rollout, len(self.world.acts)
        self.tick(PASS)
        assert self.rollout == before
        assert len(self.world.acts) == acts
        self.world.readable = True

    @rule(weight=st.sampled_from((0, 10, 33, 100)))
    def weight_is_changed_by_hand(self, weight: int) -> None:
        """Where a weight was in force, it is left as it is until somebody decides."""
        changed = weight != self.world.weight
        in_force = self.rollout.baking_since_s is not None and not self.rollout.paused
        self.world.weight = weight
        before = self.rollout
        self.tick(None)
        if changed and in_force and self.rollout.phase is before.phase and not self.healed:
            assert self.rollout.paused
            assert self.world.weight == weight

    @rule(engine=st.integers(0, 4))
    def slot_is_drained_by_hand(self, engine: int) -> None:
        names = [*self.world.admitted]
        self.world.admitted[names[engine % len(names)]] = False

    @rule()
    def person_pauses(self) -> None:
        self.rollout = pause(self.rollout, "lunch")

    @rule()
    def person_resumes(self) -> None:
        self.rollout = resume(self.rollout)

    @rule()
    def person_rolls_back(self) -> None:
        """Also from PROMOTED, as long as nothing newer has begun."""
        self.rollout = roll_back(self.rollout, self.now, "asked for")

    @rule()
    def person_aborts(self) -> None:
        before = self.rollout
        self.rollout = abort(before, self.now, "asked for")
        assert self.rollout == before or not before.phase.ended

    @rule(cycles=st.integers(0, 30), rehearsed=st.booleans())
    def it_is_promoted_and_goes_back_for_a_while(self, cycles: int, rehearsed: bool) -> None:
        """Perhaps with an engine on the lane that a study which was cut off left there."""
        for _ in range(ENOUGH_CYCLES):
            if self.rollout.phase.ended:
                break
            self.tick(PASS)
        if self.rollout.phase is not Phase.PROMOTED:
            return
        if rehearsed:
            self.world.engines[CANARY.name] = (REHEARSED, 0, self.now)
        self.rollout = roll_back(self.rollout, self.now, "asked for")
        for _ in range(cycles):
            self.tick(None)

    @precondition(lambda self: self.rollout.phase is Phase.WAITING_APPROVAL)
    @rule()
    def person_approves(self) -> None:
        self.rollout = approve(self.rollout, self.now)
        self.approved = True

    # What must hold.

    @invariant()
    def no_act_takes_capacity_that_was_there(self) -> None:
        assert self.world.shortages == []
        assert self.world.unserved == []
        assert self.world.missing == [] or not self.world.in_place

    @invariant()
    def no_engine_that_requests_reach_is_ended(self) -> None:
        assert self.world.interrupted == []

    def teardown(self) -> None:
        """From wherever it stands, it ends where engines are well and nobody interferes."""
        if not hasattr(self, "rollout"):
            return
        self.world.readable = True
        self.world.unhealthy.clear()
        # What was changed by hand last is found first, and then decided upon.
        self.tick(PASS)
        self.rollout = resume(self.rollout)
        if self.rollout.phase is Phase.WAITING_APPROVAL:
            self.person_approves()
        for _ in range(ENOUGH_CYCLES):
            self.tick(PASS)
            if self.rollout.phase.ended:
                break
        assert self.rollout.phase.ended, f"{self.rollout}; last {self.world.acts[-6:]}"
        self.no_act_takes_capacity_that_was_there()
        self.no_engine_that_requests_reach_is_ended()

    # How it is driven.

    def tick(self, verdict: Verdict | None, kill: Kill = Kill.NEVER) -> None:
        self.now += CYCLE_S
        before, observed = self.rollout, self.world.observe(self.now)
        self.healed = self.heals(before, observed)
        if self.healed:
            return
        after, intent = advance(before, observed, verdict, self.now)
        if before.phase.ended:
            assert after == before
            assert isinstance(intent, Hold)
            return
        if kill is Kill.BEFORE_STORING:
            return
        if kill is not Kill.ACTED_UNSTORED:
            self.check_state(before, after, verdict)
            self.rollout = after
        if kill is not Kill.BEFORE_ACTING:
            self.do(after, intent)
        if self.rollout is after:
            self.check_end()

    def starting_anew(self) -> str | None:
        """The production slot, if any, whose engine starts with the candidate."""
        for slot in self.world.production:
            config = self.world.engines.get(slot.name, (None,))[0]
            starts = self.world.state(slot.name) is ReplicaState.STARTING
            if starts and config == CANDIDATE:
                return slot.name
        return None

    def heals(self, rollout: Rollout, observed: Observed) -> bool:
        """Whether healing had something to do instead of the rollout."""
        if observed.split is None or rollout.phase.ended:
            return False
        move = remedy(observed, BASELINE, rollout, {})
        if move is None or isinstance(move, Hold):
            return False
        self.world.act(move)
        return True

    def do(self, rollout: Rollout, intent: Intent) -> None:
        out = intent.slot if isinstance(intent, DrainSlot | StopEngine) else CANARY.name
        could_serve = out != CANARY.name and self.world.up(out)
        carrying = self.carrying()
        self.world.act(intent)
        if out != CANARY.name:
            # The baseline is kept until the candidate has baked at its most.
            assert rollout.phase in (Phase.CONVERTING, Phase.RETURNING, Phase.ROLLING_BACK)
        # In place no lane stands in, and one replica at a time is missing.
        least = self.world.replicas - rollout.plan.in_place
        if rollout.phase is Phase.CONVERTING and carrying >= least:
            assert self.carrying() >= least, f"{intent} leaves fewer"
        match intent:
            case SetWeight(weight=weight):
                steps = rollout.plan.steps
                allowed = {
                    Phase.STARTING: {0},
                    Phase.PROGRESSING: {step.weight for step in steps[rollout.step :][:1]},
                    Phase.CONVERTING: {self.most},
                    Phase.RETURNING: {0},
                    Phase.ROLLING_BACK: {0, self.most},
                }
                assert weight in allowed[rollout.phase]
            case AdmitSlot(slot=CANARY.name):
                assert self.world.engines[CANARY.name][0] != REHEARSED
            case DrainSlot() | StopEngine() if could_serve:
                assert self.world.suffices(), f"{intent}, and the others do not suffice"
            case _:
                pass

    def carrying(self) -> int:
        """How many engines carry a part of the traffic, the lane among them at its most."""
        lane = self.world.carries(CANARY.name) and self.world.weight == self.most
        return len(self.world.carriers()) + lane

    def check_state(self, before: Rollout, after: Rollout, verdict: Verdict | None) -> None:
        last = len(before.plan.steps) - 1
        assert after.step - before.step in (0, 1)
        if before.plan.in_place:
            phases = {Phase.WAITING_APPROVAL, Phase.CONVERTING, Phase.ROLLING_BACK}
            assert after.phase.ended or after.phase in phases
            self.proven = self.approved
            return
        if after.step > before.step or after.phase is Phase.CONVERTING is not before.phase:
            assert verdict is not None and verdict.outcome is Outcome.PASS
        if after.phase is Phase.CONVERTING is not before.phase:
            assert (before.phase, before.step) == (Phase.PROGRESSING, last)
            self.proven = True
        assert not (before.paused and after.step != before.step)

    def check_end(self) -> None:
        world, phase = self.world, self.rollout.phase
        if phase in (Phase.PROMOTED, Phase.ROLLED_BACK):
            assert world.runs(CANDIDATE if phase is Phase.PROMOTED else BASELINE)
            assert world.weight == 0
            assert world.state(CANARY.name) is None
            assert self.proven or phase is Phase.ROLLED_BACK


TestAnyRollout = AnyRollout.TestCase
TestAnyRollout.settings = settings(
    max_examples=150, stateful_step_count=30, deadline=None, derandomize=True
)


def test_the_world_tells_a_shortage_from_what_suffices():
    """What the machine's invariants rest on."""
    for replicas in (1, 2, 3, 4):
        world = RolloutWorld(replicas=replicas, weight=most_weight(replicas))
        world.engines[CANARY.name], world.admitted[CANARY.name] = (CANDIDATE, 0, 0.0), True
        assert world.suffices()
        world.act(DrainSlot(slot="production-0"))
        assert world.suffices() and world.shortages == []
        world.act(SetWeight(weight=0))
        assert len(world.shortages) == (replicas > 1), "without production the lane has it all"
