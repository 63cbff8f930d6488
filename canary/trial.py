"""One trial on the canary lane: start, warm, measure, stop.

Whatever the engine does ends as a row: measured, or failed with the kind and one sentence. Nothing
is judged or chosen here. The engine never outlives its trial, also when the trial is cancelled,
unless another controller has taken over the lane; one that a killed controller left behind is
stopped first, so every trial begins with a fresh engine and an empty cache.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple, TypeAlias

from canary.measure import measure
from canary.racing import Bar, Race
from domain.engine import EngineConfig
from domain.errors import Conflict, SerinusError, Temporary
from domain.fleet import Replica, ReplicaState, Slot
from domain.load import LoadPlan, LoadResult
from domain.ports import Clock, Launcher, LoadGenerator
from domain.slo import SLO
from domain.study import (
    EngineCounters,
    Failure,
    FailureKind,
    Measurement,
    QualityScore,
    Trial,
    TrialState,
)

_LOG = logging.getLogger(__name__)

PlansOf: TypeAlias = Callable[[tuple[int, ...] | None], Iterable[LoadPlan]]
"""The plans to send, that of the live load first and heavier ones behind it; made of the token ids
of a natural text where the engine told them."""


class _Sent(NamedTuple):
    """What came back of a load, and the engine's counters around it."""

    result: LoadResult
    before: EngineCounters | None
    after: EngineCounters | None


class _Heavier(NamedTuple):
    """What came of the heavier loads: ``found`` and ``end`` as ``Measurement`` has them."""

    found: tuple[Measurement, ...] | None
    end: str = ""


class _Measured(NamedTuple):
    measurement: Measurement
    quality: QualityScore | None
    cut_short: str


