"""Engines as plain processes of this machine, one a slot, that outlive the controller.

The order of effects is what keeps an engine from being lost or started twice when the controller
is killed between two of them: an intent with a token is on disk before the engine is launched with
that token in its environment, and a stop is on disk before the first signal. Whoever comes next
reads the records and finds the engines by their tokens. In which state an engine is, and why one
ended, is decided in ``serving.readiness`` and ``serving.failures``.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from domain.engine import EngineConfig
from domain.errors import BadInput, Conflict, Temporary
from domain.fleet import Replica, ReplicaState, Slot
from domain.ports import Clock
from domain.study import Failure
from serving import failures
from serving.launchers import ending, engine_process
from serving.launchers.engine_process import Identity
from serving.launchers.environment import engine_environment
from serving.launchers.probe import Answer, Probe
from serving.launchers.records import Record, RecordStore
from serving.readiness import Limits, Observation, Silence, readiness


@dataclass(slots=True)
class _Watch:
    """What is remembered of one start between two observes; losing it only costs time."""

    silence: Silence = field(default_factory=Silence)
    warm_up: asyncio.Task[Answer] | None = None


class ProcessLauncher:
    """The Launcher of this machine; see ``domain.ports.Launcher``.

    ``render`` gives the arguments and variables of a config. A warm engine that has not answered
    for ``hung_after_s`` (and several observes) is dead. ``aclose`` lets the engines run on.
    """

    def __init__(
        self,
        *,
        directory: Path,
        executable: tuple[str, ...],
        model: str,
        served_model_name: str,
        render: Callable[[EngineConfig], tuple[tuple[str, ...], dict[str, str]]],
        extra_args: tuple[str, ...] = (),
        start_timeout_s: float,
        hung_after_s: float = 15.0,
        clock: Clock,
    ) -> None:
        self._records = RecordStore(directory)
        self._executable = executable
        self._model = model
        self._served_model_name = served_model_name
        self._render = render
        self._extra_args = extra_args
        self._limits = Limits(start_timeout_s=start_timeout_s, hung_after_s=hung_after_s)
        self._clock = clock
        self._probe = Probe()
        self._watches: dict[str, _Watch] = {}
        self._stops: dict[str, asyncio.Task[None]] = {}

    async def start(self, slot: Slot, config: EngineConfig) -> None:
        record = self._settled(slot.name)
        if record is not None:
            self._refuse_unless_same(record, slot, config)
            return
        intent = Record(
            slot=slot,
            config=config,
            model=self._model,
            token=uuid.uuid4().hex,
            started_s=self._clock.now(),
        )
        arguments, variables = self._render(config)
        environment = engine_environment(
            os.environ, variables, gpu_ids=slot.gpu_ids, token=intent.token
        )
        executable = self._found_executable(environment)
        if holder := engine_process.port_holder(slot.port):
            raise Conflict(
                f"Port {slot.port} of slot {slot.name} is not free ({holder}): end what uses it, "
                "or give the slot another port."
            )
        self._launch(intent, executable, self._command_line(slot, arguments), environment)

    async def stop(self, slot: Slot, drain_s: float) -> None:
        record = self._settled(slot.name)
        if record is None:
            return
        stop_by_s = self._clock.now() + drain_s
        if record.stop_by_s is None or stop_by_s < record.stop_by_s:
            record = replace(record, stop_by_s=stop_by_s)
            self._records.keep(record)
        # A caller that gives up does not call off the stop.
        await asyncio.shield(self._stopping(record))

    async def observe(self) -> tuple[Replica, ...]:
        seen = await asyncio.gather(*(self._observe(name) for name in self._records.slots()))
        return tuple(replica for replica in seen if replica is not None)

    def log_tail(self, slot: Slot) -> str:
        return failures.decisive(self._records.log_end(slot.name))

    async def aclose(self) -> None:
        """End this launcher's own tasks and connections. A stop under way is resumed by whoever
        observes next."""
        warm_ups = [watch.warm_up for watch in self._watches.values() if watch.warm_up]
        tasks = [*warm_ups, *self._stops.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._probe.aclose()

    # Starting

    def _refuse_unless_same(self, record: Record, slot: Slot, config: EngineConfig) -> None:
        name = slot.name
        if record.stop_by_s is not None:
            raise Temporary(f"Slot {name} is still being stopped; start it once it is empty.")
        if record.config.digest != config.digest:
            raise Conflict(
                f"Slot {name} holds an engine with config {record.config.digest}, not "
                f"{config.digest}: stop it first."
            )
        if record.dead or engine_process.running(record.identity) is None:
            cause = record.dead.sentence if record.dead else "Its process is gone."
            raise Conflict(f"Slot {name} holds a dead engine; stop it first. {cause}")
        if (record.slot, record.model) != (slot, self._model):
            raise Conflict(
                f"Slot {name} holds an engine of {record.model} on port {record.slot.port}, and "
                f"{self._model} on port {slot.port} or other GPUs are asked for: stop it first."
            )

    def _found_executable(self, environment: dict[str, str]) -> Path:
        named = self._executable[0]
        found = shutil.which(named, path=environment.get("PATH"))
        if found is None:
            raise BadInput(
                f"The engine's executable {named} does not exist or may not be run: install the "
                "engine there, or name the path of one that is installed."
            )
        return Path(found)

    def _command_line(self, slot: Slot, arguments: tuple[str, ...]) -> tuple[str, ...]:
        return (
            *self._executable[1:],
            *("serve", self._model, "--host", "127.0.0.1", "--port", str(slot.port)),
            *("--served-model-name", self._served_model_name),
            *arguments,
            *self._extra_args,
        )

    def _launch(
        self,
        intent: Record,
        executable: Path,
        command_line: tuple[str, ...],
        environment: dict[str, str],
    ) -> None:
        """Intent, log, engine, record: whoever finds any beginning of these can go on from it."""
        name = intent.slot.name
        try:
            self._records.write(intent)
            self._records.keep_previous_log(name)
            pid = engine_process.launch(
                executable, command_line, environment, self._records.log(name)
            )
        except OSError as error:
            with suppress(OSError):
                self._records.remove(intent)
            raise BadInput(
                f"The engine of slot {name} was not started ({error}): see that {executable} can "
                f"be run and that {self._records.log(name).parent} can be written and has room."
            ) from error
        self._records.keep(_launched(intent, engine_process.identify(intent.token, pid), pid))

    # Observing

    async def _observe(self, name: str) -> Replica | None:
        record = self._settled(name)
        if record is None:
            return None
        health = await self._health(record)
        # A stop may have begun or ended while the engine was asked.
        record = self._records.read(name)
        if record is None:
            return None
        return self._judged(record, health)

    async def _health(self, record: Record) -> Answer:
        if record.dead or record.stop_by_s is not None:
            return Answer(False, "")
        return await self._probe.health(record.slot.url)

    def _judged(self, record: Record, health: Answer) -> Replica:
        now = self._clock.now()
        if record.stop_by_s is not None:
            self._stopping(record)
            return _replica(record, ReplicaState.STOPPING)
        if record.dead:
            return _replica(record, ReplicaState.DEAD, record.dead.sentence)
        watch = self._watches.setdefault(record.token, _Watch())
        watch.silence = watch.silence.after(health.ok, now)
        warmth = Answer(True) if record.warm else self._advance_warm_up(record, watch, health)
        verdict = readiness(
            Observation(
                started_s=record.started_s,
                warm=warmth.ok,
                ended=self._ended(record),
                silence=watch.silence,
                note=warmth.fault,
            ),
            self._limits,
            now,
        )
        if (warmth.ok, verdict.failure) != (record.warm, record.dead):
            record = replace(record, warm=warmth.ok, dead=verdict.failure)
            self._records.keep(record)
        return _replica(record, verdict.state, verdict.detail)

    def _advance_warm_up(self, record: Record, watch: _Watch, health: Answer) -> Answer:
        """Begin, await or take in the warm-up inference: whether it gave a token by now."""
        if watch.warm_up is None:
            if not health.ok:
                return health
            watch.warm_up = asyncio.create_task(
                self._probe.warm_up(record.slot.url, self._served_model_name)
            )
        if not watch.warm_up.done():
            return Answer(False, "the warm-up inference is under way")
        answer = watch.warm_up.result()
        watch.warm_up = None
        return answer

    def _ended(self, record: Record) -> Failure | None:
        exit_code = engine_process.reap(record.identity)
        if engine_process.running(record.identity) is not None:
            return None
        return failures.classify(
            exit_code=exit_code, warm=record.warm, log=self._records.log_end(record.slot.name)
        )

    def _settled(self, name: str) -> Record | None:
        """The slot's record, with an interrupted start completed or forgotten."""
        record = self._records.read(name)
        if record is None or record.pid is not None:
            return record
        identity = engine_process.find(record.token)
        if identity is None:
            self._records.remove(record)
            return None
        record = _launched(record, identity, identity.pid)
        self._records.keep(record)
        return record

    # Stopping

    def _stopping(self, record: Record) -> asyncio.Task[None]:
        """The one task that ends this slot's engine; begun anew where an earlier one failed."""
        name = record.slot.name
        task = self._stops.get(name)
        if task is None or task.done():
            watch = self._watches.pop(record.token, None)
            if watch and watch.warm_up:
                watch.warm_up.cancel()
            task = asyncio.create_task(
                ending.end(record, records=self._records, probe=self._probe, clock=self._clock)
            )
            task.add_done_callback(_noted)
            self._stops[name] = task
        return task


def _launched(intent: Record, identity: Identity | None, pid: int) -> Record:
    created_s = identity.created_s if identity else intent.started_s
    return replace(intent, pid=pid, created_s=created_s)


def _replica(record: Record, state: ReplicaState, detail: str = "") -> Replica:
    return Replica(
        slot=record.slot.name,
        config=record.config,
        state=state,
        started_s=record.started_s,
        pid=record.pid,
        detail=detail,
        failure=record.dead,
    )


def _noted(task: asyncio.Task[None]) -> None:
    """Take note of a stop that failed: the next observe or stop tries again."""
    if not task.cancelled():
        task.exception()
