"""Carries out one intent: records it, acts through the ports, records what came of it.

It decides nothing. Stopping an engine waits for its streams, so it runs as a named job that later
cycles find busy or done; everything else is done when ``do`` returns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import NamedTuple, assert_never

from agent import streams
from agent.leadership import Leadership
from agent.store import DONE
from domain.errors import Conflict, LeaseLost, Permanent, SerinusError, Temporary
from domain.events import Event, EventKind
from domain.fleet import Slot, forgotten
from domain.ports import Clock, Gateway, Launcher
from domain.rollout import AdmitSlot, DrainSlot, Hold, Intent, SetWeight, StartEngine, StopEngine

LEFT_OPEN = "left open: its controller ended, and the next one looked at the world anew"
RETRY_S = 2.0
MOST_RETRY_S = 30.0


class _Refusal(NamedTuple):
    """A start that was refused ``times`` times in a row, last at ``at_s``."""

    error: Permanent
    times: int
    at_s: float

    def waits(self, now: float) -> bool:
        """Whether it is too soon to ask again; a clock that was set back holds nobody up."""
        wait_s = min(MOST_RETRY_S, RETRY_S * 2.0 ** (self.times - 1))
        return 0 <= now - self.at_s < wait_s


def described(intent: Intent) -> str:
    """An intent in one sentence, as it stands in the ledger and in the log."""
    match intent:
        case Hold(reason=reason):
            return reason
        case StartEngine(slot=slot, config=config):
            return f"Start an engine in {slot} with config {config.digest}."
        case StopEngine(slot=slot, drain=drain):
            return f"{'Drain and stop' if drain else 'End'} the engine in {slot}."
        case AdmitSlot(slot=slot):
            return f"Let {slot} take new requests."
        case DrainSlot(slot=slot):
            return f"Send {slot} no new requests."
        case SetWeight(weight=weight):
            return f"Set the candidate's weight to {weight} %."
        case _:
            assert_never(intent)


class Executor:
    """One caller at a time; owns the stop jobs it has begun and ends them with ``close``.

    ``drain_s`` is how long streams may take at least, see ``agent.streams``. A start that was
    refused is asked for again ever more seldom, at last once in ``MOST_RETRY_S``; in between it is
    refused as before, without an effect or a record.
    """

    def __init__(
        self,
        *,
        launcher: Launcher,
        gateway: Gateway,
        slots: Mapping[str, Slot],
        leadership: Leadership,
        clock: Clock,
        drain_s: float,
    ) -> None:
        self._launcher = launcher
        self._gateway = gateway
        self._slots = slots
        self._leadership = leadership
        self._clock = clock
        self._drain_s = drain_s
        self._stops: dict[str, asyncio.Task[None]] = {}
        self._stopping: set[int] = set()
        self._unrecorded: dict[int, str] = {}
        self._refused: dict[StartEngine, _Refusal] = {}
        self._settled: int | None = None

    def settle(self) -> None:
        """Close what is open in the ledger and under way nowhere: what earlier controllers left,
        once in a term, and outcomes that the store did not take."""
        term = self._leadership.term
        if term == self._settled and not self._unrecorded:
            return
        with self._leadership.work() as uow:
            for action in uow.actions.unfinished():
                if action.id not in self._stopping:
                    outcome = self._unrecorded.get(action.id, LEFT_OPEN)
                    uow.actions.finish(action.id, outcome, self._clock.now())
            uow.commit()
        self._unrecorded.clear()
        self._settled = term

    async def do(self, intent: Intent, subject: str) -> Event | None:
        """Carry the intent out; the event to tell people of, if it is worth one.

        Errors of the ports are recorded as the outcome and raised again.
        """
        if isinstance(intent, Hold):
            return None
        if isinstance(intent, StopEngine) and not self._stop_ended(intent.slot):
            return None
        if isinstance(intent, StartEngine):
            self._refuse_again(intent)
        action = self._begin(intent, subject)
        if isinstance(intent, StopEngine):
            self._stopping.add(action)
            job = asyncio.create_task(self._stop(intent, action), name=f"stop {intent.slot}")
            self._stops[intent.slot] = job
        else:
            try:
                await self._act(intent)
            except SerinusError as error:
                self._finish(action, f"failed: {error}")
                if isinstance(intent, StartEngine) and isinstance(error, Permanent):
                    self._remember(intent, error)
                raise
            self._finish(action, DONE)
            if isinstance(intent, StartEngine):
                self._refused.pop(intent, None)
        return self._event(intent, subject)

    async def close(self) -> None:
        """Give up waiting for stop jobs; the next controller finds those engines and goes on."""
        for job in self._stops.values():
            job.cancel()
        await asyncio.gather(*self._stops.values(), return_exceptions=True)
        self._stops.clear()

    def _refuse_again(self, intent: StartEngine) -> None:
        refusal = self._refused.get(intent)
        if refusal is not None and refusal.waits(self._clock.now()):
            raise type(refusal.error)(str(refusal.error))

    def _remember(self, intent: StartEngine, error: Permanent) -> None:
        before = self._refused.get(intent)
        times = 1 if before is None else before.times + 1
        self._refused[intent] = _Refusal(error, times, self._clock.now())

    def _event(self, intent: Intent, subject: str) -> Event | None:
        now, sentence = self._clock.now(), described(intent)
        match intent:
            case StartEngine(slot=slot):
                kind, about = EventKind.ENGINE_STARTED, slot
            case StopEngine(slot=slot):
                kind, about = EventKind.ENGINE_STOPPED, slot
            case SetWeight():
                kind, about = EventKind.WEIGHT_SET, subject
            case Hold() | AdmitSlot() | DrainSlot():
                return None
            case _:
                assert_never(intent)
        return Event(at_s=now, kind=kind, sentence=sentence, subject=about)

    def _stop_ended(self, slot: str) -> bool:
        """Whether no stop job runs for the slot; raises what the last one raised."""
        job = self._stops.get(slot)
        if job is None:
            return True
        if not job.done():
            return False
        del self._stops[slot]
        job.result()
        return True

    async def _act(self, intent: StartEngine | AdmitSlot | DrainSlot | SetWeight) -> None:
        match intent:
            case StartEngine(slot=slot, config=config):
                await self._launcher.start(self._slots[slot], config)
            case AdmitSlot(slot=slot):
                await self._gateway.admit(slot)
            case DrainSlot(slot=slot):
                await self._gateway.drain(slot)
            case SetWeight(weight=weight):
                await self._gateway.set_weight(weight)
            case _:
                assert_never(intent)

    async def _stop(self, intent: StopEngine, action: int) -> None:
        try:
            drain_s = self._drain_for() if intent.drain else 0.0
            await self._launcher.stop(self._slot_of(intent.slot), drain_s)
        except SerinusError as error:
            self._finish(action, f"failed: {error}")
            raise
        finally:
            self._stopping.discard(action)
        self._finish(action, DONE)

    def _drain_for(self) -> float:
        with self._leadership.view() as uow:
            return streams.drain_s(uow, self._drain_s)

    def _slot_of(self, name: str) -> Slot:
        """Also one that the settings no longer have."""
        return self._slots.get(name) or forgotten(name)

    def _begin(self, intent: Intent, subject: str) -> int:
        with self._leadership.work() as uow:
            action = uow.actions.begin(described(intent), subject, self._clock.now())
            uow.commit()
        return action

    def _finish(self, action: int, outcome: str) -> None:
        """Record the outcome, later where the store does not take it now; what was done is done."""
        try:
            with self._leadership.work() as uow:
                uow.actions.finish(action, outcome, self._clock.now())
                uow.commit()
        except LeaseLost:
            raise
        except Conflict:
            return  # Another controller that acted meanwhile has closed it.
        except (Temporary, Permanent):
            self._unrecorded[action] = outcome
