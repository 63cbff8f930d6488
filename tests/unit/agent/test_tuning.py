"""What the loop does at rest: when a study begins, and what follows from its conclusion."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import update

from agent import drift_memory
from agent.active_config import TUNED_SHAPE
from agent.store import Store, decode, encode
from agent.store.models import StudyRow, TrialRow
from agent.study_job import RESUMPTIONS
from domain.approval import Answer, Autonomy, CommandKind
from domain.errors import BadInput, Temporary
from domain.events import EventKind
from domain.rollout import Phase
from domain.study import StudyState, Trial, TrialState, Trigger
from domain.traffic import TrafficShape
from tests.fakes import records
from tests.fakes.controller_world import (
    CANARY,
    CANDIDATE,
    LEASE_S,
    POLICY,
    ControllerWorld,
    opened,
)
from tests.fakes.shapes import shape
from tools.profiler import Missing

NO_COST = "It cost 0 engine starts, 0 s of the canary lane."


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with opened(tmp_path) as store:
        yield store


def limited(**changes: object) -> object:
    return replace(POLICY, limits=replace(POLICY.limits, **changes))


async def resting(store: Store, **limits: object) -> ControllerWorld:
    """A world whose production serves, with no study begun yet."""
    world = ControllerWorld(store, policy=limited(**limits))
    world.shape = shape(requests=1)
    await world.settle()
    return world


async def rolling(store: Store, **limits: object) -> ControllerWorld:
    """A study has recommended the candidate, and its conclusion was taken."""
    world = await resting(store, **limits)
    world.shape = shape()
    await world.until(lambda: world.studies.begun)
    world.studies.recommend(CANDIDATE)
    await world.tick()
    return world


async def test_traffic_that_was_never_tuned_for_begins_a_study(store: Store) -> None:
    world = await resting(store)
    assert world.study() is None
    world.shape = shape()
    assert await world.tick() == (
        "Study begins: This traffic was never tuned for. "
        "At most 4 search trials, 40 engine starts, 67 min of the canary lane."
    )
    assert world.study().trigger is Trigger.FIRST
    assert world.study().load_levels == POLICY.load_levels
    assert await world.tick() == (
        "Rehearsing on the canary lane: 0 trials so far (This traffic was never tuned for.)"
    )


async def test_a_study_that_finds_nothing_leaves_production_and_is_not_repeated(
    store: Store,
) -> None:
    world = await resting(store)
    world.shape = shape()
    await world.until(lambda: world.studies.begun)
    world.studies.find_nothing()
    assert await world.tick() == f"Study ended: None is. {NO_COST}"
    assert (await world.tick(20)).startswith("No study is wanted: ")
    assert len(world.studies.begun) == 1
    world.shape = shape(running=128.0)
    sentence = await world.until(lambda: len(world.studies.begun) == 2, cycles=130)
    assert sentence == (
        "Study begins: The number in the engine rose 4.1-fold for 2 windows (distance 2.02, "
        "limit 1.50, noise unknown after 0 windows without change). At most 4 search "
        "trials, 40 engine starts, 67 min of the canary lane."
    )


async def test_drift_is_counted_on_by_the_next_controller_and_missing_metrics_count_nothing(
    store: Store,
) -> None:
    world = await resting(store)
    world.shape = shape()
    await world.until(lambda: world.studies.begun)
    world.studies.find_nothing()
    await world.tick()
    world.shape = shape(running=128.0)
    await world.tick(61)
    assert len(world.studies.begun) == 1
    world.shape = Missing(reason="running is missing (down)", signals=("running",))
    await world.tick(61)
    world.shape = shape(running=128.0)
    second = world.another("second")
    world.clock.advance(LEASE_S + 1)
    assert "The number in the engine rose" in await second.cycle()


async def watching(store: Store) -> ControllerWorld:
    """A study found nothing, and the traffic was compared with its shape since."""
    world = await resting(store)
    world.shape = shape()
    await world.until(lambda: world.studies.begun)
    world.studies.find_nothing()
    await world.tick(130)
    return world


async def test_what_another_model_was_tuned_for_says_nothing_of_this_one(store: Store) -> None:
    world = await watching(store)
    world.shape = replace(shape(), model="another")
    assert await world.tick() == (
        "Study begins: This traffic was never tuned for. "
        "At most 4 search trials, 40 engine starts, 67 min of the canary lane."
    )


async def test_without_metrics_no_old_shape_is_shown_as_live(store: Store) -> None:
    world = await resting(store)
    await world.tick()
    assert world.tuning.shape is not None
    world.shape = Missing(reason="running is missing (down)", signals=("running",))
    assert await world.tick() == "Holding: running is missing (down)"
    assert world.tuning.shape is None


async def test_windows_without_change_are_remembered_apart_from_what_each_cycle_reads(
    store: Store,
) -> None:
    await watching(store)
    with store.view() as uow:
        known = drift_memory.recalled(uow)
        assert known is not None
        assert known.calm == ((),)
        whole = drift_memory.whole(uow, known)
        assert whole is not None
        assert [len(stretch) for stretch in whole.calm] == [2]


async def test_a_drift_state_that_held_its_memory_itself_is_read(store: Store) -> None:
    await watching(store)
    with store.work() as uow:
        old = drift_memory.whole(uow, drift_memory.recalled(uow))
        assert old is not None
        uow.state.set(drift_memory.DRIFT, encode(old))
        uow.state.set(drift_memory.CALM, None)
        assert drift_memory.whole(uow, drift_memory.recalled(uow)) == old


@pytest.mark.parametrize("key", [drift_memory.DRIFT, drift_memory.CALM, TUNED_SHAPE])
async def test_what_another_version_stored_of_drift_is_learned_anew(store: Store, key: str) -> None:
    """A row that cannot be read must not hold all tuning for ever."""
    world = await watching(store)
    with store.work() as uow:
        uow.state.set(key, {"of": "another version"})
        uow.commit()
    assert (await world.tick(130)).startswith("No study is wanted: ")
    assert len(world.studies.begun) == 1
    with store.view() as uow:
        assert decode(TrafficShape, uow.state.get(TUNED_SHAPE)).requests == shape().requests
        assert drift_memory.whole(uow, drift_memory.recalled(uow)) is not None


async def test_a_past_study_that_cannot_be_read_does_not_hold_tuning(store: Store) -> None:
    world = await watching(store)
    with store.work() as uow:
        uow._connection.execute(update(StudyRow).values(document={"of": "another version"}))
        uow.commit()
    assert (await world.tick()).startswith("No study is wanted: ")


async def test_a_study_is_gone_on_with_by_the_next_controller(store: Store) -> None:
    world = await resting(store)
    world.shape = shape()
    await world.until(lambda: world.studies.begun)
    await world.controller._tuning.close()
    assert await world.tick() == f"Going on with study {world.study().id}."
    assert len(world.studies.begun) == 2
    with store.view() as uow:
        assert len(uow.studies.latest(9)) == 1


@pytest.mark.parametrize(
    ("error", "conclusion"),
    [
        (BadInput("The trace has no such stretch."), "The trace has no such stretch."),
        (KeyError("level"), "A fault of Serinus itself ended the study: KeyError('level')."),
    ],
)
async def test_a_study_that_breaks_off_has_failed_and_ends_nothing_else(
    store: Store, error: Exception, conclusion: str, caplog: pytest.LogCaptureFixture
) -> None:
    world = await resting(store, cooldown_s=600.0)
    world.shape = shape()
    await world.until(lambda: world.studies.begun)
    world.studies.break_off(error)
    assert await world.tick() == f"Study ended: {conclusion} {NO_COST}"
    assert world.study().state is StudyState.FAILED
    assert "Cooling down" in await world.tick()
    assert ("Traceback" in caplog.text) is isinstance(error, KeyError)


async def test_a_study_that_an_error_interrupts_which_may_pass_is_gone_on_with(
    store: Store,
) -> None:
    """It once failed, hours into its trials, for a database that was locked for a moment."""
    world = await resting(store)
    world.shape = shape()
    await world.until(lambda: world.studies.begun)
    world.studies.break_off(Temporary("The database is locked.", retry_after_s=5.0))
    assert await world.tick() == "Holding: The database is locked."
    assert world.study().state is StudyState.RUNNING
    assert "goes on in 3 s" in await world.tick()
    await world.until(lambda: len(world.studies.begun) == 2, cycles=3)
    world.studies.find_nothing()
    await world.until(lambda: world.study().state is StudyState.NOTHING_BETTER, cycles=2)


async def test_a_study_that_never_gets_any_further_fails_in_the_end(store: Store) -> None:
    world = await resting(store, cooldown_s=600.0)
    world.shape = shape()
    for times in range(1, RESUMPTIONS + 2):
        await world.until(lambda: len(world.studies.begun) == times, cycles=5)  # noqa: B023
        world.studies.break_off(Temporary("The disk is full.", retry_after_s=1.0))
    await world.until(lambda: world.study().state is StudyState.FAILED, cycles=2)
    assert world.study().conclusion.startswith("The disk is full.")


async def test_paused_no_study_begins_and_an_order_is_kept(store: Store) -> None:
    world = await resting(store)
    world.order(CommandKind.PAUSE)
    world.order(CommandKind.TUNE)
    world.shape = shape()
    assert (await world.tick(3)).startswith("Paused. ")
    assert world.study() is None
    world.order(CommandKind.RESUME)
    await world.tick()
    assert world.study().reason == "ada asked for it."


async def test_a_rollout_of_a_study_that_ends_during_a_pause_stays_paused(store: Store) -> None:
    world = ControllerWorld(store)
    await world.settle()
    await world.until(lambda: world.studies.begun)
    world.order(CommandKind.PAUSE)
    await world.tick()
    world.studies.recommend(CANDIDATE)
    await world.until(world.rollout)
    await world.tick(5)
    assert (world.rollout().phase, world.rollout().paused) == (Phase.STARTING, True)
    assert all(slot != CANARY.name for slot, _ in world.launcher.starts)
    world.order(CommandKind.RESUME)
    await world.until(lambda: world.rollout().phase is Phase.PROGRESSING)


async def test_an_order_passes_the_cooldown_and_is_used_once(store: Store) -> None:
    world = await resting(store, cooldown_s=3600.0)
    world.shape = shape()
    await world.until(lambda: world.studies.begun)
    world.studies.find_nothing()
    await world.tick(2)
    world.order(CommandKind.TUNE, actor="grace")
    await world.tick()
    assert world.study().reason == "grace asked for it."
    world.studies.find_nothing()
    await world.tick(5)
    assert len(world.studies.begun) == 2


async def test_no_more_studies_than_the_days_budget(store: Store) -> None:
    world = await resting(store, studies_a_day=1)
    world.shape = shape()
    await world.until(lambda: world.studies.begun)
    world.studies.find_nothing()
    await world.tick()
    world.order(CommandKind.TUNE)
    sentence = await world.tick()
    assert sentence == (
        "A study is wanted (ada asked for it.) and refused: "
        "The day's budget of 1 studies is used up."
    )
    held = [event.sentence for event in world.notifier.told if event.kind is EventKind.HELD]
    assert held == [sentence]
    assert (await world.tick()).startswith("No study is wanted: ")


async def test_observing_rehearses_nothing_and_pages_nobody(store: Store) -> None:
    world = await resting(store, autonomy=Autonomy.OBSERVE)
    world.shape = shape()
    assert "refused: Autonomy is observe" in await world.tick(3)
    assert world.study() is None
    assert not any(event.kind is EventKind.HELD for event in world.notifier.told)


async def test_a_latency_that_is_not_known_is_said_to_be_unknown(store: Store) -> None:
    world = await resting(store)
    world.shape = shape(requests=5.0, ttft_p95_ms=None)
    assert (await world.tick()).endswith("TTFT p95 unknown.")


async def test_recommending_rolls_nothing_out(store: Store) -> None:
    world = await rolling(store, autonomy=Autonomy.RECOMMEND)
    assert world.rollout() is None
    told = [event for event in world.notifier.told if event.kind is EventKind.HELD]
    assert told[0].sentence.endswith("Autonomy is recommend: nothing is rolled out.")


async def test_a_rollout_waits_until_a_person_approves(store: Store) -> None:
    world = await rolling(store, autonomy=Autonomy.APPROVE)
    assert await world.tick(5) == f"Config {CANDIDATE.digest} waits for approval."
    assert len(world.launcher.starts) == 1
    with store.work() as uow:
        (question,) = uow.approvals.open()
        uow.approvals.answer(question.id, Answer.APPROVE, "ada", world.clock.now())
        uow.commit()
    await world.until(lambda: world.rollout().phase is Phase.PROMOTED)


async def test_while_a_rollout_waits_a_dead_production_engine_is_still_replaced(
    store: Store,
) -> None:
    world = await rolling(store, autonomy=Autonomy.APPROVE)
    world.launcher.kill("production-0")
    await world.until(lambda: len(world.launcher.starts) == 2)
    assert world.rollout().phase is Phase.WAITING_APPROVAL


async def test_a_rejected_or_expired_question_moves_nothing(store: Store) -> None:
    world = await rolling(store, autonomy=Autonomy.APPROVE)
    world.clock.advance(POLICY.approval_ttl_s)
    await world.tick(2)
    assert world.rollout().phase is Phase.REJECTED
    assert (await world.split()).weight == 0
    assert len(world.launcher.starts) == 1


async def test_after_a_promotion_the_first_whole_window_is_what_it_is_tuned_for(
    store: Store,
) -> None:
    world = await rolling(store)
    await world.until(lambda: world.rollout().phase is Phase.PROMOTED)
    world.shape = shape(running=90.0)
    await world.tick(70)
    assert len(world.studies.begun) == 1
    world.shape = shape(running=20.0)
    sentence = await world.until(lambda: len(world.studies.begun) == 2, cycles=130)
    assert "The number in the engine fell 4.2-fold" in sentence


async def test_a_config_that_was_left_is_not_returned_to_within_the_cooldown(
    store: Store,
) -> None:
    world = await rolling(store, cooldown_s=3600.0)
    await world.until(lambda: world.rollout().phase is Phase.PROMOTED)
    world.order(CommandKind.TUNE)
    await world.until(lambda: len(world.studies.begun) == 2)
    world.studies.recommend(world.studies.begun[0].baseline)
    assert "is recommended only: Config" in await world.tick()


async def test_the_schedule_begins_one_study_each_time(store: Store) -> None:
    world = ControllerWorld(store, crontab="*/10 * * * *")
    world.shape = shape(requests=1)
    await world.settle()
    await world.until(lambda: world.studies.begun, cycles=310)
    assert world.study().trigger is Trigger.SCHEDULE
    world.studies.find_nothing()
    await world.tick(10)
    assert len(world.studies.begun) == 1


async def test_what_the_schedule_asks_for_during_a_pause_is_made_up_for_once(store: Store) -> None:
    world = ControllerWorld(store, crontab="*/10 * * * *")
    world.shape = shape(requests=1)
    await world.settle()
    world.order(CommandKind.PAUSE)
    await world.tick(700)
    assert world.studies.begun == []
    world.order(CommandKind.RESUME)
    await world.until(lambda: world.studies.begun, cycles=3)
    assert world.study().trigger is Trigger.SCHEDULE
    world.studies.find_nothing()
    await world.tick(10)
    assert len(world.studies.begun) == 1


def lane_run(world: ControllerWorld, seconds: float, ended_s: float | None = None) -> Trial:
    """A run of the world's study that held the lane so long."""
    end_s = world.clock.now() if ended_s is None else ended_s
    study = world.study()
    with world.store.work() as uow:
        number = len(uow.trials.of(study.id)) + 1
        trial = records.trial(
            number,
            id=f"{study.id}-{number}",
            study_id=study.id,
            state=TrialState.MEASURED,
            measurement=records.measured(1000.0),
            started_s=end_s - seconds,
            ended_s=end_s,
        )
        uow.trials.add(trial)
        uow.commit()
    return trial


