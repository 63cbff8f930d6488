"""A trial ends as a row whatever the engine does, and its engine never outlives it."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from canary.objective import value
from canary.racing import Bar
from canary.trial import Rehearsal
from domain.engine import EngineConfig
from domain.errors import BadInput, Conflict, EngineUnreachable, Permanent, Temporary
from domain.fleet import Replica, ReplicaState, Role, Slot
from domain.load import (
    Arrival,
    LoadPlan,
    LoadResult,
    RequestError,
    RequestRecord,
    RequestSpec,
    Session,
)
from domain.ports import unheard
from domain.slo import SLO
from domain.study import (
    EngineCounters,
    Failure,
    FailureKind,
    Objective,
    QualityScore,
    Trial,
    TrialPurpose,
    TrialState,
)
from tests.fakes.clock import FakeClock
from tests.fakes.launcher import Behaviour, FakeLauncher
from tests.fakes.loadgen import EngineBehaviour, FakeLoadGenerator

SLOT = Slot(name="canary-0", role=Role.CANARY, port=8201)
CONFIG = EngineConfig.of({"max_num_seqs": 128})
SLO_500 = SLO(ttft_ms=500.0)
TURN = RequestSpec(prompt=(1, 2, 3), osl=20)
PLAN = LoadPlan(
    level="4 streams",
    arrival=Arrival.CLOSED,
    concurrency=4,
    sessions=tuple(Session(name=f"s{i}", turns=(TURN,)) for i in range(400)),
    warm_up_s=2.0,
    duration_s=12.0,
    seed=1,
)
TRIAL = Trial(
    id="t1",
    study_id="s1",
    number=1,
    purpose=TrialPurpose.SEARCH,
    config=CONFIG,
    hypothesis="rulebook: more at once",
)


class UntilStopped:
    """A load client that runs until it is told to stop, as a real one does on a dead engine."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock

    async def run(
        self,
        plan: LoadPlan,
        url: str,
        model: str,
        stop: Callable[[], bool],
        heard: Callable[[RequestRecord], None] = unheard,
    ) -> LoadResult:
        while not stop():
            await self._clock.sleep(0.1)
        return await FakeLoadGenerator().run(plan, url, model, stop, heard)


class Lane:
    """A rehearsal on fakes; ``right`` is what the evaluation set finds."""

    def __init__(
        self,
        behaviour: Behaviour | None = None,
        load: FakeLoadGenerator | None = None,
        right: QualityScore | Exception | None = None,
    ) -> None:
        self.clock = FakeClock(1000.0)
        self.launcher = FakeLauncher(
            clock=self.clock, behaviour=lambda slot, config: behaviour or Behaviour()
        )
        self.load: FakeLoadGenerator | UntilStopped = load or FakeLoadGenerator()
        self.right = right
        self.in_charge = True
        self.counted: list[str] = []

    async def counters(self, url: str) -> EngineCounters | None:
        self.counted.append(url)
        return None

    async def quality(self, url: str) -> QualityScore | None:
        if isinstance(self.right, Exception):
            raise self.right
        return self.right

    def rehearsal(self) -> Rehearsal:
        return Rehearsal(
            launcher=self.launcher,
            load=self.load,
            slot=SLOT,
            model="m",
            clock=self.clock,
            read_counters=self.counters,
            read_text=self.text,
            ask_quality=self.quality,
            may_act=lambda: self.in_charge,
            start_timeout_s=60.0,
            poll_s=1.0,
        )

    async def run(
        self,
        with_quality: bool = False,
        bar: Bar | None = None,
        plans: tuple[LoadPlan, ...] = (PLAN,),
    ) -> Trial:
        return await self.rehearsal().run(TRIAL, lambda text: plans, SLO_500, with_quality, bar)

    async def text(self, url: str) -> tuple[int, ...] | None:
        assert url == SLOT.url
        return (7, 8, 9)

    async def empty(self) -> bool:
        return not await self.launcher.observe()


