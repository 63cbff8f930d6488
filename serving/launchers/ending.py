"""How an engine of this machine is ended: drained, asked, killed, and its record removed last.

The record goes only when no process of the engine is left, so an ending that is interrupted, at
whatever line, can be begun again by anybody who reads it.
"""

from __future__ import annotations

import asyncio
import math
import signal

import psutil

from domain.errors import EngineUnreachable
from domain.ports import Clock
from serving.launchers import engine_process
from serving.launchers.probe import Probe
from serving.launchers.records import Record, RecordStore

TERMINATE_S = 10.0
KILL_S = 5.0
_POLL_S = 0.2
# The gauges lag by a scheduler step: one look at zero may fall between two requests.
_IDLE_LOOKS = 2


async def end(record: Record, *, records: RecordStore, probe: Probe, clock: Clock) -> None:
    """End the engine of ``record`` and forget it; EngineUnreachable where it cannot be ended."""
    await _drain(record, records, probe, clock)
    known: set[psutil.Process] = set()
    ended = await _ends(record, signal.SIGTERM, TERMINATE_S, known, clock) or await _ends(
        record, signal.SIGKILL, KILL_S, known, clock
    )
    if not ended:
        raise EngineUnreachable(
            f"The engine of slot {record.slot.name} (pid {record.pid}) does not end, even when "
            "killed; its GPU's driver may be stuck."
        )
    # Its last process may have ended after the last look: nobody else takes in its exit.
    engine_process.reap(record.identity)
    records.remove(record)


async def _drain(record: Record, records: RecordStore, probe: Probe, clock: Clock) -> None:
    """Wait until the engine has been seen idle, is gone, or its time is up."""
    # One that was never warm got no traffic to wait for.
    idle_looks = 0 if record.warm else _IDLE_LOOKS
    while idle_looks < _IDLE_LOOKS and engine_process.running(record.identity):
        # Read anew: a later stop may have shortened the wait.
        current = records.read(record.slot.name) or record
        if current.stop_by_s is None or clock.now() >= current.stop_by_s:
            return
        # An engine that does not say whether it is idle counts as in use.
        idle_looks = idle_looks + 1 if await probe.in_flight(record.slot.url) == 0 else 0
        await clock.sleep(_POLL_S)


async def _ends(
    record: Record,
    ask: signal.Signals,
    wait_s: float,
    known: set[psutil.Process],
    clock: Clock,
) -> bool:
    """Signal every process of the engine once; whether all are gone within ``wait_s``.

    ``known`` gathers them: one whose parent is gone may no longer be found by kinship.
    """
    asked: set[psutil.Process] = set()
    for _ in range(math.ceil(wait_s / _POLL_S)):
        known |= await asyncio.to_thread(engine_process.family, record.identity)
        engine_process.reap(record.identity)
        left = engine_process.still_running(known)
        if not left:
            return True
        engine_process.signal_all(left - asked, ask)
        asked |= left
        await clock.sleep(_POLL_S)
    return False