async def ended_after(world: ControllerWorld, seconds: float) -> str:
    """A study begins, holds the lane so long and finds nothing; the sentence of its end."""
    world.shape = shape()
    await world.until(lambda: world.studies.under_way)
    world.clock.advance(seconds)
    lane_run(world, seconds)
    world.studies.find_nothing()
    return await world.tick()


async def test_a_study_says_before_what_it_may_cost_and_afterwards_what_it_did(
    store: Store,
) -> None:
    world = await resting(store, lane_s_a_study=1800.0)
    sentence = await ended_after(world, 840.0)
    begun = next(e for e in world.notifier.told if e.kind is EventKind.STUDY_STARTED)
    assert begun.sentence.endswith("40 engine starts, 30 min of the canary lane.")
    assert sentence == "Study ended: None is. It cost 1 engine start, 14 min of the canary lane."
    assert world.study().conclusion == sentence.removeprefix("Study ended: ")
    assert world.study().lane.bounded


async def test_a_study_that_cannot_fit_in_the_days_minutes_is_refused_until_they_come_back(
    store: Store,
) -> None:
    world = await resting(store, lane_s_a_day=1200.0)
    await ended_after(world, 900.0)
    world.order(CommandKind.TUNE)
    assert (await world.tick()).endswith(
        "refused: A study may need 10 min of the canary lane, and of the day's 20 min 15 are used "
        "up; wait until they are a day old, or raise canary_minutes_a_day."
    )
    world.clock.advance(86_400.0 - 300.0)
    world.order(CommandKind.TUNE)
    await world.tick()
    assert len(world.studies.begun) == 2


