"""Plans and results as JSON lines, for a load client in a process of its own and for journals.

A run must begin sending within a second, so a prompt travels as the length it shares with the last
one (a session's first: with the first of the session before) and base64 of its 32-bit ids after
that, which is ten times faster to read than a list of numbers. Records are plain objects that other
tools can read. It must not know how the lines travel.
"""

from __future__ import annotations

import json
from array import array
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from canary.loadgen.options import Budget, Options
from canary.loadgen.saturation import Limits
from domain.load import (
    Arrival,
    ClientHealth,
    LoadPlan,
    LoadResult,
    RequestError,
    RequestRecord,
    RequestSpec,
    Session,
    StopCause,
    Stopped,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A plan, where it goes, and the load client's options."""

    plan: LoadPlan
    url: str
    model: str
    options: Options


_PLAN_FIELDS = ("level", "concurrency", "warm_up_s", "duration_s", "seed")


def job_lines(job: Job) -> Iterator[bytes]:
    """A head that says how many sessions follow, then a line for each."""
    path = job.options.records_path
    head = {
        "url": job.url,
        "model": job.model,
        "options": {**asdict(job.options), "records_path": str(path) if path else None},
        "plan": {name: getattr(job.plan, name) for name in _PLAN_FIELDS},
        "arrival": job.plan.arrival.value,
        "sessions": len(job.plan.sessions),
    }
    yield _line(head).encode()
    opening: tuple[int, ...] = ()
    for session in job.plan.sessions:
        turns, last = [], opening
        for turn in session.turns:
            shared = _shared(last, turn.prompt)
            fresh = b64encode(array("I", turn.prompt[shared:]).tobytes()).decode()
            row: list[object] = [shared, fresh, turn.osl, turn.think_s]
            turns.append(row if turn.text is None else [*row, turn.text, turn.text_isl])
            last = turn.prompt
        yield _line([session.name, session.start_s, turns]).encode()
        opening = session.turns[0].prompt if session.turns else ()


def read_job(lines: Iterator[bytes]) -> Job:
    """The inverse of ``job_lines``; takes no line more than the job's own."""
    head = json.loads(next(lines))
    sessions: list[Session] = []
    opening: tuple[int, ...] = ()
    for _ in range(head["sessions"]):
        session = _session(json.loads(next(lines)), opening)
        sessions.append(session)
        opening = session.turns[0].prompt if session.turns else ()
    plan = LoadPlan(arrival=Arrival(head["arrival"]), sessions=tuple(sessions), **head["plan"])
    return Job(plan=plan, url=head["url"], model=head["model"], options=_options(**head["options"]))


def closing_line(result: LoadResult) -> str:
    """All of the result but its records, of which each had a line when it ended."""
    stopped = result.stopped
    return _line(
        {
            "plan_level": result.plan_level,
            "seed": result.seed,
            "warm_up_s": result.warm_up_s,
            "duration_s": result.duration_s,
            "health": asdict(result.health),
            "arrival": result.arrival.value,
            "stopped": [stopped.cause.value, stopped.sentence] if stopped else None,
        }
    )


def read_closing(line: str | bytes, records: Iterable[RequestRecord]) -> LoadResult:
    """The result that ``closing_line`` tells of, with the ``records`` told before it."""
    row = json.loads(line)
    health, arrival = ClientHealth(**row.pop("health")), Arrival(row.pop("arrival"))
    if stopped := row.pop("stopped"):
        stopped = Stopped(cause=StopCause(stopped[0]), sentence=stopped[1])
    return LoadResult(
        **row, health=health, arrival=arrival, stopped=stopped, records=tuple(records)
    )


def record_line(record: RequestRecord) -> str:
    """One record as a JSON line, its error by name."""
    return _line({**asdict(record), "error": record.error.value if record.error else None})


def read_record(line: str | bytes) -> RequestRecord:
    row: dict[str, Any] = json.loads(line)
    error = row.pop("error")
    return RequestRecord(**row, error=RequestError(error) if error else None)


def _options(
    *, budget: dict[str, Any], saturation: dict[str, Any], records_path: str | None, **rest: Any
) -> Options:
    return Options(
        **rest,
        budget=Budget(**budget),
        saturation=Limits(**saturation),
        records_path=Path(records_path) if records_path else None,
    )


def _session(row: list[Any], last: tuple[int, ...]) -> Session:
    """A session from its line; its first prompt may begin as ``last`` does."""
    name, start_s, turns = row
    specs = []
    for shared, fresh, osl, think_s, *texts in turns:
        last = last[:shared] + tuple(array("I", b64decode(fresh)))
        text, text_isl = texts or (None, 0)
        specs.append(
            RequestSpec(prompt=last, osl=osl, think_s=think_s, text=text, text_isl=text_isl)
        )
    return Session(name=name, start_s=start_s, turns=tuple(specs))


def _shared(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """How many tokens both begin with, by bisection: comparing slices is much the faster."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _line(value: object) -> str:
    return json.dumps(value, separators=(",", ":")) + "\n"
