"""Which signals a metric source has, and what Serinus cannot do without each that it lacks.

It asks the very questions that make a shape and a verdict, so what is found here is found there.
It only reads, and it decides nothing: a missing signal makes Serinus hold, whoever looks or not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from domain.metrics import Failed, NoData, Partial, Query, Reading, Sample
from domain.ports import MetricSource
from tools import arm as judged
from tools import profiler, queries
from tools.jobs import doubled

_NO_SHAPE: Final = "There is no shape of the traffic, so nothing is tuned."
_NO_VERDICT: Final = "A rollout's step cannot be judged, so rollouts hold."
_NO_TTFT: Final = f"{_NO_VERDICT} A breach of the TTFT limit begins no study."
_NO_TPOT: Final = f"{_NO_VERDICT} A breach of the TPOT limit begins no study."
_NO_PREFIX: Final = "Rehearsals share no prefixes, so candidates compute more than live ones do."
_NO_DRAFTS: Final = "Wasted drafts are not seen. Normal where nothing drafts."
_NO_START: Final = f"{_NO_SHAPE} Wait until the metrics reach back over a whole window."

COSTS: Final[Mapping[str, str]] = {
    "finished": f"{_NO_SHAPE} {_NO_VERDICT}",
    "running": _NO_SHAPE,
    "waiting": _NO_SHAPE,
    "running now": f"{_NO_SHAPE} Demand cannot be told from completions.",
    "waiting now": f"{_NO_SHAPE} Demand cannot be told from completions.",
    "isl": f"{_NO_SHAPE} Rehearsals do not know how long prompts are.",
    "isl total": f"{_NO_SHAPE} Rehearsals do not know how long prompts are.",
    "osl": f"{_NO_SHAPE} Rehearsals do not know how long answers are.",
    "osl total": f"{_NO_SHAPE} Rehearsals do not know how long answers are.",
    "rejected": "Requests turned away at a queue limit do not count as demand.",
    "ttft": _NO_TTFT,
    "ttft total": _NO_VERDICT,
    "tpot": _NO_TPOT,
    "tpot total": _NO_VERDICT,
    "itl": "The gaps between tokens are not shown.",
    "e2el": "A breach of the E2EL limit begins no study.",
    "output tokens": "An engine that hangs is not found, and live output tokens/s are not shown.",
    "prefix queries": _NO_PREFIX,
    "prefix hits": _NO_PREFIX,
    "draft tokens": _NO_DRAFTS,
    "accepted tokens": _NO_DRAFTS,
    "running at the window's start": _NO_START,
    "waiting at the window's start": _NO_START,
    "kv usage": "Only preemptions and queues tell that the KV cache is too small.",
    "preemptions": "A KV cache that is too small for live traffic is not seen.",
}
"""By signal, what Serinus cannot do without it."""

_UNKNOWN_COST: Final = "A part of the traffic's shape stays unknown."
_BEFORE_S: Final = 600.0
"""The window in which something that is no longer there is looked for."""

_AGES_S: Final = (0.0, 600.0, 3600.0)
_AGES: Final = ("in the last minutes", "ten minutes ago", "an hour ago")


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """One question, asked of a moment ``ago_s`` seconds before now; whether something needs its
    answer, and what its lack costs."""

    name: str
    query: Query
    required: bool
    cost: str
    ago_s: float = 0.0


class State(Enum):
    """FOUND is a complete answer; DOUBLED one that counts an engine more than once; STALE was there
    before; UNREADABLE could not be asked."""

    FOUND = "found"
    DOUBLED = "doubled"
    PARTIAL = "partial"
    STALE = "stale"
    MISSING = "missing"
    UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What became of one signal. ``reason`` says why it was not found; ``unlabelled`` that the
    metric is there, only not under the labels that Serinus asks for."""

    signal: Signal
    state: State
    reason: str = ""
    unlabelled: bool = False

    @property
    def holds(self) -> bool:
        """Whether Serinus holds for it: what is not required may be missing, not half known."""
        if self.signal.required:
            return self.state is not State.FOUND
        return self.state in (State.PARTIAL, State.UNREADABLE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What a source has: findings, and ``labels``: the arm and model of the engines that it shows
    where Serinus' own labels find nothing."""

    findings: tuple[Finding, ...]
    labels: tuple[tuple[tuple[str, str], ...], ...] = ()

    @property
    def complete(self) -> bool:
        """Whether nothing that was looked for makes Serinus hold."""
        return bool(self.findings) and not any(finding.holds for finding in self.findings)


def signals(*, model: str, arm: str, window_s: float) -> tuple[Signal, ...]:
    """Every signal of a shape and of a verdict, required ones first."""
    asked = {
        **judged.arm_queries(model=model, arm=arm, window_s=window_s),
        **profiler.shape_queries(model=model, arm=arm, window_s=window_s),
    }
    required = {*profiler.REQUIRED, *judged.REQUIRED}
    # What must have been there when the window began is what is asked of now, earlier.
    earlier = {name: asked[f"{name.split()[0]} now"] for name in required - asked.keys()}
    found = (
        Signal(
            name=name,
            query=query,
            required=name in required,
            cost=COSTS.get(name, _UNKNOWN_COST),
            ago_s=window_s if name in earlier else 0.0,
        )
        for name, query in (*asked.items(), *sorted(earlier.items()))
    )
    return tuple(sorted(found, key=lambda signal: not signal.required))


async def look(
    source: MetricSource,
    asked: Iterable[Signal],
    *,
    at_s: float,
    patient: MetricSource | None = None,
    fleet: queries.Where = (),
) -> Look:
    """What ``source`` has as of ``at_s`` (Unix seconds).

    ``patient`` is the same server, asked with a long lookback: what only it finds is stale.
    ``fleet`` are the label matches by which others ask for these engines.
    """
    wanted = tuple(asked)
    findings = await asyncio.gather(
        *(
            _finding(signal, source, at_s=at_s - signal.ago_s, patient=patient, fleet=fleet)
            for signal in wanted
        )
    )
    if not any(finding.unlabelled for finding in findings):
        return Look(findings=tuple(findings))
    shown = replace(queries.now(queries.RUNNING, fleet), by=("arm", "model_name"))
    seen = _sample(await source.read(shown, at_s))
    labels = tuple(series.labels for series in seen.series) if seen else ()
    return Look(findings=tuple(findings), labels=labels)


async def _finding(
    signal: Signal,
    source: MetricSource,
    *,
    at_s: float,
    patient: MetricSource | None,
    fleet: queries.Where,
) -> Finding:
    reading = await source.read(signal.query, at_s)
    match reading:
        case Sample():
            again = doubled(reading.series)
            state = State.DOUBLED if again else State.FOUND
            return Finding(signal=signal, state=state, reason=again)
        case Partial():
            return Finding(signal=signal, state=State.PARTIAL, reason=reading.reason)
        case Failed():
            return Finding(signal=signal, state=State.UNREADABLE, reason=reading.reason)
        case NoData():
            pass
    if patient is not None:
        wide = replace(signal.query, window_s=_BEFORE_S)
        before = await asyncio.gather(*(patient.read(wide, at_s - age_s) for age_s in _AGES_S))
        seen = next((age for age, was in zip(_AGES, before, strict=True) if _sample(was)), "")
        if seen:
            return Finding(
                signal=signal, state=State.STALE, reason=f"{reading.reason}; it was there {seen}"
            )
    loose = await source.read(replace(signal.query, where=fleet), at_s)
    return Finding(
        signal=signal,
        state=State.MISSING,
        reason=reading.reason,
        unlabelled=_sample(loose) is not None,
    )


def _sample(reading: Reading) -> Sample | None:
    match reading:
        case Sample():
            return reading
        case Partial():
            return reading.sample
    return None