class Rehearsal:
    """Runs trials in ``slot``, one at a time, and owns the engine in it while it does.

    ``read_counters``, ``read_text`` and ``ask_quality`` take the engine's URL and answer ``None``
    where they cannot tell; ``read_text`` gives the ids of a natural text in its vocabulary, and the
    trial fails where it raises.
    ``may_act`` is whether the lane is still this controller's; once it is not, the engine in it may
    be the successor's and is left alone. ``poll_s`` is the time between two looks at the engine.
    """

    def __init__(
        self,
        *,
        launcher: Launcher,
        load: LoadGenerator,
        slot: Slot,
        model: str,
        clock: Clock,
        read_counters: Callable[[str], Awaitable[EngineCounters | None]],
        read_text: Callable[[str], Awaitable[tuple[int, ...] | None]] | None = None,
        ask_quality: Callable[[str], Awaitable[QualityScore | None]] | None,
        may_act: Callable[[], bool],
        start_timeout_s: float,
        poll_s: float,
    ) -> None:
        self._launcher = launcher
        self._load = load
        self._slot = slot
        self._model = model
        self._clock = clock
        self._read_counters = read_counters
        self._read_text = read_text
        self._ask_quality = ask_quality
        self._may_act = may_act
        self._start_timeout_s = start_timeout_s
        self._poll_s = poll_s

    async def run(
        self,
        trial: Trial,
        plans_of: PlansOf,
        slo: SLO,
        with_quality: bool,
        bar: Bar | None = None,
    ) -> Trial:
        """The trial, MEASURED or FAILED; no failure of the engine raises.

        A measured trial has no quality where that was not asked for or could not be told. It is cut
        short once it cannot reach the ``bar``; without one it runs its time. The loads follow each
        other on one engine, up to the first at which it breaks the SLO.
        """
        started_s = self._clock.now()
        try:
            outcome = await self._rehearse(trial.config, plans_of, slo, with_quality, bar)
        finally:
            if self._may_act():
                await self._stop_for_sure()
        ended = replace(trial, started_s=started_s, ended_s=self._clock.now())
        if isinstance(outcome, Failure):
            return replace(ended, state=TrialState.FAILED, failure=outcome)
        return replace(
            ended,
            state=TrialState.MEASURED,
            measurement=outcome.measurement,
            quality=outcome.quality,
            cut_short=outcome.cut_short,
        )

    async def _rehearse(
        self,
        config: EngineConfig,
        plans_of: PlansOf,
        slo: SLO,
        with_quality: bool,
        bar: Bar | None,
    ) -> _Measured | Failure:
        if failure := await self._start(config):
            return failure
        plans = await self._plans(plans_of)
        if isinstance(plans, Failure):
            return plans
        live = await self._plan(plans)
        if isinstance(live, Failure):
            return live
        assert live is not None, "a trial has a load"
        race = Race(live, slo, bar)
        sent = await self._sent(live, race)
        if isinstance(sent, Failure):
            return sent
        measured = await self._measured(live, slo, sent)
        if isinstance(measured, Failure):
            return measured
        if not race.lost:
            heavier = await self._heavier(plans, slo, measured)
            if isinstance(heavier, Failure):
                return heavier
            measured = replace(measured, heavier=heavier.found, heavier_end=heavier.end)
        quality = None
        if with_quality and self._ask_quality is not None:
            try:
                quality = await self._ask_quality(self._slot.url)
            except SerinusError as error:
                _LOG.warning("The evaluation set was not answered: %s", error)
            if failure := await self._look(during="the evaluation"):
                return failure
        return _Measured(measured, quality, race.lost)

    async def _start(self, config: EngineConfig) -> Failure | None:
        """Bring a fresh engine up to warm; ``None`` where that succeeded."""
        begun_s = self._clock.now()
        try:
            await self._launcher.stop(self._slot, 0.0)
            await self._launcher.start(self._slot, config)
        except (Temporary, Conflict) as error:
            # The lane was not free, which says nothing of the config.
            return self._failure(FailureKind.INTERRUPTED, f"The engine was not started: {error}")
        except SerinusError as error:
            return self._failure(FailureKind.START, str(error))
        while True:
            replica = await self._observed()
            if replica is not None and replica.state is ReplicaState.WARM:
                return None
            if replica is not None and replica.state is ReplicaState.DEAD:
                return self._dead(replica, FailureKind.START, "before it was ready")
            waited_s = self._clock.now() - begun_s
            if waited_s >= self._start_timeout_s:
                note = f": {replica.detail}" if replica is not None and replica.detail else "."
                sentence = f"The engine was not warm after {waited_s:.0f} s{note}"
                return self._failure(FailureKind.START_TIMEOUT, sentence)
            await self._clock.sleep(self._poll_s)

    async def _heavier(
        self, plans: Iterator[LoadPlan], slo: SLO, live: Measurement
    ) -> _Heavier | Failure:
        """What the engine gives at the loads that are left, up to the first at which it does not
        keep the SLO, or that is too much for it. Nothing is found where only the live load is asked
        for, and where nobody can tell, since a load was not made or not sent well. Only an engine
        that dies fails."""
        found: list[Measurement] = []
        asked, last = False, live
        while plan := await self._plan(plans):
            asked = True
            if not last.slo_met:
                break
            if isinstance(plan, Failure):
                return self._untold(plan)
            sent = await self._sent(plan, Race(plan, slo, None))
            if isinstance(sent, Failure) and sent.kind is not FailureKind.CLIENT_UNFIT:
                return sent
            measured = sent if isinstance(sent, Failure) else await self._measured(plan, slo, sent)
            if isinstance(measured, Failure) and measured.kind.blames_config:
                return _Heavier(tuple(found), f"{plan.level} was too much. {measured.sentence}")
            if isinstance(measured, Failure):
                return self._untold(measured)
            found.append(measured)
            last = measured
        return _Heavier(tuple(found) if asked else None)

    def _untold(self, failure: Failure) -> _Heavier:
        """What an engine gives at heavier loads stays unknown, and what it gave at the live one
        counts all the same."""
        end = f"A heavier load tells nothing. {failure.sentence}"
        _LOG.warning("%s: %s", self._slot.name, end)
        return _Heavier(None, end)

    async def _sent(self, plan: LoadPlan, race: Race) -> _Sent | Failure:
        """What comes back of one load; a failure where the engine is gone, or no client ran."""
        before = await self._read_counters(self._slot.url)
        result = await self._under_load(plan, race)
        if isinstance(result, Failure):
            return result
        return _Sent(result, before, await self._read_counters(self._slot.url))

    async def _measured(self, plan: LoadPlan, slo: SLO, sent: _Sent) -> Measurement | Failure:
        """What the engine, which lives, gave under one load."""
        # Of a long run the prompts alone are some million tokens to go through.
        measured = await asyncio.to_thread(
            measure, sent.result, slo, sent.before, sent.after, plan=plan
        )
        if isinstance(measured, Failure):
            return replace(measured, log_tail=self._launcher.log_tail(self._slot))
        return measured

    async def _plans(self, plans_of: PlansOf) -> Iterator[LoadPlan] | Failure:
        """The loads, made of what the engine tells, each once it is asked for."""
        try:
            text = await self._read_text(self._slot.url) if self._read_text else None
        except SerinusError as error:
            return self._no_load(error)

        def plans() -> Iterator[LoadPlan]:
            yield from plans_of(text)

        return plans()

    async def _plan(self, plans: Iterator[LoadPlan]) -> LoadPlan | Failure | None:
        """The next load, ``None`` after the last."""
        try:
            return await asyncio.to_thread(next, plans, None)
        except SerinusError as error:
            return self._no_load(error)

    def _no_load(self, error: SerinusError) -> Failure:
        """That no load was made, which says nothing of the config."""
        if isinstance(error, Temporary):
            return self._failure(FailureKind.INTERRUPTED, f"No load was made: {error}")
        return self._failure(FailureKind.CLIENT_UNFIT, f"No load can be made: {error}")

    async def _under_load(self, plan: LoadPlan, race: Race) -> LoadResult | Failure:
        """Send the plan, and end it early once the engine is gone or the race is lost."""
        deaths: list[Failure] = []

        async def watch() -> None:
            while not deaths:
                await self._clock.sleep(self._poll_s)
                if failure := await self._look(during="the load"):
                    deaths.append(failure)

        watching = asyncio.create_task(watch(), name=f"watch {self._slot.name}")
        try:
            result = await self._load.run(
                plan,
                self._slot.url,
                self._model,
                stop=lambda: bool(deaths) or race.is_lost(),
                heard=race.heard,
            )
        except SerinusError as error:
            return self._failure(FailureKind.CLIENT_UNFIT, f"The load client did not run: {error}")
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
        return deaths[0] if deaths else await self._look(during="the load") or result

    async def _look(self, during: str) -> Failure | None:
        """Why the engine no longer serves; ``None`` where it does, or where nobody can tell."""
        try:
            replica = await self._observed_once()
        except Temporary:
            return None
        if replica is None or replica.state is ReplicaState.STOPPING:
            sentence = f"The engine was stopped by somebody else during {during}."
            return self._failure(FailureKind.INTERRUPTED, sentence)
        if replica.state is ReplicaState.DEAD:
            return self._dead(replica, FailureKind.DIED, f"during {during}")
        return None

    async def _observed(self) -> Replica | None:
        try:
            return await self._observed_once()
        except Temporary:
            return None

    async def _observed_once(self) -> Replica | None:
        replicas = await self._launcher.observe()
        return next((replica for replica in replicas if replica.slot == self._slot.name), None)

    def _dead(self, replica: Replica, by_stage: FailureKind, when: str) -> Failure:
        """The launcher's finding; without one, that it died."""
        if found := replica.failure:
            return self._failure(found.kind, found.sentence)
        return self._failure(by_stage, f"The engine died {when}.")

    def _failure(self, kind: FailureKind, sentence: str) -> Failure:
        return Failure(kind=kind, sentence=sentence, log_tail=self._launcher.log_tail(self._slot))

    async def _stop_for_sure(self) -> None:
        """Stop the engine, also while this task is being cancelled; once, and to its end."""
        stopping = asyncio.create_task(
            self._launcher.stop(self._slot, 0.0), name=f"stop {self._slot.name}"
        )
        cancelled: asyncio.CancelledError | None = None
        while not stopping.done():
            try:
                await asyncio.wait({stopping})
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            raise cancelled
        try:
            stopping.result()
        except SerinusError as error:
            # The next trial stops it before it starts its own.
            _LOG.warning("The engine in %s was not stopped: %s", self._slot.name, error)