async def test_a_study_gets_what_the_day_has_left_and_the_next_controller_knows_it(
    store: Store,
) -> None:
    world = await resting(store, lane_s_a_study=1200.0, lane_s_a_day=1800.0)
    await ended_after(world, 900.0)
    second = world.another("second")
    world.clock.advance(LEASE_S + 1)
    world.order(CommandKind.TUNE)
    await second.cycle()
    assert world.study().lane.most.seconds == 900.0


async def test_minutes_of_a_study_that_began_the_day_before_count_where_it_reached_into_today(
    store: Store,
) -> None:
    world = await resting(store, lane_s_a_day=86_400.0)
    await ended_after(world, 60.0)
    world.clock.advance(90_000.0)
    lane_run(world, 86_000.0)
    world.order(CommandKind.TUNE)
    assert "of the day's 1440 min 1433 are used up" in await world.tick()


async def test_a_trials_row_of_another_version_does_not_hold_tuning(store: Store) -> None:
    world = await resting(store, lane_s_a_day=3600.0)
    await ended_after(world, 60.0)
    with store.work() as uow:
        uow._connection.execute(update(TrialRow).values(document={"of": "another version"}))
        uow.commit()
    world.order(CommandKind.TUNE)
    await world.tick()
    assert len(world.studies.begun) == 2


