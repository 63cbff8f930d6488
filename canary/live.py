"""Whether a rollout's candidate harms live traffic: both arms over one window, verdict out.

Nothing has to be better here: the gain was proven in the rehearsal, and live load differs between
the arms by design. PASS means no objection with enough requests in both arms; FAIL means that harm
beyond the margins is proven. A share of errors below the margin cannot be *shown* with the few
requests of a first step, so PASS asks only that the estimate lies within the margin and worse is
not proven. It reads no metrics; the caller builds the arms from complete answers only.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from scipy.stats import binom

from canary.finding import (
    Finding,
    conclude,
    error_finding,
    hit_rate_note,
    share_finding,
    tail_finding,
)
from canary.intervals import (
    histogram_mean_difference_interval,
    histogram_quantile_difference_interval,
    proportion_difference_interval,
    proportion_interval,
)
from canary.looks import Look
from canary.variation import SAME_TIME, Elsewhen
from domain.errors import BadInput
from domain.live import Compared, LiveArm, LiveTerms, Variation
from domain.slo import SLO
from domain.traffic import Bounds, Distribution
from domain.verdict import Evidence, Outcome, Verdict

TAIL = 0.95

BURST = 1e-6
"""How rare a burst of errors must be by chance, at one look, to prove harm before there are enough
requests."""


def judge_live(
    compared: Compared,
    *,
    start_s: float,
    end_s: float,
    queries: tuple[str, ...] = (),
    notes: tuple[str, ...] = (),
) -> Verdict:
    """Judge the window from ``start_s`` to ``end_s`` (Unix seconds), which began with the step.

    It may be asked as often as there is news: intervals hold at all times at once, see
    ``canary.looks``. A tail's margin is a share of the baseline's p95 plus the width of the
    histogram bucket it lies in, since a histogram knows no better; the mean, which needs no bucket,
    has the share alone. Where the arms are of two times, see ``canary.variation``, intervals hold
    what these differ by. Nor is harm proven where the two tails may lie closer, anywhere in their
    buckets: vLLM's grow sixfold in width at 1 s. With an SLO, a tail within its limit is no harm.
    ``queries`` and ``notes`` are kept as evidence.
    """
    candidate, baseline = compared.candidate, compared.baseline
    return replayed(
        Evidence(
            baseline_n=baseline.requests,
            candidate_n=candidate.requests,
            start_s=start_s,
            end_s=end_s,
            queries=queries,
            notes=(hit_rate_note(candidate.prefix_hit_rate, baseline.prefix_hit_rate), *notes),
            compared=compared,
        )
    )


def replayed(evidence: Evidence) -> Verdict:
    """The verdict that this evidence of live traffic gives, today as then."""
    compared = evidence.compared
    if compared is None:
        raise BadInput("This verdict is not of live traffic; its evidence cannot be judged anew.")
    candidate, baseline, terms = compared.candidate, compared.baseline, compared.terms
    least = max(terms.min_requests, 1)
    if candidate.requests and baseline.requests >= least:
        burst = _burst(candidate, baseline, terms)
        if burst is not None:
            return conclude([burst], evidence)
    for arm, seen in (("candidate", candidate), ("baseline", baseline)):
        if seen.requests < least:
            return Verdict(
                outcome=Outcome.INCONCLUSIVE,
                reason=f"The {arm} served {seen.requests} requests in"
                f" {evidence.end_s - evidence.start_s:.0f} s; {least} are needed.",
                evidence=evidence,
            )
    found = [*_shares(compared, _look(compared, baseline))]
    if terms.warming:
        sentence = "The cache is yet warming for the sessions that came with the step."
        return conclude([*found, Finding(Outcome.INCONCLUSIVE, sentence)], evidence)
    for metric, limit_ms in _limits(terms.slo):
        found += _latency(metric, compared, limit_ms)
    if all(finding.outcome is Outcome.PASS for finding in found):
        found.insert(0, Finding(Outcome.PASS, _no_harm(candidate, baseline, found)))
    return conclude(found, evidence)


def _look(compared: Compared, baseline: LiveArm) -> Look:
    terms, least = compared.terms, max(compared.terms.min_requests, 1)
    smaller = min(compared.candidate.requests, baseline.requests)
    return Look.at(smaller, first=least, level=terms.level)


def _limits(slo: SLO | None) -> tuple[tuple[str, float | None], ...]:
    return ("ttft", slo.ttft_ms if slo else None), ("tpot", slo.tpot_ms if slo else None)


def _errors(arm: LiveArm) -> tuple[int, int]:
    # Two counters are never read at the same instant, so errors can run ahead by one or two.
    return min(max(arm.errors, 0), arm.requests), arm.requests


def _burst(candidate: LiveArm, baseline: LiveArm, terms: LiveTerms) -> Finding | None:
    """Errors that even a few requests prove: more of them than chance gives in ``BURST`` of all
    looks, were the candidate as bad as the baseline may be and the margin worse."""
    ours, theirs = _errors(candidate), _errors(baseline)
    level = 1 - 2 * BURST
    worst = min(1.0, proportion_interval(*theirs, level=level).high + terms.margins.error_rate)
    if ours[1] > terms.min_requests or float(binom.sf(ours[0] - 1, ours[1], worst)) > BURST:
        return None
    finding = error_finding(ours, theirs, terms.margins.error_rate, level)
    chance = f"Such a burst comes by chance at less than one look in {1 / BURST:,.0f}."
    return finding._replace(outcome=Outcome.FAIL, sentence=f"{finding.sentence} {chance}")


def _shares(compared: Compared, look: Look) -> Iterator[Finding]:
    """How requests ended: failed, cut for length, given up by the client. The last two are much the
    users' own doing, which differs from one time to another: there they prove nothing."""
    arms, margins = (compared.candidate, compared.baseline), compared.terms.margins
    given_up = [(max(arm.aborted, 0), arm.requests + max(arm.aborted, 0)) for arm in arms]
    cut = [(min(max(arm.cut, 0), arm.requests), arm.requests) for arm in arms]
    for metric, told, (ours, theirs), margin in (
        ("error_rate", "failed", [_errors(arm) for arm in arms], margins.error_rate),
        ("cut_rate", "were cut for length", cut, margins.cut),
        ("abort_rate", "were given up by the client", given_up, margins.aborted),
    ):
        interval = proportion_difference_interval(*ours, *theirs, level=look.level)
        finding = share_finding(metric, told, ours, theirs, interval, margin=margin)
        another_time = compared.variation is not None and compared.as_loaded is None
        users = metric != "error_rate" and another_time
        if users and finding.outcome is Outcome.FAIL:
            unproven = f"{finding.sentence} Of another time, the baseline's prove nothing."
            finding = finding._replace(outcome=Outcome.INCONCLUSIVE, sentence=unproven)
        yield finding


