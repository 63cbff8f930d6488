"""A step of a rollout passes without harm, fails by proven harm, and holds for want of data."""

from dataclasses import replace

import numpy as np
import pytest

from canary.live import LiveArm, judge_live
from domain.slo import SLO
from domain.traffic import Distribution
from domain.verdict import Outcome, Verdict

TTFT_BOUNDS = (0.02, 0.05, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0)
TPOT_BOUNDS = (0.005, 0.01, 0.015, 0.02, 0.025, 0.03, 0.05, 0.1)
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
    settings: dict[str, object] = {"min_requests": 50, "start_s": 0.0, "end_s": 60.0, **options}
    return judge_live(candidate, baseline, **settings)  # type: ignore[arg-type]


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
