"""A step of a rollout passes without harm, fails by proven harm, and holds for want of data."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from agent.store import decode, encode
from canary.live import judge_live, replayed
from canary.variation import variation_of
from domain.errors import BadInput
from domain.live import Compared, LiveArm, LiveTerms
from domain.slo import SLO
from domain.traffic import Distribution
from domain.verdict import Evidence, Outcome, Verdict

TTFT_BOUNDS = (0.02, 0.05, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0)
TPOT_BOUNDS = (0.005, 0.01, 0.015, 0.02, 0.025, 0.03, 0.05, 0.1)
DATA = Path(__file__).resolve().parents[2] / "data"
NOTHING = Distribution(bounds=(0.1, float("inf")), counts=(0.0, 0.0), total=0.0)


def arm(
    seed: int, *, n: int = 200, errors: int = 0, ttft_s: float = 0.3, tpot_s: float = 0.015
) -> LiveArm:
    generator = np.random.default_rng(seed)
    served = n - errors
    return LiveArm(
        requests=n,
        errors=errors,
        ttft=Distribution.of_values(generator.gamma(8, ttft_s / 8, size=served), TTFT_BOUNDS),
        tpot=Distribution.of_values(generator.gamma(20, tpot_s / 20, size=served), TPOT_BOUNDS),
        prefix_hit_rate=0.4,
    )


def judged(candidate: LiveArm, baseline: LiveArm, **options: object) -> Verdict:
    """``options`` are terms, or the queries."""
    queries = options.pop("queries", ())
    terms: dict[str, object] = {"min_requests": 50, **options}
    compared = Compared(candidate=candidate, baseline=baseline, terms=LiveTerms(**terms))  # type: ignore[arg-type]
    return judge_live(compared, start_s=0.0, end_s=60.0, queries=queries)  # type: ignore[arg-type]


def test_arms_of_one_kind_pass_nearly_always_and_never_fail() -> None:
    outcomes = [judged(arm(2 * i), arm(2 * i + 1, n=2000)).outcome for i in range(40)]
    assert outcomes.count(Outcome.PASS) >= 36
    assert outcomes.count(Outcome.FAIL) == 0


def test_a_pass_says_its_numbers() -> None:
    verdict = judged(arm(1), arm(2, n=2000), queries=("requests of both arms",))
    assert verdict.outcome is Outcome.PASS
    assert verdict.reason.startswith("No harm in 200 requests against 2000: error rate 0.0%")
    assert "ttft_p95_ms" in verdict.reason
    assert verdict.evidence is not None
    assert verdict.evidence.queries == ("requests of both arms",)
    assert "40.0%" in verdict.evidence.notes[0]


def test_the_same_input_gives_the_same_verdict() -> None:
    assert judged(arm(1), arm(2)) == judged(arm(1), arm(2))


@pytest.mark.parametrize(("ours", "theirs"), [(49, 2000), (2000, 49), (0, 2000), (0, 0)])
def test_fewer_than_the_minimum_in_either_arm_is_inconclusive(ours: int, theirs: int) -> None:
    """Inconclusive never expires into promotion (argo-rollouts#3850)."""
    verdict = judged(arm(1, n=ours), arm(2, n=theirs))
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "50 are needed" in verdict.reason


def test_no_minimum_still_needs_one_request() -> None:
    assert judged(arm(1, n=0), arm(2), min_requests=0).outcome is Outcome.INCONCLUSIVE


def test_proven_errors_fail_and_a_few_hold() -> None:
    failed = judged(arm(1, errors=20), arm(2, n=2000))
    assert failed.outcome is Outcome.FAIL
    assert failed.reason.startswith("20 of 200 requests failed against 0 of 2000: +10.0 points")
    assert judged(arm(1, errors=3), arm(2, n=2000)).outcome is Outcome.INCONCLUSIVE
    assert judged(arm(1, errors=1), arm(2, n=2000)).outcome is Outcome.PASS


def test_more_errors_than_requests_are_read_as_all() -> None:
    """Two counters are not read at the same instant."""
    assert judged(replace(arm(1), errors=201), arm(2)).outcome is Outcome.FAIL


@pytest.mark.parametrize(
    ("slow", "metric"), [({"ttft_s": 1.2}, "ttft_p95_ms"), ({"tpot_s": 0.045}, "tpot_p95_ms")]
)
def test_a_much_longer_tail_fails(slow: dict[str, float], metric: str) -> None:
    verdict = judged(arm(1, **slow), arm(2, n=2000))  # type: ignore[arg-type]
    assert verdict.outcome is Outcome.FAIL
    assert verdict.reason.startswith(f"{metric} is ")


def test_a_tail_in_the_next_bucket_is_no_more_than_a_histogram_can_tell() -> None:
    """0.49 s and 0.51 s lie in buckets of 250 ms, and their quantiles as far apart."""
    below, above = (Distribution.of_values([at_s] * 2000, TTFT_BOUNDS) for at_s in (0.49, 0.51))
    verdict = judged(replace(arm(1), ttft=above), replace(arm(2), ttft=below))
    assert verdict.outcome is Outcome.PASS
    further = Distribution.of_values([0.99] * 2000, TTFT_BOUNDS)
    verdict = judged(replace(arm(1), ttft=further), replace(arm(2), ttft=below))
    assert verdict.outcome is Outcome.FAIL


def vllm_bounds(version: str, family: str) -> tuple[float, ...]:
    """The finite bucket bounds, in seconds, that a version of vLLM shows for one of its metrics."""
    text = (DATA / f"metrics-{version}.txt").read_text()
    found = re.findall(rf'^vllm:{family}_bucket\{{.*le="([0-9.]+)"', text, re.MULTILINE)
    assert found
    return tuple(map(float, found))


@pytest.mark.parametrize(
    ("bounds", "tail"),
    [
        (vllm_bounds("0.32.0", "time_to_first_token_seconds"), "ttft"),
        (vllm_bounds("0.32.0", "request_time_per_output_token_seconds"), "tpot"),
        (vllm_bounds("0.6.3.post1", "time_to_first_token_seconds"), "ttft"),
    ],
    ids=["ttft of 0.32", "tpot of 0.32", "ttft of 0.6"],
)
def test_a_difference_smaller_than_a_bucket_never_fails(
    bounds: tuple[float, ...], tail: str
) -> None:
    """0.99 s and 1.01 s lie in buckets of 0.25 s and 1.5 s: their quantiles, 1.4 s apart."""

    def at(value_s: float, seed: int) -> LiveArm:
        values = Distribution.of_values([value_s] * 400, bounds)
        return replace(arm(seed), **{tail: values})  # type: ignore[arg-type]

    edges = (0.0, *bounds, 2 * bounds[-1])
    for low, bound, high in zip(edges, edges[1:], edges[2:], strict=False):
        below, above = bound - 0.01 * (bound - low), bound + 0.01 * (high - bound)
        assert judged(at(above, 1), at(below, 2)).outcome is not Outcome.FAIL
        if bound - low > 0.25 * low > 0 and high in bounds:
            verdict = judged(at(above, 1), at(low, 2))
            assert verdict.outcome is Outcome.FAIL, "a whole bucket lies between them"


def test_arms_with_other_buckets_are_held_against_each_other_by_what_both_can_tell() -> None:
    """A candidate of another version, or with buckets of its own, may have much wider ones."""
    wide, narrow = (0.5, 10.0), (0.5, 0.6, 0.7, 0.8, 10.0)
    slow = Distribution.of_values([0.75] * 400, wide)
    fast = Distribution.of_values([0.65] * 400, narrow)
    verdict = judged(replace(arm(1), ttft=slow), replace(arm(2), ttft=fast))
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert verdict.reason.endswith("The histograms' buckets are too wide to prove it.")
    beyond = Distribution.of_values([11.0] * 400, narrow)
    verdict = judged(replace(arm(1), ttft=beyond), replace(arm(2), ttft=fast))
    assert verdict.outcome is Outcome.FAIL
    unknown = replace(arm(1), ttft=Distribution.of_values([12.0] * 400, (0.5, 20.0)))
    assert judged(unknown, replace(arm(2), ttft=beyond)).outcome is Outcome.INCONCLUSIVE


def test_a_longer_tail_within_the_slo_is_no_harm() -> None:
    verdict = judged(arm(1, ttft_s=1.2), arm(2, n=2000), slo=SLO(ttft_ms=3000.0))
    assert verdict.outcome is Outcome.PASS


def test_a_tail_beyond_the_last_bucket_is_not_taken_for_its_bound() -> None:
    verdict = judged(arm(1, ttft_s=9.0), arm(2, ttft_s=9.0))
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "beyond its histogram's last bound" in verdict.reason


def test_a_missing_histogram_holds() -> None:
    """Empty data is no pass (argo-rollouts#1905)."""
    for ours, theirs in ((NOTHING, arm(2).ttft), (arm(1).ttft, NOTHING), (NOTHING, NOTHING)):
        verdict = judged(replace(arm(1), ttft=ours), replace(arm(2), ttft=theirs))
        assert verdict.outcome is Outcome.INCONCLUSIVE
    assert judged(replace(arm(1), tpot=NOTHING), arm(2)).outcome is Outcome.INCONCLUSIVE


def test_answers_of_one_token_have_no_tpot_in_either_arm() -> None:
    verdict = judged(replace(arm(1), tpot=NOTHING), replace(arm(2), tpot=NOTHING))
    assert verdict.outcome is Outcome.PASS


@pytest.mark.parametrize(
    ("few", "outcome"), [((4, 4), Outcome.FAIL), ((2, 2), Outcome.INCONCLUSIVE)]
)
def test_a_burst_of_errors_needs_no_minimum(few: tuple[int, int], outcome: Outcome) -> None:
    errors, requests = few
    verdict = judged(arm(1, n=requests, errors=errors), arm(2, n=2000, errors=4))
    assert verdict.outcome is outcome
    assert ("by chance" in verdict.reason) is (outcome is Outcome.FAIL)


def test_no_burst_is_seen_beside_a_baseline_that_says_too_little() -> None:
    assert judged(arm(1, n=5, errors=5), arm(2, n=20)).outcome is Outcome.INCONCLUSIVE


def test_a_longer_latency_within_one_wide_bucket_is_told_by_its_mean() -> None:
    """Of p95s of 1.1 s and 2.2 s, both between 1 s and 2.5 s, buckets say the same."""
    ours, theirs = (arm(seed, n=2000, ttft_s=ttft_s) for seed, ttft_s in ((1, 1.4), (2, 0.7)))
    verdict = judged(ours, theirs)
    assert verdict.outcome is Outcome.FAIL
    assert verdict.reason.startswith("ttft_mean_ms is ")
    assert judged(ours, theirs, slo=SLO(ttft_ms=2600.0)).outcome is Outcome.PASS


@pytest.mark.parametrize(("much", "metric"), [("cut", "cut"), ("aborted", "given up")])
def test_requests_that_end_otherwise_fail_beyond_their_margin(much: str, metric: str) -> None:
    def ending(seed: int, times: int) -> LiveArm:
        return replace(arm(seed, n=1000), **{much: times})  # type: ignore[arg-type]

    verdict = judged(ending(1, 400), ending(2, 100))
    assert verdict.outcome is Outcome.FAIL
    assert metric in verdict.reason
    assert judged(ending(1, 120), ending(2, 100)).outcome is Outcome.PASS
    assert judged(ending(1, 100), ending(2, 400)).outcome is Outcome.PASS


@pytest.mark.parametrize("much", ["cut", "aborted"])
def test_what_users_do_at_another_time_proves_no_harm(much: str) -> None:
    """One change of the prompts would send a good candidate back."""
    ours, theirs = (replace(arm(s, n=1000), **{much: n}) for s, n in ((1, 400), (2, 100)))  # type: ignore[arg-type]
    compared = Compared(
        candidate=ours,
        baseline=theirs,
        terms=LiveTerms(min_requests=50),
        variation=variation_of([theirs]),
    )
    verdict = judge_live(compared, start_s=0.0, end_s=60.0)
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "Of another time" in verdict.reason
    failing = replace(compared, candidate=replace(ours, errors=100))
    assert judge_live(failing, start_s=0.0, end_s=60.0).outcome is Outcome.FAIL


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (arm(1), arm(2, n=2000)),
        (arm(1, errors=20), arm(2, n=2000)),
        (arm(1, n=4, errors=4), arm(2, n=2000)),
        (arm(1, n=4), arm(2, n=2000)),
        (replace(arm(1), tpot=NOTHING), arm(2)),
        (replace(arm(1), prefix_hit_rate=None), replace(arm(2), aborted=3, cut=7)),
    ],
)
def test_a_stored_verdict_can_be_given_again(ours: LiveArm, theirs: LiveArm) -> None:
    given = judged(ours, theirs, slo=SLO(ttft_ms=300.0), queries=("a query",))
    stored = decode(Verdict, encode(given))
    assert stored.evidence is not None
    assert replayed(stored.evidence) == stored
    assert stored.outcome is given.outcome and stored.reason == given.reason