async def test_a_good_config_is_measured_and_its_engine_stopped() -> None:
    lane = Lane()
    trial = await lane.run()
    assert trial.state is TrialState.MEASURED
    assert trial.failure is None and trial.quality is None
    assert trial.measurement is not None
    assert trial.measurement.level == "4 streams"
    assert trial.measurement.goodput_rps > 0
    assert (trial.id, trial.config, trial.hypothesis) == (TRIAL.id, CONFIG, TRIAL.hypothesis)
    assert trial.ended_s is not None and trial.ended_s >= trial.started_s >= 1000.0
    assert lane.launcher.starts == [(SLOT.name, CONFIG)]
    assert lane.counted == [SLOT.url, SLOT.url]
    assert await lane.empty()


async def test_no_load_before_the_engine_is_warm() -> None:
    load = FakeLoadGenerator()
    lane = Lane(Behaviour(observes_until_warm=30), load)
    await lane.run()
    assert lane.clock.now() >= 1030.0
    assert load.runs == [(PLAN, SLOT.url, "m")]


async def test_a_trial_that_cannot_reach_the_bar_is_cut_short_and_keeps_what_it_measured() -> None:
    whole = await Lane().run()
    assert whole.measurement is not None and whole.cut_short == ""
    worth = value(whole.measurement, Objective.THROUGHPUT)
    low, high = (Bar(objective=Objective.THROUGHPUT, value=share * worth) for share in (0.9, 2.0))
    assert await Lane().run(bar=low) == whole
    lane = Lane()
    cut = await lane.run(bar=high)
    assert cut.state is TrialState.MEASURED and "it cannot win" in cut.cut_short
    assert cut.measurement is not None
    assert cut.measurement.seconds < whole.measurement.seconds / 2
    assert value(cut.measurement, Objective.THROUGHPUT) == pytest.approx(worth, rel=0.2)
    assert await lane.empty()


async def test_an_engine_left_by_a_killed_controller_is_stopped_first() -> None:
    lane = Lane()
    await lane.launcher.start(SLOT, EngineConfig())
    trial = await lane.run()
    assert trial.state is TrialState.MEASURED
    assert lane.launcher.starts == [(SLOT.name, EngineConfig()), (SLOT.name, CONFIG)]


async def test_an_engine_of_the_same_config_is_not_taken_over() -> None:
    """Its warm cache would flatter the trial (vllm#52884)."""
    lane = Lane()
    await lane.launcher.start(SLOT, CONFIG)
    await lane.run()
    assert len(lane.launcher.starts) == 2


@pytest.mark.parametrize(
    ("refusal", "kind"),
    [
        (BadInput("No executable vllm was found."), FailureKind.START),
        (Permanent("The flag is unknown."), FailureKind.START),
        (Temporary("The slot is still being stopped."), FailureKind.INTERRUPTED),
        (Conflict("Port 8201 of slot canary-0 is not free."), FailureKind.INTERRUPTED),
    ],
)
async def test_a_refused_start_is_a_row(refusal: Permanent, kind: FailureKind) -> None:
    trial = await Lane(Behaviour(refusal=refusal)).run()
    assert trial.state is TrialState.FAILED
    assert trial.failure is not None
    assert trial.failure.kind is kind
    assert str(refusal) in trial.failure.sentence


@pytest.mark.parametrize(
    "kind", [FailureKind.OUT_OF_MEMORY, FailureKind.UNSUPPORTED, FailureKind.MODEL_NOT_FOUND]
)
async def test_a_death_before_warm_keeps_the_launcher_s_finding(kind: FailureKind) -> None:
    found = Failure(kind=kind, sentence="What the launcher found.")
    load = FakeLoadGenerator()
    lane = Lane(Behaviour(observes_until_warm=9, dies_at=3, failure=found, log="the end"), load)
    trial = await lane.run()
    assert trial.state is TrialState.FAILED and trial.measurement is None
    assert trial.failure == replace(found, log_tail="the end")
    assert not load.runs
    assert await lane.empty()


async def test_an_engine_that_never_gets_warm_times_out() -> None:
    lane = Lane(Behaviour(observes_until_warm=10_000, log="Capturing CUDA graphs"))
    trial = await lane.run()
    assert trial.failure is not None
    assert trial.failure.kind is FailureKind.START_TIMEOUT
    assert trial.failure.sentence.startswith("The engine was not warm after 60 s")
    assert trial.failure.log_tail == "Capturing CUDA graphs"
    assert await lane.empty()


