"""A LoadGenerator that computes a run in simulated time: no socket, no sleep, no randomness.

Script it by engine URL::

    FakeLoadGenerator({"http://127.0.0.1:8001": EngineBehaviour(ttft_s=0.1, tpot_s=0.01)})

or by load, where an engine bears one and not another::

    FakeLoadGenerator(levels={"96 streams": EngineBehaviour(ttft_s=2.0)})

or give ``results`` to be handed out first, in order (an exception among them is raised).
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from domain.load import (
    Arrival,
    ClientHealth,
    LoadPlan,
    LoadResult,
    RequestError,
    RequestRecord,
    Session,
)
from domain.ports import unheard

_POLL_S = 0.1
_PAUSE_AFTER_FAILURE_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineBehaviour:
    """How fast an engine answers; each ``fail_every``-th request fails with ``error`` at once."""

    ttft_s: float = 0.1
    tpot_s: float = 0.01
    fail_every: int = 0
    error: RequestError = RequestError.HTTP_5XX
    client_fault: str | None = None


@dataclass(slots=True)
class FakeLoadGenerator:
    """``runs`` lists the (plan, url, model) of each call. What is in neither ``levels`` nor
    ``behaviours`` gets ``default``."""

    behaviours: Mapping[str, EngineBehaviour] = field(default_factory=dict)
    levels: Mapping[str, EngineBehaviour] = field(default_factory=dict)
    default: EngineBehaviour = EngineBehaviour()
    results: Iterable[LoadResult | Exception] = ()
    runs: list[tuple[LoadPlan, str, str]] = field(default_factory=list)
    _given: Iterator[LoadResult | Exception] = field(init=False)

    def __post_init__(self) -> None:
        self._given = iter(self.results)

    async def run(
        self,
        plan: LoadPlan,
        url: str,
        model: str,
        stop: Callable[[], bool],
        heard: Callable[[RequestRecord], None] = unheard,
    ) -> LoadResult:
        self.runs.append((plan, url, model))
        given = next(self._given, None)
        if isinstance(given, Exception):
            raise given
        engine = self.levels.get(plan.level) or self.behaviours.get(url, self.default)
        return given or simulate(plan, engine, stop, heard)


def simulate(
    plan: LoadPlan,
    engine: EngineBehaviour,
    stop: Callable[[], bool] = lambda: False,
    heard: Callable[[RequestRecord], None] = unheard,
) -> LoadResult:
    """The result of ``plan`` on ``engine``; ``stop`` is asked each simulated 100 ms, and before it
    ``heard`` is told what ended by then."""
    sent: list[RequestRecord] = []
    waiting = iter(sorted(plan.sessions, key=lambda s: s.start_s))
    heap: list[tuple[float, int, Session, int]] = []
    order = itertools.count()

    def begin(at_s: float) -> None:
        if session := next(waiting, None):
            start_s = at_s if plan.arrival is Arrival.CLOSED else session.start_s
            think_s = session.turns[0].think_s
            heapq.heappush(heap, (start_s + think_s, next(order), session, 0))

    for _ in range(plan.concurrency if plan.arrival is Arrival.CLOSED else len(plan.sessions)):
        begin(0.0)
    while heap:
        due_s, _, session, turn = heapq.heappop(heap)
        if due_s >= plan.duration_s:
            break
        record = _request(session, turn, due_s, engine, len(sent) + 1)
        sent.append(record)
        free_s = record.end_s + (_PAUSE_AFTER_FAILURE_S if record.failed else 0.0)
        if turn + 1 < len(session.turns):
            due_s = free_s + session.turns[turn + 1].think_s
            heapq.heappush(heap, (due_s, next(order), session, turn + 1))
        elif plan.arrival is Arrival.CLOSED:
            begin(free_s)
    over_s = min(plan.duration_s, max((record.end_s for record in sent), default=0.0))
    polls_s = (i * _POLL_S for i in range(math.ceil(over_s / _POLL_S)))
    untold = deque(sorted(sent, key=lambda record: record.end_s))

    def stopped(at_s: float) -> bool:
        while untold and untold[0].end_s <= at_s:
            heard(untold.popleft())
        return stop()

    end_s = next((at_s for at_s in polls_s if stopped(at_s)), over_s)
    records = tuple(_cut_off(record, end_s) for record in sent if record.sent_s <= end_s)
    told = len(sent) - len(untold)
    for record in sorted(records, key=lambda record: record.end_s)[told:]:
        heard(record)
    return LoadResult(
        plan_level=plan.level,
        seed=plan.seed,
        warm_up_s=plan.warm_up_s,
        duration_s=end_s,
        records=records,
        health=ClientHealth(send_lag_ms=0.1, loop_lag_ms=0.1, cpu=0.1, fault=engine.client_fault),
        arrival=plan.arrival,
    )


def _request(
    session: Session, turn: int, due_s: float, engine: EngineBehaviour, number: int
) -> RequestRecord:
    spec = session.turns[turn]
    fails = bool(engine.fail_every) and number % engine.fail_every == 0
    first_s = due_s + engine.ttft_s
    last_s = first_s + engine.tpot_s * (spec.osl - 1)
    return RequestRecord(
        session=session.name,
        turn=turn,
        scheduled_s=due_s,
        sent_s=due_s,
        end_s=due_s if fails else last_s,
        isl=spec.isl,
        osl=spec.osl,
        first_s=None if fails else first_s,
        last_s=None if fails else last_s,
        error=engine.error if fails else None,
    )


def _cut_off(record: RequestRecord, end_s: float) -> RequestRecord:
    """What is under way when the run ends is cancelled, with the tokens it got by then."""
    if record.end_s <= end_s or record.first_s is None or record.last_s is None:
        return record
    started = record.first_s <= end_s
    return RequestRecord(
        session=record.session,
        turn=record.turn,
        scheduled_s=record.scheduled_s,
        sent_s=record.sent_s,
        end_s=end_s,
        isl=record.isl,
        osl=record.osl,
        first_s=record.first_s if started else None,
        last_s=min(record.last_s, end_s) if started else None,
        error=RequestError.CANCELLED,
    )
