"""Whether a rehearsed candidate beats the baseline: fresh runs in, verdict out, and nothing else.

Each run is of an engine of its own, of equal age, and the arms' runs alternate (``canary.rounds``);
one figure a run is compared, so an interval holds what varies between two starts of one engine and
between two draws of a load. PASS needs the objective's ratio proven above 1 and estimated above
1 + ``min_effect``, and tails and error rate without objection (``canary.finding``); FAIL needs as
large a loss, proven, or proven harm. All else is INCONCLUSIVE. The same input gives the same
verdict.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

from canary.finding import Finding, conclude, error_finding, hit_rate_note, tail_finding
from canary.intervals import RunRatio, quantile, run_ratio
from canary.objective import UNITS, compared, tokens_a_request
from domain.interval import Interval
from domain.live import Margins
from domain.slo import SLO
from domain.study import Measurement, Objective
from domain.verdict import Effect, Evidence, Outcome, Verdict

MIN_EFFECT = 0.03
MIN_RUNS = 2
TAIL = 0.95
# With goodput or cost as the objective a tail within the SLO is no harm, so one beyond it may grow
# little; who asks for throughput alone accepts more. Who asks for latency asks for tails as well:
# they may grow little, also within the SLO.
MARGINS = {
    Objective.GOODPUT: Margins(ttft=0.1, tpot=0.1),
    Objective.THROUGHPUT: Margins(),
    Objective.LATENCY: Margins(ttft=0.1, tpot=0.1),
    Objective.COST: Margins(ttft=0.1, tpot=0.1),
}
# A tail's margin is at least this, or a tail of a few milliseconds would fail by the clock's grain.
LEAST_MARGIN_MS = {"ttft_p95_ms": 20.0, "tpot_p95_ms": 2.0}

LEAST_LATENCY_MS = 0.001
"""A shorter tail, such as none at all by a coarse clock, is taken as this one: ratios need it."""

Runs = Sequence[Measurement]


class _Metric(NamedTuple):
    name: str
    noun: str
    unit: str


_METRICS = {
    Objective.GOODPUT: _Metric("goodput_rps", "Goodput", "requests/s"),
    Objective.THROUGHPUT: _Metric("output_tok_s", "Output", UNITS[Objective.THROUGHPUT]),
    Objective.LATENCY: _Metric("stream_rps", "Speed", UNITS[Objective.LATENCY]),
    Objective.COST: _Metric("capacity_tok_s", "Capacity", UNITS[Objective.COST]),
}


def judge(
    candidate: Runs,
    baseline: Runs,
    objective: Objective,
    *,
    slo: SLO | None = None,
    min_effect: float = MIN_EFFECT,
    min_requests: int = 50,
    level: float = 0.99,
    harm_level: float = 0.9,
    share: float = 1.0,
    margins: Margins | None = None,
    start_s: float = 0.0,
    end_s: float = 0.0,
) -> Verdict:
    """Judge one candidate; ``min_requests`` are those of each run.

    ``level`` is that of the two-sided intervals that prove a gain, a loss or harm, ``harm_level``
    of those that rule out harm, so that harm as large as its margin passes in at most half of
    1 − ``harm_level`` of cases. Several candidates, and several looks at one while its runs come
    in, each have a ``share`` of both errors (Bonferroni). Where the objective is goodput or cost,
    pass the ``slo``: a tail within its limit is no harm then. ``start_s`` and ``end_s`` (Unix
    seconds) go into the evidence.
    """
    level, harm_level = 1 - share * (1 - level), 1 - share * (1 - harm_level)
    evidence = Evidence(
        baseline_n=sum(run.requests for run in baseline),
        candidate_n=sum(run.requests for run in candidate),
        start_s=start_s,
        end_s=end_s,
        notes=(hit_rate_note(_hit_rate(candidate), _hit_rate(baseline)),),
    )
    if lacking := _lacking(candidate, baseline, min_requests):
        return Verdict(outcome=Outcome.INCONCLUSIVE, reason=lacking, evidence=evidence)
    known = {each: _rate(candidate, baseline, each, level) for each in Objective}
    rates = {each: effect for each, effect in known.items() if effect is not None}
    if objective not in rates:
        lacking = f"{_METRICS[objective].noun} is not known of every run."
        return Verdict(outcome=Outcome.INCONCLUSIVE, reason=lacking, evidence=evidence)
    gain = _gain(rates.pop(objective), objective, min_effect)
    other = [Finding(Outcome.PASS, "Shown, not judged.", effect) for effect in rates.values()]
    limits = slo if objective in (Objective.GOODPUT, Objective.COST) else None
    harms = _harms(candidate, baseline, margins or MARGINS[objective], limits, level, harm_level)
    return conclude([gain, *harms, *other], evidence)


def may_yet_pass(verdict: Verdict, objective: Objective, min_effect: float = MIN_EFFECT) -> bool:
    """Whether more runs could still prove a gain: it is undecided, and not ruled out. Runs that
    cannot be compared are not mended by more of them."""
    if verdict.outcome is not Outcome.INCONCLUSIVE:
        return False
    name = _METRICS[objective].name
    gain = next((effect for effect in verdict.effects if effect.metric == name), None)
    return gain is not None and gain.interval.high >= 1 + min_effect


def _lacking(candidate: Runs, baseline: Runs, min_requests: int) -> str | None:
    """Why these cannot be compared at all."""
    levels = {run.level for run in chain(candidate, baseline)}
    if len(levels) > 1:
        return f"The loads differ: {' against '.join(sorted(levels))}."
    for arm, runs in (("candidate", candidate), ("baseline", baseline)):
        if len(runs) < MIN_RUNS:
            return f"The {arm} has {len(runs)} runs; {MIN_RUNS} are needed."
        fewest = min(run.requests for run in runs)
        if fewest < min_requests:
            return f"A run of the {arm} has {fewest} requests; {min_requests} are needed."
        if not all(run.ttft_ms for run in runs):
            return f"No request of a run of the {arm} got a first token."
    return None


def _hit_rate(runs: Runs) -> float | None:
    rates = [run.prefix_hit_rate for run in runs if run.prefix_hit_rate is not None]
    return sum(rates) / len(rates) if rates else None


def _rate(candidate: Runs, baseline: Runs, objective: Objective, level: float) -> Effect | None:
    """The effect on one rate; ``None`` where it is unknown. Goodput is shown in requests, of the
    mean length of both arms'."""
    arms = compared(candidate, baseline, objective)
    if arms is None:
        return None
    ratio = run_ratio(arms.candidate, arms.baseline, level=level)
    unit = tokens_a_request((*candidate, *baseline)) if objective is Objective.GOODPUT else 1.0
    return Effect(
        metric=_METRICS[objective].name,
        baseline=ratio.baseline / unit,
        candidate=ratio.candidate / unit,
        estimate=ratio.estimate,
        unit="ratio",
        interval=ratio.interval,
    )