@pytest.mark.parametrize(
    "kind", [FailureKind.OUT_OF_MEMORY_UNDER_LOAD, FailureKind.KILLED, FailureKind.HUNG]
)
async def test_a_death_under_load_ends_the_load_early(kind: FailureKind) -> None:
    """A config that starts can still run out of memory under load (vllm#21410)."""
    found = Failure(kind=kind, sentence="What the launcher found.")
    lane = Lane(Behaviour(dies_at=5, failure=found, log="the end"))
    lane.load = UntilStopped(lane.clock)
    trial = await lane.run()
    assert trial.failure == replace(found, log_tail="the end")
    assert trial.measurement is None
    assert await lane.empty()


async def test_a_death_that_only_the_last_look_finds_is_no_measurement() -> None:
    trial = await Lane(Behaviour(dies_at=3)).run()
    assert trial.failure is not None
    assert trial.failure.kind is FailureKind.DIED


async def test_an_engine_that_somebody_stops_is_an_interruption() -> None:
    lane = Lane()

    class StoppedMeanwhile(FakeLoadGenerator):
        async def run(
            self,
            plan: LoadPlan,
            url: str,
            model: str,
            stop: Callable[[], bool],
            heard: Callable[[RequestRecord], None] = unheard,
        ) -> LoadResult:
            await lane.launcher.stop(SLOT, 0.0)
            return await super().run(plan, url, model, stop, heard)

    lane.load = StoppedMeanwhile()
    trial = await lane.run()
    assert trial.failure is not None
    assert trial.failure.kind is FailureKind.INTERRUPTED


async def test_requests_that_fail_are_no_measurement_and_keep_the_log() -> None:
    load = FakeLoadGenerator(default=EngineBehaviour(fail_every=2))
    trial = await Lane(Behaviour(log="a traceback"), load).run()
    assert trial.failure is not None
    assert trial.failure.kind is FailureKind.REQUEST_ERRORS
    assert trial.failure.log_tail == "a traceback"


async def test_a_client_that_cannot_run_is_not_the_configs_fault() -> None:
    trial = await Lane(load=FakeLoadGenerator(results=[Permanent("No file handles left.")])).run()
    assert trial.failure is not None
    assert trial.failure.kind is FailureKind.CLIENT_UNFIT


async def test_quality_is_asked_where_it_is_wanted() -> None:
    right = QualityScore(right=9, asked=10)
    assert (await Lane(right=right).run(with_quality=True)).quality == right
    assert (await Lane(right=right).run(with_quality=False)).quality is None


async def test_an_evaluation_without_answers_leaves_the_measurement_without_quality() -> None:
    trial = await Lane(right=EngineUnreachable("timed out")).run(with_quality=True)
    assert trial.state is TrialState.MEASURED
    assert trial.quality is None


async def test_a_death_in_the_evaluation_fails_the_trial() -> None:
    lane = Lane(Behaviour(dies_at=4), right=EngineUnreachable("refused"))
    trial = await lane.run(with_quality=True)
    assert trial.failure is not None
    assert trial.failure.kind is FailureKind.DIED


class Flaky(FakeLauncher):
    """Every second look fails, as over a network."""

    looks = 0

    async def observe(self) -> tuple[Replica, ...]:
        self.looks += 1
        if self.looks % 2:
            raise EngineUnreachable("The engine's host cannot be asked.")
        return await super().observe()


async def test_a_look_that_fails_is_no_death() -> None:
    lane = Lane()
    lane.launcher = Flaky(clock=lane.clock)
    assert (await lane.run()).state is TrialState.MEASURED


class SlowStop(FakeLauncher):
    """A stop that takes until it is let go."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock=clock)
        self.asked = asyncio.Event()
        self.let_go = asyncio.Event()

    async def stop(self, slot: Slot, drain_s: float) -> None:
        if any(r.state is ReplicaState.WARM for r in await self.observe()):
            self.asked.set()
            await self.let_go.wait()
        await super().stop(slot, drain_s)


class Endless(FakeLoadGenerator):
    """A load that says when it began and never ends."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = asyncio.Event()

    async def run(
        self,
        plan: LoadPlan,
        url: str,
        model: str,
        stop: Callable[[], bool],
        heard: Callable[[RequestRecord], None] = unheard,
    ) -> LoadResult:
        self.begun.set()
        await asyncio.Event().wait()
        raise AssertionError("unreachable")


