"""What a rehearsal sends: a plan like the study's shape, or a stretch of the user's own trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from canary.gateways.haproxy_config import CONTROL_SOCKET
from canary.gateways.haproxy_runtime import ControlSocket, read_kept_log
from canary.prompts import arrivals_of, part_of, replay, stretch_like, synthesise
from canary.traces import read_trace
from domain.errors import BadInput
from domain.load import BLOCK_TOKENS, Arrival, LoadPlan
from domain.study import Study
from domain.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialLength:
    """Seconds of load before measuring begins, and of measuring; requests that each run of a
    verdict needs, and how many rounds of fresh runs it may take.

    A run that only finds out what is worth a verdict is measured for ``screened_s``. ``arrival`` is
    how a load that repeats no trace comes.
    """

    warm_up_s: float
    measured_s: float
    screened_s: float
    min_requests: int
    rounds: int
    max_model_len: int | None = None
    arrival: Arrival = Arrival.CLOSED


def load_of(
    study: Study,
    seed: int,
    length: TrialLength,
    *,
    corpus: Sequence[int] | None = None,
    trace: Trace | None = None,
    block_tokens: int = BLOCK_TOKENS,
    screening: bool = False,
    times: float = 1.0,
) -> LoadPlan:
    """The load of one trial, with a fresh seed: every trial of a study gets the same stretch, or
    its beginning where it is ``screening``.

    It is what one of the study's replicas gets. Without a ``trace``, the study's shape at ``times``
    its concurrency or, in an open load, its rate, with its burstiness; with one, which is of all
    replicas, a stretch of one's sessions like the shape. Of a trace without lengths,
    as a gateway's log, its times and sessions with the shape's lengths. Prompts share the
    beginnings of which a cache in blocks of ``block_tokens`` finds the live share. BadInput where
    the trace has no stretch that can be played, or where an open load has no rate to keep.
    """
    shape = study.part
    streams = round(times * max(1, round(shape.concurrency)))
    whole_s = length.warm_up_s + length.measured_s
    lasting_s = length.warm_up_s + length.screened_s if screening else whole_s
    arrivals, level = None, f"{streams} streams"
    if trace is not None:
        trace = part_of(trace, study.replicas, seed=study.seed)
        start_s = stretch_like(
            trace,
            shape,
            seed=study.seed,
            length_s=whole_s,
            warm_up_s=length.warm_up_s,
            max_model_len=length.max_model_len,
        )
        level = f"trace from {start_s:.0f} s"
        if all(request.isl and request.osl for request in trace.requests):
            return replay(
                trace,
                seed=seed,
                start_s=start_s,
                window_s=lasting_s,
                warm_up_s=length.warm_up_s,
                level=level,
                concurrency=streams,
                corpus=corpus,
                max_model_len=length.max_model_len,
            )
        arrivals = arrivals_of(trace, start_s=start_s, window_s=lasting_s)
    elif length.arrival is Arrival.OPEN:
        rate_rps = times * shape.rate_rps
        if not rate_rps > 0:
            raise BadInput(
                "No request a second is known of the live traffic, so an open load has no rate to"
                " keep; set arrivals to closed."
            )
        level = f"{rate_rps:.3g} requests/s"
    return synthesise(
        replace(shape, rate_rps=times * shape.rate_rps),
        level=level,
        concurrency=streams,
        warm_up_s=length.warm_up_s,
        duration_s=lasting_s,
        seed=seed,
        corpus=corpus,
        arrival=length.arrival,
        arrivals_seed=study.seed,
        arrivals=arrivals,
        max_model_len=length.max_model_len,
        block_tokens=block_tokens,
    )


def trace_in(path: Path) -> Trace:
    """The trace in a file; BadInput where it cannot be read."""
    try:
        with path.open(encoding="utf-8", newline="") as lines:
            return read_trace(list(lines))
    except OSError as error:
        raise BadInput(f"The trace {path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise BadInput(f"The trace {path} is no text in UTF-8.") from error


async def logged(gateway: Path) -> tuple[str, ...]:
    """The lines of the log that the gateway in this folder keeps; Temporary where none runs."""
    return await read_kept_log(ControlSocket(gateway / CONTROL_SOCKET))
