"""Search trials run on all lanes at once; what is judged runs on one, in turn."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace

import pytest

from domain.engine import EngineConfig, Resolution
from domain.errors import EngineUnreachable, LeaseLost
from domain.study import FailureKind, StudyState, Trial, TrialPurpose, TrialState
from tests.fakes.records import measured
from tests.unit.agent.test_graph import (
    FAST,
    FASTER,
    ROUND,
    Bench,
    ListLog,
    graph,
    purposes,
    study,
    surface,
)

LANES = ("canary-0", "canary-1")
SPEEDS = [EngineConfig.of({"speed": speed}) for speed in (2, 3, 4, 5)]


@dataclass
class Pairs(Bench):
    """A search trial ends only once there is one on the other lane too."""

    running: set[str] = field(default_factory=set)
    meeting: asyncio.Barrier = field(default_factory=lambda: asyncio.Barrier(len(LANES)))

    async def rehearse(self, trial: Trial, quality: bool) -> Trial:
        assert trial.lane not in self.running, "one engine a lane"
        self.running.add(trial.lane)
        if trial.purpose is TrialPurpose.SEARCH:
            await self.meeting.wait()
        self.running.discard(trial.lane)
        return await super().rehearse(trial, quality)


async def test_search_trials_run_side_by_side_and_the_judged_ones_on_the_first_lane() -> None:
    log = ListLog()
    async with asyncio.timeout(30):
        conclusion = await graph(log, SPEEDS, Pairs(), lanes=LANES).run(study(5))
    assert purposes(log) == ["baseline", *["search"] * 4, *ROUND]
    searched = [t for t in log.rows.values() if t.purpose is TrialPurpose.SEARCH]
    assert [t.lane for t in searched] == [*LANES, *LANES]
    assert [t.config for t in searched] == SPEEDS
    others = {t.lane for t in log.rows.values() if t.purpose is not TrialPurpose.SEARCH}
    assert others == {"canary-0"}
    assert conclusion.recommendation is not None
    assert conclusion.recommendation.config == SPEEDS[-1]


@pytest.mark.parametrize("trials", [2, 3, 4])
async def test_no_more_run_than_the_study_may_have(trials: int) -> None:
    log = ListLog()
    await graph(log, SPEEDS, Bench(), lanes=LANES).run(study(trials))
    assert purposes(log).count("search") == trials - 1


async def test_the_second_lane_gets_no_config_that_is_the_firsts_in_disguise() -> None:
    async def alike(config: EngineConfig) -> Resolution:
        return Resolution(config=FAST if config == FASTER else config, overridden=())

    log = ListLog()
    await graph(log, SPEEDS, Bench(), resolve=alike, lanes=LANES).run(study(3))
    tried = [t.config for t in log.rows.values() if t.purpose is TrialPurpose.SEARCH]
    assert tried == [SPEEDS[0], SPEEDS[2]]


async def test_where_only_one_is_new_one_lane_runs() -> None:
    log = ListLog()
    await graph(log, [FAST], Bench(), lanes=LANES).run(study(5))
    assert purposes(log) == ["baseline", "search", *ROUND]


@dataclass
class Breaking(Bench):
    """Search trials raise what their lane does, if anything, the first lane's at once."""

    errors: dict[str, Exception] = field(default_factory=dict)

    async def rehearse(self, trial: Trial, quality: bool) -> Trial:
        if trial.purpose is TrialPurpose.SEARCH and trial.lane != LANES[0]:
            await asyncio.sleep(0)
        if trial.purpose is TrialPurpose.SEARCH and trial.lane in self.errors:
            raise self.errors[trial.lane]
        return await super().rehearse(trial, quality)


GONE = EngineUnreachable("The disk is gone.")


async def test_where_one_trial_breaks_off_the_one_beside_it_is_kept() -> None:
    log = ListLog()
    with pytest.raises(EngineUnreachable):
        await graph(log, SPEEDS, Breaking(errors={LANES[0]: GONE}), lanes=LANES).run(study(5))
    _, broken, kept = log.rows.values()
    assert broken.failure is not None and broken.failure.kind is FailureKind.INTERRUPTED
    assert kept.state is TrialState.MEASURED and kept.ended_s is not None


async def test_a_lost_lease_goes_before_any_other_error() -> None:
    log = ListLog()
    both = Breaking(errors={LANES[0]: GONE, LANES[1]: LeaseLost("Another one holds it.")})
    with pytest.raises(LeaseLost):
        await graph(log, SPEEDS, both, lanes=LANES).run(study(5))
    assert [t.state for t in log.rows.values()][-1] is TrialState.RUNNING


@dataclass
class Hanging(Bench):
    """Search trials never end; ``hung`` once the last lane's has begun."""

    hung: asyncio.Event = field(default_factory=asyncio.Event)

    async def rehearse(self, trial: Trial, quality: bool) -> Trial:
        if trial.purpose is TrialPurpose.SEARCH:
            if trial.lane == LANES[-1]:
                self.hung.set()
            await asyncio.Event().wait()
        return await super().rehearse(trial, quality)


async def test_what_was_under_way_on_all_lanes_is_run_again_after_a_kill() -> None:
    log, bench = ListLog(), Hanging()
    task = asyncio.create_task(graph(log, SPEEDS[:2], bench, lanes=LANES).run(study(3)))
    await bench.hung.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [t.state for t in log.rows.values()][1:] == [TrialState.RUNNING] * 2
    conclusion = await graph(log, SPEEDS[:2], Bench(), lanes=LANES).run(study(3))
    assert conclusion.study.state is StudyState.RECOMMENDED
    rows = log.rows.values()
    cut_off = [t.config for t in rows if t.failure and t.failure.kind is FailureKind.INTERRUPTED]
    measured = [t.config for t in rows if t.purpose is TrialPurpose.SEARCH and t.measurement]
    assert cut_off == measured == SPEEDS[:2]


@dataclass
class Flattering(Bench):
    """Search trials on the lane ``flattered`` measure ten times what fresh runs do."""

    flattered: str = ""

    async def rehearse(self, trial: Trial, quality: bool) -> Trial:
        ended = await super().rehearse(trial, quality)
        if trial.purpose is not TrialPurpose.SEARCH or trial.lane != self.flattered:
            return ended
        return replace(ended, measurement=measured(10 * surface(trial.config)))


LITTLE = EngineConfig.of({"cache": "fp8"})


@pytest.mark.parametrize(
    ("flattered", "proposed", "ends"),
    [
        (LANES[1], [FAST, LITTLE], StudyState.RECOMMENDED),
        (LANES[0], [LITTLE, FAST], StudyState.NOTHING_BETTER),
    ],
)
async def test_a_leader_that_is_not_proven_gives_way_where_another_lane_measured_it(
    flattered: str, proposed: list[EngineConfig], ends: StudyState
) -> None:
    log = ListLog()
    made = graph(log, proposed, Flattering(flattered=flattered), lanes=LANES)
    conclusion = await made.run(study(3))
    fresh = [t.config for t in log.rows.values() if t.purpose is TrialPurpose.CONFIRM]
    assert fresh[0] == LITTLE
    assert conclusion.study.state is ends
    assert (FAST in fresh) is (ends is StudyState.RECOMMENDED)
