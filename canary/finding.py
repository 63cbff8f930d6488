"""One metric judged: the effect, what follows from it and why; several findings make a verdict.

The rules here are the same for a rehearsal and for live traffic. Of a metric that must not become
worse, worse is proven where its interval lies wholly beyond the margin; within the margin by
estimate and not proven worse is good enough, but for a rehearsal's tails, which can be measured
until worse is ruled out; anything between is undecided.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from canary.intervals import proportion_difference_interval
from domain.interval import Interval
from domain.verdict import Effect, Evidence, Outcome, Verdict


class Finding(NamedTuple):
    """What one metric says; ``sentence`` has the numbers. ``effect`` is None where it is unknown.

    PASS is no objection, FAIL proven harm (or, of the objective, proven loss).
    """

    outcome: Outcome
    sentence: str
    effect: Effect | None = None


def error_finding(
    candidate: tuple[int, int], baseline: tuple[int, int], margin: float, level: float
) -> Finding:
    """Judge the error rates of two arms, each (errors, requests) with at least one request."""
    interval = proportion_difference_interval(*candidate, *baseline, level=level)
    return share_finding("error_rate", "failed", candidate, baseline, interval, margin=margin)


def share_finding(
    metric: str,
    told: str,
    candidate: tuple[int, int],
    baseline: tuple[int, int],
    interval: Interval,
    *,
    margin: float,
) -> Finding:
    """Judge the difference of two shares, each (hits, requests) with at least one request, of what
    a request should not do; ``told`` says that in the past tense."""
    ours, theirs = candidate[0] / candidate[1], baseline[0] / baseline[1]
    effect = Effect(
        metric=metric,
        baseline=theirs,
        candidate=ours,
        estimate=ours - theirs,
        unit="difference",
        interval=interval,
    )
    bounds = f"{interval.percent} interval {100 * interval.low:+.1f} to {100 * interval.high:+.1f}"
    sentence = (
        f"{candidate[0]} of {candidate[1]} requests {told} against {baseline[0]} of {baseline[1]}:"
        f" {100 * (ours - theirs):+.1f} points ({bounds}), margin {100 * margin:g}."
    )
    return Finding(_harm(ours - theirs, interval, margin), sentence, effect)


def tail_finding(
    metric: str,
    candidate_ms: float,
    baseline_ms: float,
    interval: Interval,
    *,
    margin_ms: float,
    limit_ms: float | None,
    careful: Interval | None = None,
) -> Finding:
    """Judge a latency tail by its difference in milliseconds.

    ``limit_ms`` is the SLO's limit on this latency: a tail within it harms nobody, however much
    longer than the baseline's. With a ``careful`` interval harm must be ruled out: all of that one
    lies within the margin, not the estimate alone.
    """
    difference = candidate_ms - baseline_ms
    outcome = _harm(difference, interval, margin_ms)
    bounds = f"{interval.percent} interval {interval.low:+.1f} to {interval.high:+.1f}"
    sentence = (
        f"{metric} is {candidate_ms:.1f} against {baseline_ms:.1f}: {difference:+.1f} ms"
        f" ({bounds}), margin {margin_ms:.1f} ms"
    )
    if careful is not None and outcome is Outcome.PASS and careful.high > margin_ms:
        outcome = Outcome.INCONCLUSIVE
        sentence += f", and up to {careful.high:+.1f} is not ruled out at {careful.percent}"
    if limit_ms is not None:
        within = candidate_ms <= limit_ms
        sentence += f", {'within' if within else 'beyond'} the SLO's {limit_ms:g} ms"
        outcome = Outcome.PASS if within else outcome
    effect = Effect(
        metric=metric,
        baseline=baseline_ms,
        candidate=candidate_ms,
        estimate=difference,
        unit="difference",
        interval=interval,
    )
    return Finding(outcome, f"{sentence}.", effect)


def _harm(estimate: float, interval: Interval, margin: float) -> Outcome:
    if interval.low > margin:
        return Outcome.FAIL
    return Outcome.PASS if estimate <= margin else Outcome.INCONCLUSIVE


def conclude(
    findings: Sequence[Finding], evidence: Evidence, shown: Sequence[Effect] = ()
) -> Verdict:
    """Fail if any finding fails, else inconclusive if any is, else pass, in the first one's words.

    The findings stand in order of weight: the first that decides gives the reason. Effects that
    are only ``shown`` decide nothing.
    """
    outcomes = {finding.outcome for finding in findings}
    for outcome in (Outcome.FAIL, Outcome.INCONCLUSIVE, Outcome.PASS):
        if outcome in outcomes:
            break
    return Verdict(
        outcome=outcome,
        reason=next(finding.sentence for finding in findings if finding.outcome is outcome),
        effects=(*(f.effect for f in findings if f.effect is not None), *shown),
        evidence=evidence,
    )


def hit_rate_note(candidate: float | None, baseline: float | None) -> str:
    """Both arms' prefix-cache hit rates: latencies at unlike rates are not like for like."""

    def shown(rate: float | None) -> str:
        return "unknown" if rate is None else f"{rate:.1%}"

    return f"Prefix cache hit rate: candidate {shown(candidate)}, baseline {shown(baseline)}."