def _gain(effect: Effect, objective: Objective, min_effect: float) -> Finding:
    """Whether the objective rose, or fell, by more than ``min_effect``, proven to be no chance."""
    low, high = effect.interval.low, effect.interval.high
    _, noun, unit = _METRICS[objective]
    shown = (
        f"{noun} is {effect.candidate:.4g} against {effect.baseline:.4g} {unit}:"
        f" {effect.estimate - 1:+.1%} ({effect.interval.percent} interval"
        f" {low - 1:+.1%} to {high - 1:+.1%}, {effect.interval.n} runs)"
    )
    if low > 1 and effect.estimate >= 1 + min_effect:
        return Finding(Outcome.PASS, f"{shown}, a proven gain.", effect)
    if high < 1 and effect.estimate <= 1 - min_effect:
        return Finding(Outcome.FAIL, f"{shown}, a proven loss.", effect)
    if high < 1 + min_effect:
        return Finding(
            Outcome.INCONCLUSIVE, f"{shown}; no gain of {min_effect:.0%} is left possible.", effect
        )
    missing = "it may be chance" if low <= 1 else f"less than {min_effect:.0%}"
    return Finding(Outcome.INCONCLUSIVE, f"{shown}; no gain is proven, {missing}.", effect)


def _harms(
    candidate: Runs,
    baseline: Runs,
    margins: Margins,
    limits: SLO | None,
    level: float,
    harm_level: float,
) -> list[Finding]:
    """What must not become worse: the error rate and the two tails."""
    ttft_limit, tpot_limit = (limits.ttft_ms, limits.tpot_ms) if limits else (None, None)
    tails = (
        _Tail(
            "ttft_p95_ms",
            [run.ttft_ms for run in candidate],
            [run.ttft_ms for run in baseline],
            margins.ttft,
            ttft_limit,
        ),
        _Tail(
            "tpot_p95_ms",
            [run.tpot_ms for run in candidate],
            [run.tpot_ms for run in baseline],
            margins.tpot,
            tpot_limit,
        ),
    )
    errors = error_finding(_errors(candidate), _errors(baseline), margins.error_rate, level)
    # Answers of one token have no TPOT.
    known = [tail for tail in tails if all((*tail.candidate, *tail.baseline))]
    return [errors, *(_tail(tail, level, harm_level) for tail in known)]


def _errors(runs: Runs) -> tuple[int, int]:
    return sum(run.failed for run in runs), sum(run.requests for run in runs)


class _Tail(NamedTuple):
    """Latencies run by run, in ms; the margin as a share of the baseline's p95; the SLO's limit."""

    metric: str
    candidate: Sequence[Sequence[float]]
    baseline: Sequence[Sequence[float]]
    margin: float
    limit_ms: float | None


def _tail(tail: _Tail, level: float, harm_level: float) -> Finding:
    ours, theirs = (
        [max(quantile(run, TAIL), LEAST_LATENCY_MS) for run in arm]
        for arm in (tail.candidate, tail.baseline)
    )
    proof, careful = (run_ratio(ours, theirs, level=each) for each in (level, harm_level))
    return tail_finding(
        tail.metric,
        proof.candidate,
        proof.baseline,
        _difference(proof),
        margin_ms=max(tail.margin * proof.baseline, LEAST_MARGIN_MS[tail.metric]),
        limit_ms=tail.limit_ms,
        careful=_difference(careful),
    )


def _difference(ratio: RunRatio) -> Interval:
    """The ratio's interval as one of the difference, in the figures' own unit."""
    return replace(
        ratio.interval,
        low=ratio.baseline * (ratio.interval.low - 1),
        high=ratio.baseline * (ratio.interval.high - 1),
    )