def test_a_rehearsals_evidence_is_not_judged_as_live_traffic() -> None:
    with pytest.raises(BadInput, match="not of live traffic"):
        replayed(Evidence(baseline_n=1, candidate_n=1, start_s=0.0, end_s=1.0))


def under_load(ours: LiveArm, beside: LiveArm, before: LiveArm) -> Verdict:
    """A candidate that carries more than the baseline beside it, and as much as it did before."""
    compared = Compared(
        candidate=ours,
        baseline=beside,
        as_loaded=before,
        terms=LiveTerms(min_requests=50),
        variation=variation_of([before] * 5),
    )
    return judge_live(compared, start_s=0.0, end_s=60.0)


def test_slower_than_engines_that_carry_less_is_no_harm_where_the_baseline_was_as_slow() -> None:
    """Beside two replicas a lane with the load of one of them gets twice what each has left."""
    ours, light = arm(1, n=2000, ttft_s=0.6), arm(2, n=2000, ttft_s=0.3)
    assert judged(ours, light).outcome is Outcome.FAIL
    verdict = under_load(ours, light, arm(3, n=4000, ttft_s=0.6))
    assert verdict.outcome is Outcome.PASS
    assert under_load(ours, light, arm(3, n=4000, ttft_s=0.25)).outcome is Outcome.FAIL
    few = under_load(ours, light, arm(3, n=40, ttft_s=0.6))
    assert few.outcome is Outcome.INCONCLUSIVE
    assert "Under as much load the baseline served 40 requests; 50 are needed" in few.reason


def test_as_fast_as_engines_that_carry_less_needs_no_time_before() -> None:
    nothing = LiveArm(requests=0, errors=0, ttft=NOTHING, tpot=NOTHING)
    verdict = under_load(arm(1, n=2000), arm(2, n=2000), nothing)
    assert verdict.outcome is Outcome.PASS


def test_how_requests_end_is_compared_with_those_beside_whatever_was_before() -> None:
    before = replace(arm(3, n=4000), errors=0, cut=0)
    outage = under_load(arm(1, n=2000, errors=200), arm(2, n=2000, errors=200), before)
    assert outage.outcome is Outcome.PASS
    ours = replace(arm(1, n=2000), cut=800)
    assert under_load(ours, replace(arm(2, n=2000), cut=200), before).outcome is Outcome.FAIL
    assert under_load(ours, replace(arm(2, n=2000), cut=800), before).outcome is Outcome.PASS


def test_a_verdict_with_a_time_before_can_be_given_again() -> None:
    given = under_load(arm(1, ttft_s=0.6), arm(2), arm(3, n=400, ttft_s=0.6))
    stored = decode(Verdict, encode(given))
    assert stored.evidence is not None
    assert replayed(stored.evidence) == stored == given
