"""Each beginning of a rollout, cut off: whoever asks next goes on, and capacity stays.

Guards the requirement that a controller killed at any line is followed by one that resumes, holds
or rolls back, does no step twice, and takes away no capacity that is needed.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import pytest

from canary.rollout import advance, approve, resume, roll_back
from domain.fleet import ReplicaState
from domain.rollout import Intent, Phase, Rollout, SetWeight, StartEngine
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
REPLICAS = [1, 2, 3]


@dataclass
class Run:
    """A rollout in its world; a cycle is the world's look, the pure step, and its act."""

    replicas: int

    def __post_init__(self) -> None:
        self.world = RolloutWorld(replicas=self.replicas)
        self.rollout = fresh_rollout(plan=plan_for(self.replicas))
        self.now = 0.0

    def cycle(self, acts: bool = True) -> Intent:
        self.now += CYCLE_S
        observed = self.world.observe(self.now)
        self.rollout, intent = advance(self.rollout, observed, PASS, self.now)
        if acts:
            self.world.act(intent)
        return intent

    def cycles(self, count: int) -> "Run":
        for _ in range(count):
            self.cycle()
        return self

    def ends(self) -> Rollout:
        """The rollout at its end, which leaves all well; whatever paused it is resumed."""
        for _ in range(ENOUGH_CYCLES):
            self.rollout = resume(self.rollout)
            self.cycle()
            if self.rollout.phase.ended:
                break
        world, rollout = self.world, self.rollout
        assert rollout.phase in (Phase.PROMOTED, Phase.ROLLED_BACK), world.acts[-5:]
        assert world.runs(CANDIDATE if rollout.phase is Phase.PROMOTED else BASELINE)
        assert (world.weight, world.state(CANARY.name)) == (0, None)
        assert (world.shortages, world.unserved, world.interrupted) == ([], [], [])
        return rollout


def length(replicas: int, begin: Callable[[Run], None] = lambda run: None) -> int:
    """How many cycles an undisturbed rollout takes from ``begin`` on."""
    run = Run(replicas)
    begin(run)
    for count in range(ENOUGH_CYCLES):
        if run.rollout.phase.ended:
            return count
        run.cycle()
    raise AssertionError("it does not end")


def prefixes(replicas: int) -> Iterator[int]:
    return iter(range(length(replicas)))


@pytest.mark.parametrize("replicas", REPLICAS)
def test_an_act_that_was_lost_is_made_by_the_next(replicas: int) -> None:
    for count in prefixes(replicas):
        run = Run(replicas).cycles(count)
        run.cycle(acts=False)
        assert run.ends().phase is Phase.PROMOTED
        starts = [act for act in run.world.acts if isinstance(act, StartEngine)]
        assert len(starts) == replicas + 1
        weights = [act.weight for act in run.world.acts if isinstance(act, SetWeight)]
        assert all(before != after for before, after in pairwise(weights)), "one was set twice"


@pytest.mark.parametrize("replicas", REPLICAS)
def test_rolled_back_from_anywhere_and_cut_off_anywhere_the_baseline_is_restored(
    replicas: int,
) -> None:
    for count in prefixes(replicas):

        def begin(run: Run, count: int = count) -> None:
            run.cycles(count)
            run.rollout = roll_back(run.rollout, run.now, "asked for")

        for lost in range(length(replicas, begin)):
            run = Run(replicas)
            begin(run)
            run.cycles(lost)
            run.cycle(acts=False)
            assert run.ends().phase is Phase.ROLLED_BACK
            assert run.rollout.reason == "asked for"


@pytest.mark.parametrize("replicas", REPLICAS)
def test_an_engine_that_dies_anywhere_costs_no_more_than_itself(replicas: int) -> None:
    """In the phases in which production is restarted; before, its own care is healing's."""
    for count in prefixes(replicas):
        for name in RolloutWorld(replicas=replicas).admitted:
            run = Run(replicas).cycles(count)
            restarts = run.rollout.phase in (Phase.CONVERTING, Phase.RETURNING)
            if name not in run.world.engines or not (restarts or name == CANARY.name):
                continue
            run.world.dead.add(name)
            run.ends()