async def test_a_study_is_of_one_of_the_replicas_and_what_it_is_tuned_for_of_all(
    store: Store,
) -> None:
    plan = replace(POLICY.rollout, replicas=3)
    world = ControllerWorld(store, policy=replace(POLICY, rollout=plan))
    await world.settle()
    await world.until(lambda: world.studies.begun)
    study = world.studies.begun[-1]
    assert study.replicas == 3
    assert study.shape.concurrency == shape().concurrency
    [told] = [e for e in world.notifier.told if e.kind is EventKind.STUDY_STARTED]
    assert "It rehearses what one of 3 replicas gets." in told.sentence
    world.studies.find_nothing()
    await world.tick()
    with store.view() as uow:
        tuned = decode(TrafficShape, uow.state.get(TUNED_SHAPE))
    assert tuned.concurrency == shape().concurrency


@pytest.mark.parametrize(
    ("replicas", "told"),
    [(1, "until it is warm, no request is answered"), (3, "each of 3 replicas restarts in turn")],
)
async def test_in_place_a_person_is_asked_whatever_the_autonomy_and_told_what_it_takes(
    store: Store, replicas: int, told: str
) -> None:
    plan = replace(POLICY.rollout, steps=(), in_place=True, replicas=replicas)
    world = ControllerWorld(store, policy=replace(POLICY, rollout=plan))
    assert POLICY.limits.autonomy is Autonomy.AUTONOMOUS
    await world.settle()
    await world.until(lambda: world.studies.begun)
    world.studies.recommend(CANDIDATE)
    await world.tick(3)
    rollout = world.rollout()
    assert rollout.phase is Phase.WAITING_APPROVAL
    [asked] = [e for e in world.notifier.told if e.kind is EventKind.APPROVAL_ASKED]
    for said in (rollout.rationale, asked.sentence):
        assert told in said
        assert "Nothing is judged under live traffic." in said
