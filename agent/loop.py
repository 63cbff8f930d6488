"""One control cycle: re-reads the world, does at most one thing that changes it, says one sentence.

All decisions are pure functions of other rooms; all effects go through the executor. Long work
(a study, stopping an engine) is a job that the cycle finds busy or done. A cycle that is killed at
any line is simply run again by the next controller.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace

from agent import active_config, healing
from agent.executor import Executor, described
from agent.leadership import Leadership
from agent.orders import Orders
from agent.store import DONE, UnitOfWork
from agent.tuning import Tuning
from canary.rollout import Observed, advance
from domain.engine import EngineConfig
from domain.errors import LeaseLost, SerinusError
from domain.events import Event, EventKind
from domain.fleet import Split
from domain.ports import Clock, Notifier
from domain.rollout import (
    AdmitSlot,
    DrainSlot,
    Hold,
    Intent,
    Phase,
    Rollout,
    StartEngine,
)
from domain.verdict import Outcome, Verdict

log = logging.getLogger(__name__)

HEALING = "healing"
"""The subject in the ledger of what is done outside a rollout's own care."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CycleReport:
    """What the last cycle saw and said; ``observed`` is ``None`` before the first look."""

    at_s: float
    sentence: str
    observed: Observed | None


class Controller:
    """One caller at a time. ``judge`` gives the live verdict on the step under way."""

    def __init__(
        self,
        *,
        observe: Callable[[], Awaitable[Observed]],
        executor: Executor,
        leadership: Leadership,
        orders: Orders,
        tuning: Tuning,
        judge: Callable[[Rollout, Split, float], Awaitable[Verdict | None]],
        revive_gateway: Callable[[], Awaitable[None]],
        notifier: Notifier,
        clock: Clock,
    ) -> None:
        self._observe = observe
        self._executor = executor
        self._leadership = leadership
        self._orders = orders
        self._tuning = tuning
        self._judge = judge
        self._revive_gateway = revive_gateway
        self._notifier = notifier
        self._clock = clock
        self._last_verdict: tuple[str, int, str] | None = None
        self._found_by_hand = ""
        self.report = CycleReport(at_s=clock.now(), sentence="Starting.", observed=None)

    async def run(self, stop: asyncio.Event, cycle_s: float) -> None:
        """Cycle until ``stop``; leave engines and gateway as they are, for the next controller."""
        try:
            while not stop.is_set():
                await self.cycle()
                try:
                    await asyncio.wait_for(stop.wait(), cycle_s)
                except TimeoutError:
                    continue
        finally:
            await self._tuning.drain()
            await self._executor.close()
            with suppress(SerinusError):
                self._leadership.release()

    async def cycle(self) -> str:
        """One cycle; its sentence. No error ends the loop: production needs its care above all."""
        observed = None
        try:
            if self._leadership.renew(self._clock.now()):
                observed = await self._observe()
                sentence = await self._step(observed)
            else:
                await self._tuning.close()
                sentence = "Another controller holds the lease; watching."
        except LeaseLost as error:
            await self._tuning.close()
            sentence = str(error)
        except SerinusError as error:
            sentence = f"Holding: {error}"
        except Exception as error:
            sentence = f"Holding: a fault of Serinus itself: {error!r}."
            if sentence != self.report.sentence:
                log.exception(sentence)
        if sentence != self.report.sentence:
            log.info(sentence)
        self.report = CycleReport(
            at_s=self._clock.now(),
            sentence=sentence,
            observed=observed or self.report.observed,
        )
        return sentence

    async def _step(self, observed: Observed) -> str:
        now = self._clock.now()
        self._executor.settle()
        for event in self._orders.take(now):
            await self._notifier.notify(event)
        if observed.split is None:
            await self._revive_gateway()
            return "The gateway could not be read; it was asked to start again."
        with self._leadership.view() as uow:
            rollout = uow.rollouts.active()
            drained = _drained_by_hand(uow, observed)
        moving = rollout is not None and rollout.phase is not Phase.WAITING_APPROVAL
        home = rollout.baseline if rollout and moving else self._tuning.active_config()
        starts = self._starts(observed, home, now)
        move = healing.remedy(observed, home, rollout, starts, drained)
        if move is not None and (rollout is None or not isinstance(move, Hold)):
            await self._act(move, HEALING)
            return f"Production needs care. {described(move)}"
        if rollout is not None and moving:
            if not await self._tuning.make_way(rollout):
                return f"Rollout {rollout.candidate.digest} waits for the study to leave the lane."
            return await self._drive(rollout, observed)
        if move := healing.orphan(observed, self._tuning.busy, rollout):
            await self._act(move, HEALING)
            return f"The lane is not in use. {described(move)}"
        found = healing.by_hand(observed, home, drained)
        if found != self._found_by_hand:
            self._found_by_hand = found
            if found:
                await self._tell(Event(at_s=now, kind=EventKind.HELD, sentence=found))
        return f"Holding: {found}" if found else await self._tuning.cycle(observed, rollout)

    def _starts(self, observed: Observed, home: EngineConfig, now: float) -> dict[str, int]:
        """How often each production slot was healed with this config of late. What a rollout
        started died of nothing, and a config says nothing of another."""
        since_s = now - healing.CRASH_WINDOW_S
        with self._leadership.view() as uow:
            return {
                slot.name: uow.actions.done(
                    described(StartEngine(slot=slot.name, config=home)), HEALING, since_s, now
                )
                for slot in observed.production
            }

    async def _drive(self, rollout: Rollout, observed: Observed) -> str:
        now = self._clock.now()
        split = observed.split
        verdict = None if split is None else await self._judged(rollout, split, now)
        advanced, intent = advance(rollout, observed, verdict, now)
        news = _news(rollout, advanced, intent, now)
        stored = self._store(rollout, advanced, verdict, news, now)
        if news is not None:
            await self._notifier.notify(news)
        try:
            await self._act(intent, rollout.id)
        except LeaseLost:
            raise
        except SerinusError as error:
            if stored.phase is Phase.STARTING and isinstance(intent, StartEngine):
                self._keep_reason(stored, str(error))
            raise
        return f"Rollout {stored.candidate.digest} {stored.phase.value}: {described(intent)}"

    async def _judged(self, rollout: Rollout, split: Split, now: float) -> Verdict | None:
        """The verdict on the step; one that cannot be given decides nothing, and keeps nobody from
        seeing that an engine is gone."""
        try:
            return await self._judge(rollout, split, now)
        except LeaseLost:
            raise
        except SerinusError as error:
            reason = f"The step cannot be judged: {error}"
            return Verdict(outcome=Outcome.INCONCLUSIVE, reason=reason)

    def _store(
        self,
        before: Rollout,
        after: Rollout,
        verdict: Verdict | None,
        event: Event | None,
        now: float,
    ) -> Rollout:
        """Write the new state with its event, and the verdict where it says something new, before
        acting."""
        said = None if verdict is None else (before.id, before.step, verdict.outcome.value)
        news = verdict is not None and said != self._last_verdict
        if after == before and not news:
            return before
        with self._leadership.work() as uow:
            if verdict is not None and (news or after != before):
                uow.verdicts.add(before.id, now, verdict)
            stored = uow.rollouts.save(after) if after != before else before
            if stored.phase is Phase.PROMOTED:
                active_config.changed(uow, stored.candidate, now)
            elif stored.phase is Phase.ROLLED_BACK and stored.promoted_s is not None:
                # As of the order, but only from here on does all of production run it.
                active_config.changed(uow, stored.baseline, now)
            if event is not None:
                uow.events.add(event)
            uow.commit()
        self._last_verdict = said
        return stored

    def _keep_reason(self, rollout: Rollout, why: str) -> None:
        """Note why the candidate could not be started, where it is news."""
        if rollout.reason == why:
            return
        with self._leadership.work() as uow:
            uow.rollouts.save(replace(rollout, reason=why))
            uow.commit()

    async def _act(self, intent: Intent, subject: str) -> None:
        event = await self._executor.do(intent, subject)
        if event is not None:
            await self._tell(event)

    async def _tell(self, event: Event) -> None:
        with self._leadership.work() as uow:
            uow.events.add(event)
            uow.commit()
        await self._notifier.notify(event)


