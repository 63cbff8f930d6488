"""Carries out one intent: records it, acts through the ports, records what came of it.

It decides nothing. Stopping an engine waits for its streams, so it runs as a named job that later
cycles find busy or done; everything else is done when ``do`` returns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import assert_never

from agent import streams
from agent.leadership import Leadership
from agent.store import DONE
from domain.errors import SerinusError
from domain.events import Event, EventKind
from domain.fleet import Slot, forgotten
from domain.ports import Clock, Gateway, Launcher
from domain.rollout import AdmitSlot, DrainSlot, Hold, Intent, SetWeight, StartEngine, StopEngine


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

    ``drain_s`` is how long streams may take at least, see ``agent.streams``.
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

    async def do(self, intent: Intent, subject: str) -> Event | None:
        """Carry the intent out; the event to tell people of, if it is worth one.

        Errors of the ports are recorded as the outcome and raised again.
        """
        if isinstance(intent, Hold):
            return None
        if isinstance(intent, StopEngine) and not self._stop_ended(intent.slot):
            return None
        action = self._begin(intent, subject)
        if isinstance(intent, StopEngine):
            job = asyncio.create_task(self._stop(intent, action), name=f"stop {intent.slot}")
            self._stops[intent.slot] = job
        else:
            try:
                await self._act(intent)
            except SerinusError as error:
                self._finish(action, f"failed: {error}")
                raise
            self._finish(action, DONE)
        return self._event(intent, subject)

    async def close(self) -> None:
        """Give up waiting for stop jobs; the next controller finds those engines and goes on."""
        for job in self._stops.values():
            job.cancel()
        await asyncio.gather(*self._stops.values(), return_exceptions=True)
        self._stops.clear()

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
        drain_s = self._drain_for() if intent.drain else 0.0
        try:
            await self._launcher.stop(self._slot_of(intent.slot), drain_s)
        except SerinusError as error:
            self._finish(action, f"failed: {error}")
            raise
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
        with self._leadership.work() as uow:
            uow.actions.finish(action, outcome, self._clock.now())
            uow.commit()