@pytest.mark.parametrize("replicas", REPLICAS)
@pytest.mark.parametrize("which", [0, 1, -1])
def test_an_engine_that_dies_while_it_rolls_back_is_replaced(replicas: int, which: int) -> None:
    names = [*RolloutWorld(replicas=replicas).admitted]
    for count in prefixes(replicas):
        run = Run(replicas).cycles(count)
        if run.rollout.phase not in (Phase.CONVERTING, Phase.RETURNING):
            continue
        run.rollout = roll_back(run.rollout, run.now, "asked for")
        for _ in range(40):
            if (name := names[which]) in run.world.engines and not run.rollout.phase.ended:
                run.world.dead.add(name)
            run.cycles(3)
        run.rollout = run.rollout if run.rollout.phase.ended else run.ends()
        assert run.rollout.phase is Phase.ROLLED_BACK


@pytest.mark.parametrize("replicas", REPLICAS)
def test_a_weight_changed_by_hand_anywhere_waits_for_a_person(replicas: int) -> None:
    """Where a weight was in force; before and while it goes back, there was none to be kept."""
    for count in prefixes(replicas):
        run = Run(replicas).cycles(count)
        if run.rollout.baking_since_s is None:
            continue
        before = run.world.weight
        run.world.weight = 7
        for _ in range(20):
            run.cycle()
            assert run.world.weight == 7
        assert run.rollout.paused
        assert run.rollout.reason == f"the weight was changed by hand from {before} % to 7 %"
        assert all(run.world.state(name) is ReplicaState.WARM for name in run.world.engines)
        run.world.shortages.clear()
        assert run.ends().phase is Phase.PROMOTED


class InPlace(Run):
    """A rollout without a lane for traffic, as it is after a person has approved it."""

    def __post_init__(self) -> None:
        self.world = RolloutWorld(replicas=self.replicas, in_place=True)
        waiting = fresh_rollout(Phase.WAITING_APPROVAL, in_place_plan(self.replicas))
        self.rollout = approve(waiting, 0.0)
        self.now = 0.0

    def ends(self) -> Rollout:
        rollout = super().ends()
        assert self.world.missing == []
        lane = [act for act in self.world.acts if CANARY.name in str(act)]
        assert (lane, [act for act in self.world.acts if isinstance(act, SetWeight)]) == ([], [])
        return rollout


def in_place_cycles(replicas: int) -> range:
    run = InPlace(replicas)
    for count in range(ENOUGH_CYCLES):
        if run.rollout.phase.ended:
            assert run.ends().phase is Phase.PROMOTED
            return range(count)
        run.cycle()
    raise AssertionError("it does not end")


@pytest.mark.parametrize("replicas", REPLICAS)
def test_in_place_an_act_that_was_lost_is_made_by_the_next(replicas: int) -> None:
    for count in in_place_cycles(replicas):
        run = InPlace(replicas).cycles(count)
        run.cycle(acts=False)
        assert run.ends().phase is Phase.PROMOTED
        starts = [act.slot for act in run.world.acts if isinstance(act, StartEngine)]
        assert starts == [slot.name for slot in run.world.production]


@pytest.mark.parametrize("replicas", REPLICAS)
def test_in_place_it_goes_back_from_anywhere_also_cut_off(replicas: int) -> None:
    for count in in_place_cycles(replicas):
        for lost in range(ENOUGH_CYCLES):
            run = InPlace(replicas).cycles(count)
            run.rollout = roll_back(run.rollout, run.now, "asked for")
            run.cycles(lost)
            if run.rollout.phase.ended:
                break
            run.cycle(acts=False)
            assert run.ends().phase is Phase.ROLLED_BACK


@pytest.mark.parametrize("replicas", REPLICAS)
@pytest.mark.parametrize("back", [False, True])
def test_in_place_an_engine_that_dies_anywhere_costs_no_other(replicas: int, back: bool) -> None:
    for count in in_place_cycles(replicas):
        for slot in RolloutWorld(replicas=replicas).production:
            run = InPlace(replicas).cycles(count)
            if back:
                run.rollout = roll_back(run.rollout, run.now, "asked for")
                run.cycle()
            if slot.name in run.world.engines and not run.rollout.phase.ended:
                run.world.dead.add(slot.name)
            run.ends()


@pytest.mark.parametrize("replicas", REPLICAS)
def test_in_place_a_config_that_does_not_start_sends_all_back(replicas: int) -> None:
    run = InPlace(replicas)
    run.world.broken_configs.add(CANDIDATE)
    assert run.ends().phase is Phase.ROLLED_BACK
    assert "failed on the new config" in run.rollout.reason
    starts = [act for act in run.world.acts if isinstance(act, StartEngine)]
    assert [start.config for start in starts] == [CANDIDATE, BASELINE]