def _no_harm(candidate: LiveArm, baseline: LiveArm, found: list[Finding]) -> str:
    sizes = f"{candidate.requests} requests against {baseline.requests}"
    effects = {f.effect.metric: f.effect for f in found if f.effect is not None}
    errors = effects["error_rate"]
    told = [f"error rate {errors.candidate:.1%} against {errors.baseline:.1%}"]
    told += [
        f"{metric} {effects[metric].candidate:.1f} against {effects[metric].baseline:.1f}"
        for metric in ("ttft_p95_ms", "tpot_p95_ms")
        if metric in effects
    ]
    return f"No harm in {sizes}: {', '.join(told)}."


def _latency(metric: str, compared: Compared, limit_ms: float | None) -> Sequence[Finding]:
    """Judge one latency. A candidate whose engine carries more than those beside it may be slower
    than they are: then it is held against the baseline as it was under as much."""
    as_loaded, least = compared.as_loaded, max(compared.terms.min_requests, 1)
    if as_loaded is None:
        varies = compared.variation
        return [*_against(compared.baseline, metric, compared, limit_ms, varies)]
    beside = [*_against(compared.baseline, metric, compared, limit_ms, None)]
    if all(finding.outcome is Outcome.PASS for finding in beside):
        return beside
    if as_loaded.requests < least:
        few = f"Under as much load the baseline served {as_loaded.requests} requests;"
        return [Finding(Outcome.INCONCLUSIVE, f"{few} {least} are needed to compare {metric}.")]
    return [*_against(as_loaded, metric, compared, limit_ms, compared.variation)]


