"""From a live shape to a study, and from its conclusion to a rollout: what the loop does at rest.

Decisions are those of ``triggers``, ``guard`` and ``approvals``; this room reads what they need,
and stores what follows. It moves no traffic.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from agent import active_config, approvals, drift_memory, pausing, streams, triggers
from agent.active_config import TUNED_AT, TUNED_SHAPE
from agent.graph import Conclusion, closed
from agent.leadership import Leadership
from agent.orders import TUNE_ASKED
from agent.schedule import Schedule
from agent.store.codec import encode
from agent.store.unit_of_work import UnitOfWork
from agent.study_job import StudyJob
from agent.triggers import Sensitivity, Wanted
from canary import budget
from canary.budget import Terms
from canary.guard import (
    DAY_S,
    Limits,
    left_today_s,
    refuse_minutes,
    refuse_rollout,
    refuse_study,
)
from canary.rollout import Observed
from domain.drift import DriftState
from domain.engine import EngineConfig
from domain.errors import Temporary
from domain.events import Event, EventKind
from domain.ports import Clock, Notifier
from domain.rollout import Phase, Rollout, RolloutPlan
from domain.slo import SLO
from domain.study import (
    LaneBudget,
    Objective,
    Recommendation,
    Study,
    StudyState,
    Trial,
    Trigger,
)
from domain.traffic import TrafficShape
from tools.profiler import Missing

SCHEDULE_SEEN = "schedule_seen_s"


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningPolicy:
    """What a study is for and how far it may go. ``engine`` is what configs run on, in words;
    ``terms`` are what a study's minutes are reckoned by; ``approval_ttl_s`` bounds an open
    question."""

    engine: str
    slo: SLO
    objective: Objective
    limits: Limits
    sensitivity: Sensitivity
    window_s: float
    trial_budget: int
    load_levels: tuple[float, ...]
    terms: Terms
    rollout: RolloutPlan
    approval_ttl_s: float


class Tuning:
    """One caller at a time: the loop."""

    def __init__(
        self,
        *,
        leadership: Leadership,
        job: StudyJob,
        read_shape: Callable[[float, float], Awaitable[TrafficShape | Missing]],
        policy: TuningPolicy,
        baseline: EngineConfig,
        schedule: Schedule | None,
        new_id: Callable[[], str],
        notifier: Notifier,
        clock: Clock,
    ) -> None:
        self._leadership = leadership
        self._job = job
        self._read_shape = read_shape
        self._policy = policy
        self._baseline = baseline
        self._schedule = schedule
        self._new_id = new_id
        self._notifier = notifier
        self._clock = clock
        self._goes_on_at_s = 0.0
        self.shape: TrafficShape | None = None

    @property
    def busy(self) -> bool:
        """Whether a study occupies the canary lane."""
        return self._job.study is not None

    def active_config(self) -> EngineConfig:
        """The config that production should run: the last one promoted, else the baseline."""
        with self._leadership.view() as uow:
            return self._active(uow)

    def _active(self, uow: UnitOfWork) -> EngineConfig:
        return active_config.stored(uow) or self._baseline

    async def close(self) -> None:
        """Leave the study to whoever holds the lease next, at once: that may be now."""
        await self._job.cancel()

    async def make_way(self, rollout: Rollout) -> bool:
        """Give a rollout that moves the canary lane; ``False`` while a study still leaves it.

        Such a study has ended: its baseline is what production leaves.
        """
        if not self._job.leave():
            return False
        with self._leadership.view() as uow:
            study = uow.studies.running()
        if study is not None:
            why = f"Rollout {rollout.id} takes the lane; production leaves this study's baseline."
            ended = replace(study, state=StudyState.FAILED, conclusion=why)
            await self._conclude(Conclusion(ended, None))
        return True

    async def drain(self) -> None:
        """Leave the study to a successor where it goes on best."""
        await self._job.drain()

    async def cycle(self, observed: Observed, waiting: Rollout | None) -> str:
        """Conclude, continue or begin a study; one sentence. ``waiting`` waits for approval."""
        now = self._clock.now()
        try:
            conclusion = self._job.take()
        except Temporary as error:
            self._goes_on_at_s = now + error.retry_after_s
            raise
        if conclusion is not None:
            return await self._conclude(conclusion)
        if study := self._job.study:
            return self._progress(study)
        with self._leadership.view() as uow:
            unfinished = uow.studies.running()
        if unfinished is not None and now < self._goes_on_at_s:
            return f"Study {unfinished.id} goes on in {self._goes_on_at_s - now:.0f} s."
        if unfinished is not None:
            self._job.start(unfinished)
            return f"Going on with study {unfinished.id}."
        if waiting is not None:
            return f"Config {waiting.candidate.digest} waits for approval."
        return await self._watch()

    def _progress(self, study: Study) -> str:
        with self._leadership.view() as uow:
            trials = uow.trials.of(study.id)
        return f"Rehearsing on the canary lane: {len(trials)} trials so far ({study.reason})"

    async def _watch(self) -> str:
        now = self._clock.now()
        shape = await self._read_shape(now, self._policy.window_s)
        if isinstance(shape, Missing):
            self.shape = None
            return f"Holding: {shape.reason}"
        self.shape = shape
        with self._leadership.work() as uow:
            paused = pausing.paused(uow)
            asked_by = uow.state.get(TUNE_ASKED)
            tuned_for = _tuned_for(uow, shape.model)
            streams.note(uow, shape)
            watch = self._watch_drift(uow, shape, tuned_for)
            wanted = self._wanted(uow, shape, tuned_for, watch, asked_by, paused, now)
            started = uow.studies.begun(100)
            if wanted is None or paused:
                self._learn(uow, shape, now)
                uow.commit()
                return _idle(shape, paused)
            asked = wanted.trigger in (Trigger.MANUAL, Trigger.SCHEDULE)
            used_s = 0.0
            refusal = refuse_study(self._policy.limits, started, asked, now)
            if refusal is None:
                used_s = self._used_s(uow, now)
                least_s = budget.least_s(self._policy.terms)
                refusal = refuse_minutes(self._policy.limits, used_s, least_s)
            uow.state.set(TUNE_ASKED, None)
            if refusal is None:
                lane = self._granted(used_s)
                study = self._study(shape, wanted, now, uow, lane)
                uow.studies.add(study)
                event = self._event(
                    EventKind.STUDY_STARTED,
                    f"Study begins: {study.reason}{_shared(study)} At most {study.trial_budget} "
                    f"search trials, {lane.most} of the canary lane.",
                    study.id,
                )
            else:
                sentence = f"A study is wanted ({wanted.reason}) and refused: {refusal}"
                event = self._event(EventKind.HELD, sentence, "")
            # What the traffic wants is refused anew each cycle; what was asked for is told once.
            told = refusal is None or asked
            if told:
                uow.events.add(event)
            uow.commit()
        if refusal is None:
            self._job.start(study)
        if told:
            await self._notifier.notify(event)
        return event.sentence

    def _watch_drift(
        self, uow: UnitOfWork, shape: TrafficShape, tuned_for: TrafficShape | None
    ) -> DriftState | None:
        """Let the shape count for or against drift, in a row that the next controller reads."""
        known = drift_memory.recalled(uow)
        if not triggers.evidence(known, shape, tuned_for, self._policy.sensitivity):
            return known
        before = drift_memory.whole(uow, known)
        after = triggers.watched(before, shape, tuned_for, self._policy.sensitivity)
        if after is not None and after is not before:
            drift_memory.keep(uow, after)
        return after

    def _wanted(
        self,
        uow: UnitOfWork,
        shape: TrafficShape,
        tuned_for: TrafficShape | None,
        watch: DriftState | None,
        asked_by: object,
        paused: bool,
        now: float,
    ) -> Wanted | None:
        if asked_by is not None:
            return Wanted(Trigger.MANUAL, f"{asked_by} asked for it.")
        if self._schedule is not None:
            seen = uow.state.get(SCHEDULE_SEEN)
            since = float(seen) if isinstance(seen, int | float) else now
            due = self._schedule.due(since, now)
            if due is None or not paused:
                uow.state.set(SCHEDULE_SEEN, now)
            if due is not None:
                return Wanted(Trigger.SCHEDULE, f"The schedule asked for it at {due}.")
        if tuned_for is None and uow.state.get(TUNED_AT) is not None:
            return None
        return triggers.wanted(shape, tuned_for, self._policy.slo, self._policy.sensitivity, watch)

    def _learn(self, uow: UnitOfWork, shape: TrafficShape, now: float) -> None:
        """After a promotion, remember the first whole window as the shape it is tuned for."""
        since = uow.state.get(TUNED_AT)
        if uow.state.get(TUNED_SHAPE) is not None or not isinstance(since, int | float):
            return
        enough = shape.requests >= self._policy.sensitivity.min_requests
        if now - since >= self._policy.window_s and enough:
            uow.state.set(TUNED_SHAPE, encode(shape))

    def _used_s(self, uow: UnitOfWork, now: float) -> float:
        """Seconds that the canary lane was held in the last 24 hours; not asked where no bound."""
        if self._policy.limits.lane_s_a_day is None:
            return 0.0
        longest_s = self._policy.terms.longest_s
        return budget.spent_since(uow.trials.runs_since(now - DAY_S), now - DAY_S, longest_s)

    def _granted(self, used_s: float) -> LaneBudget:
        limits = self._policy.limits
        bounds_s = (limits.lane_s_a_study, left_today_s(limits, used_s))
        return budget.granted(self._policy.terms, bounds_s)

    def _study(
        self, shape: TrafficShape, wanted: Wanted, now: float, uow: UnitOfWork, lane: LaneBudget
    ) -> Study:
        study_id = self._new_id()
        return Study(
            id=study_id,
            created_s=now,
            trigger=wanted.trigger,
            reason=wanted.reason,
            shape=shape,
            slo=self._policy.slo,
            objective=self._policy.objective,
            baseline=self._active(uow),
            trial_budget=self._policy.trial_budget,
            seed=int(study_id[:8], 16),
            lane=lane,
            engine=self._policy.engine,
            load_levels=self._policy.load_levels,
            replicas=self._policy.rollout.replicas,
        )

    async def _conclude(self, conclusion: Conclusion) -> str:
        study, recommendation = conclusion
        now = self._clock.now()
        with self._leadership.work() as uow:
            trials = uow.trials.of(study.id)
            for trial in closed(trials, "The study was ended during the trial.", now):
                uow.trials.save(trial)
            study = _with_cost(study, trials, now)
            ended = f"Study ended: {study.conclusion}"
            events = [self._event(EventKind.STUDY_ENDED, ended, study.id)]
            uow.studies.save(study)
            if study.state is not StudyState.FAILED:
                uow.state.set(TUNED_SHAPE, encode(study.shape))
                uow.state.set(TUNED_AT, now)
            if recommendation is not None:
                uow.verdicts.add(study.id, now, recommendation.verdict)
                events.append(self._roll_out(uow, study, recommendation, now))
            for event in events:
                uow.events.add(event)
            uow.commit()
        for event in events:
            await self._notifier.notify(event)
        return " ".join(event.sentence for event in events)

    def _roll_out(
        self, uow: UnitOfWork, study: Study, recommendation: Recommendation, now: float
    ) -> Event:
        digest = recommendation.config.digest
        earlier = uow.rollouts.latest(100)
        if refusal := refuse_rollout(self._policy.limits, earlier, digest, now):
            return self._event(
                EventKind.HELD, f"Config {digest} is recommended only: {refusal}", study.id
            )
        plan = self._policy.rollout
        what_it_takes = _in_place(plan) if plan.in_place else ""
        rollout = Rollout(
            id=self._new_id(),
            study_id=study.id,
            version=1,
            created_s=now,
            baseline=study.baseline,
            candidate=recommendation.config,
            plan=plan,
            phase=approvals.first_phase(self._policy.limits.autonomy, plan),
            phase_since_s=now,
            reason=recommendation.verdict.reason,
            rationale=f"{recommendation.rationale}{what_it_takes}",
        )
        if pausing.paused(uow):
            rollout = pausing.standing(uow, rollout, "the controller is paused")
        uow.rollouts.add(rollout)
        if rollout.phase is Phase.STARTING:
            return self._event(
                EventKind.ROLLOUT_STARTED, f"Rollout of config {digest} begins.", rollout.id
            )
        request = approvals.ask(rollout, self._new_id(), self._policy.approval_ttl_s, now)
        uow.approvals.add(request)
        return self._event(
            EventKind.APPROVAL_ASKED,
            f"Config {digest} waits for approval.{what_it_takes}",
            rollout.id,
        )

    def _event(self, kind: EventKind, sentence: str, subject: str) -> Event:
        return Event(at_s=self._clock.now(), kind=kind, sentence=sentence, subject=subject)


def _in_place(plan: RolloutPlan) -> str:
    """What a rollout without a lane for traffic does to users, to be told before it is approved."""
    if plan.replicas == 1:
        missing = "production's one engine restarts: until it is warm, no request is answered"
    else:
        others = "while the others carry its part too"
        missing = f"each of {plan.replicas} replicas restarts in turn, {others}"
    return f" In place {missing}. Nothing is judged under live traffic."


def _shared(study: Study) -> str:
    """Of which part of the traffic the study is, where it is not all."""
    if study.replicas == 1:
        return ""
    return f" It rehearses what one of {study.replicas} replicas gets."


def _with_cost(study: Study, trials: Sequence[Trial], now: float) -> Study:
    """The study whose conclusion says what it cost."""
    cost = budget.spent(trials, study.lane.run_s if study.lane is not None else None, now)
    return replace(study, conclusion=f"{study.conclusion} It cost {cost} of the canary lane.")


def _tuned_for(uow: UnitOfWork, model: str) -> TrafficShape | None:
    """The shape that production was tuned for; one that cannot be read is learned anew.

    Nothing was tuned for this model where it is the shape of another one.
    """
    shape = drift_memory.readable(uow, TUNED_SHAPE, TrafficShape)
    if shape is None and uow.state.get(TUNED_SHAPE) is not None:
        uow.state.set(TUNED_SHAPE, None)
    if shape is not None and shape.model != model:
        uow.state.set(TUNED_SHAPE, None)
        uow.state.set(TUNED_AT, None)
        return None
    return shape


def _idle(shape: TrafficShape, paused: bool) -> str:
    ttft_ms = shape.latencies.ttft_p95_ms
    seen = (
        f"{shape.rate_rps:.1f} requests/s, {shape.concurrency:.0f} in the engine, "
        f"TTFT p95 {'unknown' if ttft_ms is None else f'{ttft_ms:.0f} ms'}."
    )
    return f"Paused. {seen}" if paused else f"No study is wanted: {seen}"
