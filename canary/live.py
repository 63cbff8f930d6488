"""Whether a rollout's candidate harms live traffic: both arms over one window, verdict out.

Nothing has to be better here: the gain was proven in the rehearsal, and live load differs between
the arms by design. PASS means no objection with enough requests in both arms; FAIL means that harm
beyond the margins is proven. A share of errors below the margin cannot be *shown* with the few
requests of a first step, so PASS asks only that the estimate lies within the margin and worse is
not proven. It reads no metrics; the caller builds the arms from complete answers only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from canary.finding import Finding, Margins, conclude, error_finding, hit_rate_note, tail_finding
from canary.intervals import histogram_quantile_difference_interval
from domain.slo import SLO
from domain.traffic import Distribution
from domain.verdict import Evidence, Outcome, Verdict

TAIL = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveArm:
    """What one arm did in the window. ``errors`` are among ``requests``; histograms in seconds."""

    requests: int
    errors: int
    ttft: Distribution
    tpot: Distribution
    prefix_hit_rate: float | None = None


class _Bucket(NamedTuple):
    """The bounds of a histogram's bucket; ``upper`` may be infinite."""

    lower: float
    upper: float

    @property
    def width(self) -> float:
        """Zero where it has no end: how far it reaches is not known."""
        return 0.0 if math.isinf(self.upper) else self.upper - self.lower


def judge_live(
    candidate: LiveArm,
    baseline: LiveArm,
    *,
    min_requests: int,
    start_s: float,
    end_s: float,
    margins: Margins | None = None,
    slo: SLO | None = None,
    level: float = 0.95,
    seed: int = 0,
    queries: tuple[str, ...] = (),
) -> Verdict:
    """Judge the window from ``start_s`` to ``end_s`` (Unix seconds).

    A tail's margin is a share of the baseline's p95 plus the width of the histogram bucket it lies
    in, since a histogram knows no better. Nor is harm proven where the two tails may lie closer,
    anywhere in their buckets: vLLM's grow sixfold in width at 1 s. With an ``slo``, a tail within
    its limit is no harm. ``queries`` are kept as evidence.
    """
    margins = margins or Margins()
    evidence = Evidence(
        baseline_n=baseline.requests,
        candidate_n=candidate.requests,
        start_s=start_s,
        end_s=end_s,
        queries=queries,
        notes=(hit_rate_note(candidate.prefix_hit_rate, baseline.prefix_hit_rate),),
    )
    for arm, seen in (("candidate", candidate), ("baseline", baseline)):
        if seen.requests < max(min_requests, 1):
            return Verdict(
                outcome=Outcome.INCONCLUSIVE,
                reason=f"The {arm} served {seen.requests} requests in {end_s - start_s:.0f} s;"
                f" {max(min_requests, 1)} are needed.",
                evidence=evidence,
            )
    ttft_limit, tpot_limit = (slo.ttft_ms, slo.tpot_ms) if slo else (None, None)
    tails = (
        ("ttft_p95_ms", candidate.ttft, baseline.ttft, margins.ttft, ttft_limit),
        ("tpot_p95_ms", candidate.tpot, baseline.tpot, margins.tpot, tpot_limit),
    )
    found = [
        error_finding(_errors(candidate), _errors(baseline), margins.error_rate, level),
        *(
            _tail(metric, ours, theirs, margin, limit_ms, level, seed)
            for metric, ours, theirs, margin, limit_ms in tails
        ),
    ]
    if all(finding.outcome is Outcome.PASS for finding in found):
        found.insert(0, Finding(Outcome.PASS, _no_harm(candidate, baseline, found)))
    return conclude(found, evidence)


def _errors(arm: LiveArm) -> tuple[int, int]:
    # Two counters are never read at the same instant, so errors can run ahead by one or two.
    return min(max(arm.errors, 0), arm.requests), arm.requests


def _no_harm(candidate: LiveArm, baseline: LiveArm, found: list[Finding]) -> str:
    sizes = f"{candidate.requests} requests against {baseline.requests}"
    effects = [finding.effect for finding in found if finding.effect is not None]
    tails = [f"{e.metric} {e.candidate:.1f} against {e.baseline:.1f}" for e in effects[1:]]
    errors = f"error rate {effects[0].candidate:.1%} against {effects[0].baseline:.1%}"
    return f"No harm in {sizes}: {', '.join([errors, *tails])}."


def _tail(
    metric: str,
    candidate: Distribution,
    baseline: Distribution,
    margin: float,
    limit_ms: float | None,
    level: float,
    seed: int,
) -> Finding:
    """Judge one tail; unknown in one arm is undecided, unknown in both says nothing."""
    ours, theirs = candidate.quantile(TAIL), baseline.quantile(TAIL)
    if ours is None and theirs is None:
        # TPOT does not exist where every answer is one token long; TTFT always does.
        outcome = Outcome.INCONCLUSIVE if metric.startswith("ttft") else Outcome.PASS
        return Finding(outcome, f"Neither arm has any {metric}.")
    if ours is None or theirs is None:
        arm = "candidate" if ours is None else "baseline"
        return Finding(Outcome.INCONCLUSIVE, f"The {arm} has no {metric}.")
    interval = histogram_quantile_difference_interval(
        _in_ms(candidate), _in_ms(baseline), TAIL, level=level, seed=seed
    )
    our_bucket, their_bucket = _bucket(candidate), _bucket(baseline)
    share_ms = 1000 * margin * theirs
    finding = tail_finding(
        metric,
        1000 * ours,
        1000 * theirs,
        interval,
        margin_ms=share_ms + 1000 * their_bucket.width,
        limit_ms=limit_ms,
    )
    unknown_ms = 1000 * ((ours - our_bucket.lower) + (their_bucket.upper - theirs))
    if finding.outcome is Outcome.FAIL and interval.low - unknown_ms <= share_ms:
        unproven = f"{finding.sentence} The histograms' buckets are too wide to prove it."
        return finding._replace(outcome=Outcome.INCONCLUSIVE, sentence=unproven)
    if finding.outcome is Outcome.PASS and math.isinf(our_bucket.upper):
        beyond = f"The candidate's {metric} lies beyond its histogram's last bound"
        return finding._replace(
            outcome=Outcome.INCONCLUSIVE, sentence=f"{beyond}, {1000 * ours:.0f} ms."
        )
    return finding


def _in_ms(seconds: Distribution) -> Distribution:
    return Distribution(
        bounds=tuple(1000 * bound for bound in seconds.bounds),
        counts=seconds.counts,
        total=1000 * seconds.total,
    )


def _bucket(values: Distribution) -> _Bucket:
    """The bucket that the tail lies in; ``values`` are not empty."""
    rank, below, lower = TAIL * values.n, 0.0, 0.0
    for bound, count in zip(values.bounds, values.counts, strict=True):
        below += count
        if count > 0 and below >= rank:
            return _Bucket(lower, bound)
        lower = bound
    return _Bucket(lower, math.inf)
