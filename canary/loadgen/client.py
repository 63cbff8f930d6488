"""The load client: sends a plan on the caller's loop and records what became of each request.

It is thin on purpose: a slow client is the usual reason for wrong latencies. It must not retry,
must not judge the engine, and must not leave a connection open.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from time import perf_counter, process_time
from typing import TextIO

from canary.loadgen.answer import Answer
from canary.loadgen.codec import record_line
from canary.loadgen.connection import Connection, Pool
from canary.loadgen.health import health
from canary.loadgen.options import Options
from canary.loadgen.progress import Progress
from canary.loadgen.request import Endpoint, RequestWriter, check
from domain.load import (
    Arrival,
    LoadPlan,
    LoadResult,
    RequestError,
    RequestRecord,
    Session,
    StopCause,
    Stopped,
)
from domain.ports import unheard

POLL_S = 0.1
LAG_SAMPLE_S = 0.05
# An engine that refuses everything must not turn the closed loop into a busy one.
PAUSE_AFTER_FAILURE_S = 0.1
# Long prompts take milliseconds to write, and live requests come in bursts: an open plan's are
# written so long before they are due, so that none waits for the writing of another.
AHEAD_S = 0.25


class HttpLoadGenerator:
    """A LoadGenerator over HTTP, on whatever loop runs it (uvloop is the faster)."""

    def __init__(self, options: Options | None = None) -> None:
        self._options = options or Options()

    async def run(
        self,
        plan: LoadPlan,
        url: str,
        model: str,
        stop: Callable[[], bool],
        heard: Callable[[RequestRecord], None] = unheard,
        *,
        start_at_s: float | None = None,
    ) -> LoadResult:
        """Send ``plan``; what is under way at its end is cut off.

        The plan's time begins at ``start_at_s`` of ``time.perf_counter``, which all processes
        share, by default at once. A bad URL, or prompts that the endpoint does not take, raise
        BadInput.
        """
        check(plan, self._options)
        endpoint = Endpoint.parse(url)
        writer = RequestWriter(endpoint, model=model, options=self._options)
        zero_s = perf_counter() if start_at_s is None else start_at_s
        with self._journal() as journal:
            tell = heard if journal is None else _also_written(heard, journal)
            run = _Run(plan, Pool(endpoint), writer, self._options, tell, zero_s)
            return await run.result(stop)

    def _journal(self) -> AbstractContextManager[TextIO | None]:
        if self._options.records_path is None:
            return nullcontext()
        return self._options.records_path.open("a", buffering=1, encoding="utf-8")


def _also_written(
    heard: Callable[[RequestRecord], None], journal: TextIO
) -> Callable[[RequestRecord], None]:
    def tell(record: RequestRecord) -> None:
        journal.write(record_line(record))
        heard(record)

    return tell


class _Run:
    """One run of one plan: its clock, its connections and its records."""

    def __init__(
        self,
        plan: LoadPlan,
        pool: Pool,
        writer: RequestWriter,
        options: Options,
        tell: Callable[[RequestRecord], None],
        zero_s: float,
    ) -> None:
        self._plan = plan
        self._pool = pool
        self._writer = writer
        self._timeout_s = options.request_timeout_s
        self._tell = tell
        self._zero_s = zero_s
        self._progress = Progress(plan, options)
        self._records: list[RequestRecord] = []
        self._loop_lags_s: list[float] = []

    def _now(self) -> float:
        return perf_counter() - self._zero_s

    async def result(self, stop: Callable[[], bool]) -> LoadResult:
        plan = self._plan
        await self._until(0.0)
        cpu_zero_s = process_time()
        sending = asyncio.create_task(
            self._closed() if plan.arrival is Arrival.CLOSED else self._open()
        )
        watching = asyncio.create_task(self._watch_loop())
        try:
            stopped = await self._under_way(sending, stop)
            wall_s, cpu_s = self._now(), process_time() - cpu_zero_s
        finally:
            watching.cancel()
            sending.cancel()
            await asyncio.wait({sending, watching})
            await self._pool.close()
        if not sending.cancelled() and (error := sending.exception()):
            raise error
        return LoadResult(
            plan_level=plan.level,
            seed=plan.seed,
            warm_up_s=plan.warm_up_s,
            duration_s=min(wall_s, self._progress.duration_s),
            records=tuple(self._records),
            health=health(
                self._records,
                warm_up_s=plan.warm_up_s,
                loop_lags_s=self._loop_lags_s,
                cpu_s=cpu_s,
                wall_s=wall_s,
            ),
            arrival=plan.arrival,
            stopped=stopped,
        )

    async def _under_way(
        self, sending: asyncio.Task[None], stop: Callable[[], bool]
    ) -> Stopped | None:
        """Until the run is over; why it ended early, if it did."""
        progress = self._progress
        while not sending.done() and (left_s := progress.duration_s - self._now()) > 0:
            if stop():
                sentence = f"The load was asked to stop after {self._now():.1f} s."
                return Stopped(cause=StopCause.ASKED, sentence=sentence)
            if stopped := progress.look(self._now()):
                return stopped
            await asyncio.wait({sending}, timeout=min(POLL_S, left_s))
        return progress.over(self._now())

    async def _closed(self) -> None:
        """``concurrency`` workers take the sessions in order."""
        sessions = iter(self._plan.sessions)

        async def work() -> None:
            due_s = max(self._now(), 0.0)
            for session in sessions:
                if self._progress.spent:
                    return
                due_s = await self._converse(session, due_s)

        async with asyncio.TaskGroup() as group:
            for _ in range(self._plan.concurrency):
                group.create_task(work())

    async def _open(self) -> None:
        """Each session starts at its own time, however late the engine is with the others."""
        async with asyncio.TaskGroup() as group:
            for session in sorted(self._plan.sessions, key=lambda session: session.start_s):
                await self._until(session.start_s - AHEAD_S)
                if self._progress.spent:
                    return
                group.create_task(self._converse(session, session.start_s))

    async def _converse(self, session: Session, due_s: float) -> float:
        """Send the turns of a session that is due now; returns when another may follow it."""
        for turn, spec in enumerate(session.turns):
            due_s += spec.think_s
            request = self._writer.render(spec, session.name)
            await self._until(due_s)
            if not self._progress.ask(spec):
                return due_s
            record = await self._request(session, turn, due_s, request)
            due_s = record.end_s + (PAUSE_AFTER_FAILURE_S if record.failed else 0.0)
        return due_s

    async def _request(
        self, session: Session, turn: int, due_s: float, request: bytes
    ) -> RequestRecord:
        """One request; whatever cuts this task off is recorded as CANCELLED before it passes on."""
        answer = Answer()
        self._progress.begun(answer, self._now())
        connection: Connection | None = None
        error: RequestError | None = RequestError.CANCELLED
        sent_s = self._now()
        try:
            connection = await self._pool.take()
            sent_s = connection.send(request, answer) - self._zero_s
            self._progress.sent(sent_s - due_s)
            await connection.over(self._timeout_s)
            error = answer.error
        except OSError:
            error = RequestError.CONNECT
        finally:
            if connection is not None:
                self._pool.give_back(connection)
            self._progress.ended(answer)
            record = self._record(session, turn, due_s, sent_s, answer, error)
        return record

    def _record(
        self,
        session: Session,
        turn: int,
        due_s: float,
        sent_s: float,
        answer: Answer,
        error: RequestError | None,
    ) -> RequestRecord:
        """Lengths are the engine's own where it told them, else those asked for."""

        def since_start(stamp_s: float | None) -> float | None:
            return None if stamp_s is None else stamp_s - self._zero_s

        spec, end_s = session.turns[turn], since_start(answer.end_s)
        record = RequestRecord(
            session=session.name,
            turn=turn,
            scheduled_s=due_s,
            sent_s=sent_s,
            end_s=self._now() if end_s is None else end_s,
            isl=answer.prompt_tokens or spec.isl,
            osl=answer.completion_tokens or spec.osl,
            first_s=since_start(answer.first_s),
            last_s=since_start(answer.last_s),
            error=error,
            arm=answer.arm,
            planned_isl=spec.isl,
            planned_osl=spec.osl,
        )
        self._records.append(record)
        self._tell(record)
        return record

    async def _until(self, due_s: float) -> None:
        # More than once, since uvloop's timers are whole milliseconds and may wake too early.
        while (left_s := due_s - self._now()) > 0:  # noqa: ASYNC110
            await asyncio.sleep(left_s)

    async def _watch_loop(self) -> None:
        """Samples how late the loop wakes: whatever waits here waits before every stamp too.

        Not in the warm-up, since opening all connections at once is part of it.
        """
        await self._until(self._plan.warm_up_s)
        while True:
            due_s = self._now() + LAG_SAMPLE_S
            await asyncio.sleep(LAG_SAMPLE_S)
            self._loop_lags_s.append(max(0.0, self._now() - due_s))