async def test_cancelling_twice_still_stops_the_engine_before_it_is_over() -> None:
    lane = Lane()
    launcher, load = SlowStop(lane.clock), Endless()
    lane.launcher, lane.load = launcher, load
    running = asyncio.create_task(lane.run())
    await load.begun.wait()
    running.cancel()
    await launcher.asked.wait()
    running.cancel()
    await asyncio.sleep(0)
    assert not running.done()
    launcher.let_go.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await lane.empty()


async def test_a_controller_that_was_deposed_leaves_the_lane_to_its_successor() -> None:
    """The engine there may be the successor's by now, and may carry traffic in its rollout."""
    lane, load = Lane(), Endless()
    lane.load = load
    running = asyncio.create_task(lane.run())
    await load.begun.wait()
    lane.in_charge = False
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not await lane.empty()


class Stubborn(FakeLauncher):
    """Engines that will not be stopped once they are warm."""

    async def stop(self, slot: Slot, drain_s: float) -> None:
        if await self.observe():
            raise EngineUnreachable("The engine did not end.")


async def test_an_engine_that_will_not_stop_does_not_lose_the_measurement(
    caplog: pytest.LogCaptureFixture,
) -> None:
    lane = Lane()
    lane.launcher = Stubborn(clock=lane.clock)
    assert (await lane.run()).state is TrialState.MEASURED
    assert "was not stopped: The engine did not end." in caplog.text
    again = await lane.run()
    assert again.failure is not None
    assert again.failure.kind is FailureKind.INTERRUPTED


async def test_the_plan_is_made_of_the_text_that_the_engine_on_the_lane_tells() -> None:
    texts: list[tuple[int, ...] | None] = []

    def plans_of(text: tuple[int, ...] | None) -> tuple[LoadPlan, ...]:
        texts.append(text)
        return (PLAN,)

    trial = await Lane().rehearsal().run(TRIAL, plans_of, SLO_500, False)
    assert trial.state is TrialState.MEASURED
    assert texts == [(7, 8, 9)]


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (
            BadInput("The trace has no request."),
            FailureKind.CLIENT_UNFIT,
            "No load can be made: The trace has no request.",
        ),
        (
            Temporary("The tokenizer did not answer."),
            FailureKind.INTERRUPTED,
            "No load was made: The tokenizer did not answer.",
        ),
    ],
)
async def test_a_load_that_cannot_be_made_is_a_row_and_no_fault_of_the_config(
    error: Exception, kind: FailureKind, said: str
) -> None:
    def plans_of(text: tuple[int, ...] | None) -> tuple[LoadPlan, ...]:
        raise error

    lane = Lane()
    trial = await lane.rehearsal().run(TRIAL, plans_of, SLO_500, False)
    assert trial.state is TrialState.FAILED
    assert trial.failure is not None
    assert (trial.failure.kind, trial.failure.sentence) == (kind, said)
    assert not kind.blames_config
    assert await lane.empty()


def sent(load: FakeLoadGenerator) -> list[str]:
    """The loads that were sent, in order."""
    return [plan.level for plan, _, _ in load.runs]


HEAVIER = tuple(replace(PLAN, level=f"{n} streams", concurrency=n, seed=n) for n in (8, 16, 32))


async def test_heavier_loads_follow_on_the_same_engine_until_one_breaks_the_slo() -> None:
    load = FakeLoadGenerator(levels={"16 streams": EngineBehaviour(ttft_s=0.6)})
    lane = Lane(load=load)
    trial = await lane.run(plans=(PLAN, *HEAVIER))
    live = trial.measurement
    assert live is not None and live.heavier is not None
    assert [one.level for one in live.levels] == ["4 streams", "8 streams", "16 streams"]
    assert [one.slo_met for one in live.levels] == [True, True, False]
    assert sent(load) == ["4 streams", "8 streams", "16 streams"]
    assert lane.launcher.starts == [(SLOT.name, CONFIG)]
    assert live.heavier_end == ""
    assert value(live, Objective.COST) == value(live.heavier[0], Objective.GOODPUT)