def _against(
    arm: LiveArm,
    metric: str,
    compared: Compared,
    limit_ms: float | None,
    varies: Variation | None,
) -> Iterator[Finding]:
    """Judge one latency against this baseline's by its tail and, where that is beyond the SLO, by
    its mean. Unknown in one arm is undecided, unknown in both says nothing."""
    look = _look(compared, arm)
    candidate, baseline = (
        getattr(each, metric).times(1000.0) for each in (compared.candidate, arm)
    )
    tail, margin = f"{metric}_p95_ms", getattr(compared.terms.margins, metric)
    if not candidate.n and not baseline.n:
        # TPOT does not exist where every answer is one token long; TTFT always does.
        outcome = Outcome.INCONCLUSIVE if metric == "ttft" else Outcome.PASS
        yield Finding(outcome, f"Neither arm has any {tail}.")
        return
    if not candidate.n or not baseline.n:
        missing = "baseline" if candidate.n else "candidate"
        yield Finding(Outcome.INCONCLUSIVE, f"The {missing} has no {tail}.")
        return
    when = SAME_TIME
    if varies is not None:
        when = Elsewhen.of(getattr(varies, metric), varies.windows, look.single)
    finding = _tail(tail, candidate, baseline, margin, limit_ms, look, when, compared.terms.seed)
    yield finding
    ours, theirs = candidate.mean, baseline.mean
    assert finding.effect is not None and ours is not None and theirs is not None
    if limit_ms is None or finding.effect.candidate > limit_ms:
        yield tail_finding(
            f"{metric}_mean_ms",
            ours,
            theirs,
            when.widened(
                histogram_mean_difference_interval(candidate, baseline, level=look.level),
                ours - theirs,
                theirs,
            ),
            margin_ms=margin * theirs,
            limit_ms=None,
        )


def _tail(
    metric: str,
    candidate: Distribution,
    baseline: Distribution,
    margin: float,
    limit_ms: float | None,
    look: Look,
    when: Elsewhen,
    seed: int,
) -> Finding:
    """Judge one tail of histograms in milliseconds, neither empty."""
    ours, theirs = candidate.quantile(TAIL), baseline.quantile(TAIL)
    our_bucket, their_bucket = candidate.quantile_bounds(TAIL), baseline.quantile_bounds(TAIL)
    assert ours is not None and theirs is not None
    assert our_bucket is not None and their_bucket is not None
    bootstrap = histogram_quantile_difference_interval(
        candidate, baseline, TAIL, level=look.single, seed=seed
    )
    interval = when.widened(look.widened(bootstrap, ours - theirs), ours - theirs, theirs)
    share_ms = margin * theirs
    finding = tail_finding(
        metric,
        ours,
        theirs,
        interval,
        margin_ms=share_ms + _width(their_bucket),
        limit_ms=limit_ms,
    )
    unknown_ms = (ours - our_bucket.low) + (their_bucket.high - theirs)
    if finding.outcome is Outcome.FAIL and interval.low - unknown_ms <= share_ms:
        unproven = f"{finding.sentence} The histograms' buckets are too wide to prove it."
        return finding._replace(outcome=Outcome.INCONCLUSIVE, sentence=unproven)
    if finding.outcome is Outcome.PASS and math.isinf(our_bucket.high):
        beyond = f"The candidate's {metric} lies beyond its histogram's last bound"
        return finding._replace(outcome=Outcome.INCONCLUSIVE, sentence=f"{beyond}, {ours:.0f} ms.")
    return finding


def _width(bucket: Bounds) -> float:
    """Zero where it has no end: how far it reaches is not known."""
    return 0.0 if math.isinf(bucket.high) else bucket.high - bucket.low
