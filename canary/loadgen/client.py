"""The load client: sends a plan on the caller's loop and records what became of each request.

It is thin on purpose: a slow client is the usual reason for wrong latencies. It must not retry,
must not judge the engine, and must not leave a connection open.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from time import perf_counter, process_time
from typing import TextIO

from canary.loadgen.answer import Answer
from canary.loadgen.codec import record_line
from canary.loadgen.connection import Connection, Pool
from canary.loadgen.health import health
from canary.loadgen.request import Endpoint, RequestWriter
from domain.load import Arrival, LoadPlan, LoadResult, RequestError, RequestRecord, Session

POLL_S = 0.1
LAG_SAMPLE_S = 0.05
# An engine that refuses everything must not turn the closed loop into a busy one.
PAUSE_AFTER_FAILURE_S = 0.1


class HttpLoadGenerator:
    """A LoadGenerator over HTTP, on whatever loop runs it (uvloop is the faster).

    ``request_timeout_s`` bounds one request from sending to its end. ``headers`` go with every
    request, the session's name in ``session_header``. With ``records_path`` each finished request
    is appended to that file as one JSON line, for whoever watches live traffic.
    """

    def __init__(
        self,
        *,
        path: str = "/v1/completions",
        request_timeout_s: float = 120.0,
        session_header: str = "x-session-id",
        headers: Mapping[str, str] | None = None,
        records_path: Path | None = None,
    ) -> None:
        self._path = path
        self._request_timeout_s = request_timeout_s
        self._session_header = session_header
        self._headers = dict(headers or {})
        self._records_path = records_path

    async def run(
        self, plan: LoadPlan, url: str, model: str, stop: Callable[[], bool]
    ) -> LoadResult:
        """Send ``plan``; what is under way at its end is cut off. A bad URL raises BadInput."""
        endpoint = Endpoint.parse(url)
        writer = RequestWriter(
            endpoint,
            path=self._path,
            model=model,
            session_header=self._session_header,
            headers=self._headers,
        )
        with self._journal() as journal:
            run = _Run(plan, Pool(endpoint), writer, self._request_timeout_s, journal)
            return await run.result(stop)

    def _journal(self) -> AbstractContextManager[TextIO | None]:
        if self._records_path is None:
            return nullcontext()
        return self._records_path.open("a", buffering=1, encoding="utf-8")


class _Run:
    """One run of one plan: its clock, its connections and its records."""

    def __init__(
        self,
        plan: LoadPlan,
        pool: Pool,
        writer: RequestWriter,
        timeout_s: float,
        journal: TextIO | None,
    ) -> None:
        self._plan = plan
        self._pool = pool
        self._writer = writer
        self._timeout_s = timeout_s
        self._journal = journal
        self._records: list[RequestRecord] = []
        self._loop_lags_s: list[float] = []
        self._zero_s = perf_counter()

    def _now(self) -> float:
        return perf_counter() - self._zero_s

    async def result(self, stop: Callable[[], bool]) -> LoadResult:
        plan, cpu_zero_s = self._plan, process_time()
        sending = asyncio.create_task(
            self._closed() if plan.arrival is Arrival.CLOSED else self._open()
        )
        watching = asyncio.create_task(self._watch_loop())
        try:
            while not sending.done() and (left_s := plan.duration_s - self._now()) > 0:
                if stop():
                    break
                await asyncio.wait({sending}, timeout=min(POLL_S, left_s))
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
            duration_s=min(wall_s, plan.duration_s),
            records=tuple(self._records),
            health=health(
                self._records,
                warm_up_s=plan.warm_up_s,
                loop_lags_s=self._loop_lags_s,
                cpu_s=cpu_s,
                wall_s=wall_s,
            ),
        )

    async def _closed(self) -> None:
        """``concurrency`` workers take the sessions in order."""
        sessions = iter(self._plan.sessions)

        async def work() -> None:
            due_s = self._now()
            for session in sessions:
                due_s = await self._converse(session, due_s)

        async with asyncio.TaskGroup() as group:
            for _ in range(self._plan.concurrency):
                group.create_task(work())

    async def _open(self) -> None:
        """Each session starts at its own time, however late the engine is with the others."""
        async with asyncio.TaskGroup() as group:
            for session in sorted(self._plan.sessions, key=lambda session: session.start_s):
                await self._until(session.start_s)
                group.create_task(self._converse(session, session.start_s))

    async def _converse(self, session: Session, due_s: float) -> float:
        """Send the turns of a session that is due now; returns when another may follow it."""
        for turn, spec in enumerate(session.turns):
            due_s += spec.think_s
            await self._until(due_s)
            record = await self._request(session, turn, due_s)
            due_s = record.end_s + (PAUSE_AFTER_FAILURE_S if record.failed else 0.0)
        return due_s

    async def _request(self, session: Session, turn: int, due_s: float) -> RequestRecord:
        """One request; whatever cuts this task off is recorded as CANCELLED before it passes on."""
        spec, answer = session.turns[turn], Answer()
        connection: Connection | None = None
        error: RequestError | None = RequestError.CANCELLED
        sent_s = self._now()
        try:
            connection = await self._pool.take()
            request = self._writer.render(spec, session.name)
            sent_s = connection.send(request, answer) - self._zero_s
            await connection.over(self._timeout_s)
            error = answer.error
        except OSError:
            error = RequestError.CONNECT
        finally:
            if connection is not None:
                self._pool.give_back(connection)
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
        )
        self._records.append(record)
        if self._journal is not None:
            self._journal.write(record_line(record))
        return record

    async def _until(self, due_s: float) -> None:
        # More than once, since uvloop's timers are whole milliseconds and may wake too early.
        while (left_s := due_s - self._now()) > 0:  # noqa: ASYNC110
            await asyncio.sleep(left_s)

    async def _watch_loop(self) -> None:
        """Samples how late the loop wakes: whatever waits here waits before every stamp too."""
        while True:
            due_s = self._now() + LAG_SAMPLE_S
            await asyncio.sleep(LAG_SAMPLE_S)
            self._loop_lags_s.append(max(0.0, self._now() - due_s))