async def test_where_the_live_load_breaks_the_slo_no_heavier_one_is_tried() -> None:
    load = FakeLoadGenerator(levels={"4 streams": EngineBehaviour(ttft_s=0.6)})
    live = (await Lane(load=load).run(plans=(PLAN, *HEAVIER))).measurement
    assert live is not None and live.heavier == ()
    assert sent(load) == ["4 streams"]


async def test_a_trial_of_one_load_knows_nothing_of_heavier_ones() -> None:
    live = (await Lane().run()).measurement
    assert live is not None and live.heavier is None


@pytest.mark.parametrize("error", [RequestError.HTTP_5XX, RequestError.TIMEOUT])
async def test_a_load_that_is_too_much_for_an_engine_ends_the_levels_and_not_the_trial(
    error: RequestError,
) -> None:
    load = FakeLoadGenerator(levels={"8 streams": EngineBehaviour(fail_every=2, error=error)})
    trial = await Lane(load=load).run(plans=(PLAN, *HEAVIER))
    assert trial.state is TrialState.MEASURED
    assert trial.measurement is not None and trial.measurement.heavier == ()
    assert trial.measurement.heavier_end.startswith("8 streams was too much. ")
    assert error.value in trial.measurement.heavier_end
    assert sent(load) == ["4 streams", "8 streams"]


async def test_an_engine_that_dies_under_a_heavier_load_fails_its_trial() -> None:
    load = FakeLoadGenerator()
    lane = Lane(Behaviour(dies_at=4), load)
    trial = await lane.run(plans=(PLAN, *HEAVIER))
    assert trial.failure is not None and trial.failure.kind is FailureKind.DIED
    assert trial.measurement is None
    assert sent(load) == ["4 streams", "8 streams"]
    assert await lane.empty()


class GoesBlind(FakeLauncher):
    """Sees an engine dead once, and cannot look again."""

    blind = False

    async def observe(self) -> tuple[Replica, ...]:
        if self.blind:
            raise Temporary("The folder of the engines cannot be read.")
        replicas = await super().observe()
        self.blind = any(replica.state is ReplicaState.DEAD for replica in replicas)
        return replicas


async def test_a_death_under_a_heavier_load_that_was_seen_once_is_enough() -> None:
    lane = Lane()
    lane.launcher = GoesBlind(clock=lane.clock, behaviour=lambda slot, config: Behaviour(dies_at=4))
    trial = await lane.run(plans=(PLAN, *HEAVIER))
    assert trial.failure is not None and trial.failure.kind is FailureKind.DIED
    assert trial.measurement is None


async def test_a_client_that_is_unfit_for_a_heavier_load_leaves_the_live_one_and_no_capacity() -> (
    None
):
    load = FakeLoadGenerator(levels={"16 streams": EngineBehaviour(client_fault="It was late.")})
    trial = await Lane(load=load).run(plans=(PLAN, *HEAVIER))
    assert trial.state is TrialState.MEASURED and trial.measurement is not None
    assert trial.measurement.heavier_end == "A heavier load tells nothing. It was late."
    assert value(trial.measurement, Objective.COST) is None
    assert value(trial.measurement, Objective.GOODPUT)


@pytest.mark.parametrize("ttft_s", [0.1, 0.6])
async def test_a_heavier_load_that_cannot_be_made_voids_no_trial(ttft_s: float) -> None:
    def plans_of(text: tuple[int, ...] | None) -> Iterator[LoadPlan]:
        yield PLAN
        raise BadInput("That is more than a plan can hold.")

    load = FakeLoadGenerator(levels={"4 streams": EngineBehaviour(ttft_s=ttft_s)})
    trial = await Lane(load=load).rehearsal().run(TRIAL, plans_of, SLO_500, False)
    assert trial.measurement is not None
    # Where the live load breaks the SLO already no heavier one would have been sent.
    assert trial.measurement.heavier == (None if ttft_s < 0.5 else ())


async def test_a_trial_that_lost_its_race_tries_no_heavier_load() -> None:
    load = FakeLoadGenerator()
    bar = Bar(objective=Objective.THROUGHPUT, value=1e9)
    trial = await Lane(load=load).run(bar=bar, plans=(PLAN, *HEAVIER))
    assert trial.cut_short and trial.measurement is not None
    assert trial.measurement.heavier is None
    assert sent(load) == ["4 streams"]
