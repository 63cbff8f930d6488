"""Whether a rehearsed candidate beats the baseline: measurements in, verdict out, and nothing else.

PASS needs the interval of the objective's ratio wholly above 1 + ``min_effect``, and tails and
error rate without objection (``canary.finding``); FAIL needs a loss proven to be as large, or
proven harm. All else is INCONCLUSIVE. Intervals are two-sided, so a bound errs in half of
1 − ``level`` of cases. They hold what varies inside a run, not what varies between two starts of
one engine, or two draws of a load: ``min_effect`` is there for that. The same input and seed give
the same verdict.
"""

from __future__ import annotations

from typing import NamedTuple

from canary.finding import Finding, Margins, conclude, error_finding, hit_rate_note, tail_finding
from canary.intervals import (
    quantile,
    quantile_difference_interval,
    rate_ratio,
    rate_ratio_interval,
)
from canary.objective import blocks
from domain.slo import SLO
from domain.study import Measurement, Objective
from domain.verdict import Effect, Evidence, Outcome, Verdict

MIN_BLOCKS = 10
TAIL = 0.95
# A rate of less than three requests in all is taken as three: with none seen, up to three may be
# expected at 95 %.
LEAST_COUNT = 3
# A tail's margin is at least this, or a tail of a few milliseconds would fail by the clock's grain.
LEAST_MARGIN_MS = {"ttft_p95_ms": 20.0, "tpot_p95_ms": 2.0}


class _Metric(NamedTuple):
    name: str
    noun: str
    unit: str


_METRICS = {
    Objective.GOODPUT: _Metric("goodput_rps", "Goodput", "requests/s"),
    Objective.THROUGHPUT: _Metric("output_tok_s", "Output", "tokens/s"),
}


def judge(
    candidate: Measurement,
    baseline: Measurement,
    objective: Objective,
    *,
    seed: int,
    slo: SLO | None = None,
    min_effect: float = 0.03,
    min_requests: int = 50,
    level: float = 0.95,
    comparisons: int = 1,
    margins: Margins | None = None,
    start_s: float = 0.0,
    end_s: float = 0.0,
) -> Verdict:
    """Judge one candidate.

    ``comparisons`` is how many candidates are judged against this baseline; each then gets its
    share of the error (Bonferroni). Where goodput is the objective, pass the ``slo``: a tail
    within its limit is no harm then. ``start_s`` and ``end_s`` (Unix seconds) go into the evidence.
    """
    margins = margins or Margins()
    level = 1 - (1 - level) / comparisons
    evidence = Evidence(
        baseline_n=baseline.requests,
        candidate_n=candidate.requests,
        start_s=start_s,
        end_s=end_s,
        notes=(hit_rate_note(candidate.prefix_hit_rate, baseline.prefix_hit_rate),),
    )
    if lacking := _lacking(candidate, baseline, min_requests):
        return Verdict(outcome=Outcome.INCONCLUSIVE, reason=lacking, evidence=evidence)
    rates = {each: _rate(candidate, baseline, each, level, seed) for each in Objective}
    gain = _gain(rates.pop(objective), objective, min_effect)
    other = [Finding(Outcome.PASS, "Shown, not judged.", effect) for effect in rates.values()]
    limits = slo if objective is Objective.GOODPUT else None
    return conclude(
        [gain, *_harms(candidate, baseline, margins, limits, level, seed), *other], evidence
    )


def _lacking(candidate: Measurement, baseline: Measurement, min_requests: int) -> str | None:
    """Why these two cannot be compared at all."""
    if candidate.level != baseline.level:
        return f"The loads differ: {candidate.level} against {baseline.level}."
    for arm, measured in (("candidate", candidate), ("baseline", baseline)):
        if measured.requests < min_requests:
            return f"The {arm} has {measured.requests} requests; {min_requests} are needed."
        if len(measured.blocks) < MIN_BLOCKS:
            return f"The {arm} has {len(measured.blocks)} blocks of time; {MIN_BLOCKS} are needed."
        if not measured.ttft_ms:
            return f"No request of the {arm} got a first token."
    return None


def _rate(
    candidate: Measurement, baseline: Measurement, objective: Objective, level: float, seed: int
) -> Effect:
    """The effect on one rate. Goodput is shown in requests, of the mean length of both arms'."""
    ours, theirs = blocks(candidate, objective), blocks(baseline, objective)
    made = sum(sum(block.output_tokens for block in arm.blocks) for arm in (candidate, baseline))
    tokens = made / (candidate.requests + baseline.requests)
    least = LEAST_COUNT * tokens / min(candidate.seconds, baseline.seconds)
    unit = tokens if objective is Objective.GOODPUT else 1.0
    return Effect(
        metric=_METRICS[objective].name,
        baseline=theirs.rate / unit,
        candidate=ours.rate / unit,
        estimate=rate_ratio(ours, theirs, least=least),
        unit="ratio",
        interval=rate_ratio_interval(ours, theirs, least=least, level=level, seed=seed),
    )


def _gain(effect: Effect, objective: Objective, min_effect: float) -> Finding:
    """Whether the objective rose, or fell, by more than ``min_effect``, proven."""
    low, high = effect.interval.low, effect.interval.high
    _, noun, unit = _METRICS[objective]
    shown = (
        f"{noun} is {effect.candidate:.4g} against {effect.baseline:.4g} {unit}:"
        f" {effect.estimate - 1:+.1%} ({100 * effect.interval.level:.3g} % interval"
        f" {low - 1:+.1%} to {high - 1:+.1%})"
    )
    if low > 1 + min_effect:
        return Finding(Outcome.PASS, f"{shown}, a proven gain of over {min_effect:.0%}.", effect)
    if high < 1 - min_effect:
        return Finding(Outcome.FAIL, f"{shown}, a proven loss of over {min_effect:.0%}.", effect)
    missing = f"no gain of over {min_effect:.0%} is proven"
    return Finding(Outcome.INCONCLUSIVE, f"{shown}; {missing}.", effect)


def _harms(
    candidate: Measurement,
    baseline: Measurement,
    margins: Margins,
    limits: SLO | None,
    level: float,
    seed: int,
) -> list[Finding]:
    """What must not become worse: the error rate and the two tails."""
    found = [
        error_finding(
            (candidate.failed, candidate.requests),
            (baseline.failed, baseline.requests),
            margins.error_rate,
            level,
        )
    ]
    ttft_limit, tpot_limit = (limits.ttft_ms, limits.tpot_ms) if limits else (None, None)
    tails = (
        ("ttft_p95_ms", candidate.ttft_ms, baseline.ttft_ms, margins.ttft, ttft_limit),
        ("tpot_p95_ms", candidate.tpot_ms, baseline.tpot_ms, margins.tpot, tpot_limit),
    )
    for metric, ours, theirs, margin, limit_ms in tails:
        if not ours or not theirs:
            continue
        baseline_ms = quantile(theirs, TAIL)
        found.append(
            tail_finding(
                metric,
                quantile(ours, TAIL),
                baseline_ms,
                quantile_difference_interval(ours, theirs, TAIL, level=level, seed=seed),
                margin_ms=max(margin * baseline_ms, LEAST_MARGIN_MS[metric]),
                limit_ms=limit_ms,
            )
        )
    return found