def _news(before: Rollout, after: Rollout, intent: Intent, now: float) -> Event | None:
    """What people are to be told of a change of the rollout."""
    digest = after.candidate.digest
    if after.phase is not before.phase:
        kinds = {Phase.PROMOTED: EventKind.PROMOTED, Phase.ROLLED_BACK: EventKind.ROLLED_BACK}
        kind = kinds.get(after.phase, EventKind.ROLLOUT_ADVANCED)
        sentence = f"Rollout {digest} is {after.phase.value}: {after.reason}"
    elif need := _needs_a_person(before, after):
        kind, sentence = EventKind.HELD, f"Rollout {digest} {need} {described(intent)}"
    else:
        return None
    return Event(at_s=now, kind=kind, sentence=sentence, subject=after.id)


def _needs_a_person(before: Rollout, after: Rollout) -> str:
    """What has just come over a rollout that it does not get out of by itself; empty otherwise."""
    if after.paused and not before.paused:
        order = "serinus rollout"
        return (
            f"was changed by hand and waits for `{order} resume {after.id}` or "
            f"`{order} abort {after.id}`."
        )
    if after.stalled and not before.stalled:
        return "has not come any further for longer than stall_s."
    return ""


def _drained_by_hand(uow: UnitOfWork, observed: Observed) -> tuple[str, ...]:
    """Production slots that Serinus admitted, that served, and that somebody else drained.

    A gateway that forgot what was admitted has forgotten its counts too.
    """
    found = []
    for slot in observed.production:
        replica = observed.replicas.get(slot.name)
        traffic = observed.split.slot(slot.name) if observed.split else None
        if replica is None or traffic is None or traffic.admitted or not traffic.requests:
            continue
        admit, drain = described(AdmitSlot(slot=slot.name)), described(DrainSlot(slot=slot.name))
        last = uow.actions.last((admit, drain))
        if last is None or last.intent == drain or last.outcome != DONE:
            continue
        if last.began_s >= replica.started_s:
            found.append(slot.name)
    return tuple(found)
