"""The judge passes proven gains, fails proven harm, and holds in all other cases."""

from dataclasses import replace

import numpy as np
import pytest

from canary.finding import Margins
from canary.judge import judge
from domain.slo import SLO
from domain.study import Block, Measurement, Objective
from domain.verdict import Outcome, Verdict


def measured(
    seed: int,
    *,
    per_block: float = 40.0,
    good: float = 1.0,
    failed: int = 0,
    ttft_ms: float = 200.0,
    tpot_ms: float = 20.0,
    blocks: int = 20,
    noise: float = 0.04,
) -> Measurement:
    """Blocks of three seconds whose requests vary by ``noise``, each of 100 output tokens."""
    generator = np.random.default_rng(seed)
    requests = np.maximum(generator.normal(per_block, noise * per_block, size=blocks), 0)
    counts = [round(count) for count in requests]
    n = sum(counts)
    made = [
        Block(seconds=3.0, requests=c, good=round(good * c), failed=0, output_tokens=100.0 * c)
        for c in counts
    ]
    return Measurement(
        level="48 streams",
        seed=seed,
        requests=n,
        failed=failed,
        blocks=tuple(made),
        ttft_ms=tuple(generator.gamma(20, ttft_ms / 20, size=n)),
        tpot_ms=tuple(generator.gamma(50, tpot_ms / 50, size=n)),
        prefix_hit_rate=0.5,
    )


def judged(candidate: Measurement, baseline: Measurement, **options: object) -> Verdict:
    settings: dict[str, object] = {"objective": Objective.GOODPUT, "seed": 1, **options}
    return judge(candidate, baseline, **settings)  # type: ignore[arg-type]


def test_arms_of_one_kind_neither_pass_nor_fail() -> None:
    outcomes = [judged(measured(2 * i), measured(2 * i + 1), seed=i).outcome for i in range(16)]
    assert outcomes.count(Outcome.PASS) == 0
    assert outcomes.count(Outcome.FAIL) == 0


def test_ten_percent_more_is_found_nearly_always() -> None:
    outcomes = [
        judged(measured(2 * i, per_block=44), measured(2 * i + 1), seed=i).outcome
        for i in range(16)
    ]
    assert outcomes.count(Outcome.PASS) >= 14
    assert outcomes.count(Outcome.FAIL) == 0


def test_the_same_input_and_seed_give_the_same_verdict() -> None:
    candidate, baseline = measured(1, per_block=44), measured(2)
    assert judged(candidate, baseline) == judged(candidate, baseline)


def test_a_pass_says_its_numbers_and_shows_every_effect() -> None:
    verdict = judged(measured(1, per_block=60), measured(2), start_s=10.0, end_s=130.0)
    assert verdict.outcome is Outcome.PASS
    assert verdict.reason.startswith("Goodput is ")
    assert "95 % interval" in verdict.reason
    assert {effect.metric for effect in verdict.effects} == {
        "goodput_rps",
        "output_tok_s",
        "ttft_p95_ms",
        "tpot_p95_ms",
        "error_rate",
    }
    assert verdict.evidence is not None
    assert (verdict.evidence.start_s, verdict.evidence.end_s) == (10.0, 130.0)
    assert "50.0%" in verdict.evidence.notes[0]


def test_less_goodput_fails() -> None:
    verdict = judged(measured(1, per_block=30), measured(2))
    assert verdict.outcome is Outcome.FAIL
    assert "a proven loss of over 3%" in verdict.reason


def test_a_small_gain_is_inconclusive() -> None:
    verdict = judged(measured(1, per_block=40.8, noise=0.01), measured(2, noise=0.01))
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "no gain of over 3% is proven" in verdict.reason


def test_a_small_loss_is_inconclusive_however_sure() -> None:
    """Two draws of one load differ by as much."""
    verdict = judged(
        measured(1, per_block=198, noise=0.001), measured(2, per_block=200, noise=0.001)
    )
    assert verdict.effects[0].interval.high < 1
    assert verdict.outcome is Outcome.INCONCLUSIVE


def test_objectives_differ() -> None:
    """More tokens a second, fewer of them in time: a gain of throughput and a loss of goodput."""
    candidate, baseline = measured(1, per_block=60, good=0.4), measured(2)
    assert judged(candidate, baseline, objective=Objective.THROUGHPUT).outcome is Outcome.PASS
    assert judged(candidate, baseline, objective=Objective.GOODPUT).outcome is Outcome.FAIL


def test_a_gain_that_costs_a_tail_fails() -> None:
    verdict = judged(measured(1, per_block=60, ttft_ms=400), measured(2))
    assert verdict.outcome is Outcome.FAIL
    assert verdict.reason.startswith("ttft_p95_ms is ")


def test_a_longer_tail_within_the_slo_is_no_harm_to_goodput() -> None:
    candidate, baseline = measured(1, per_block=60, ttft_ms=400), measured(2)
    slo = SLO(ttft_ms=1000.0)
    assert judged(candidate, baseline, slo=slo).outcome is Outcome.PASS
    tight = judged(candidate, baseline, slo=SLO(ttft_ms=450.0))
    assert tight.outcome is Outcome.FAIL
    assert "beyond the SLO's 450 ms" in tight.reason
    regardless = judged(candidate, baseline, slo=slo, objective=Objective.THROUGHPUT)
    assert regardless.outcome is Outcome.FAIL


def test_a_gain_that_costs_errors_fails_and_margins_can_be_wider() -> None:
    """Means and medians miss sparse failures (kayenta#780)."""
    candidate, baseline = measured(1, per_block=60, failed=60), measured(2)
    verdict = judged(candidate, baseline)
    assert verdict.outcome is Outcome.FAIL
    assert "requests failed against 0 of" in verdict.reason
    wide = judged(candidate, baseline, margins=Margins(error_rate=0.10))
    assert wide.outcome is Outcome.PASS


def test_a_few_more_errors_hold() -> None:
    verdict = judged(measured(1, per_block=6, failed=3), measured(2, per_block=4))
    assert verdict.outcome is Outcome.INCONCLUSIVE


@pytest.mark.parametrize("zero", [0.0, 1e-9])
def test_no_goodput_in_the_baseline_divides_by_no_zero(zero: float) -> None:
    candidate, baseline = measured(1), measured(2, good=zero)
    assert judged(candidate, baseline).outcome is Outcome.PASS
    assert judged(baseline, candidate).outcome is Outcome.FAIL
    nothing = judged(baseline, baseline)
    assert nothing.outcome is Outcome.INCONCLUSIVE
    assert all(np.isfinite(effect.interval.high) for effect in nothing.effects)


def test_streams_that_end_in_waves_do_not_hide_a_gain() -> None:
    """48 streams of one length: seven waves against five in the window, 35 % more tokens."""

    def waves(period: int, tokens: float) -> Measurement:
        ends = [48 if i % period == 0 else 0 for i in range(20)]
        made = [
            Block(seconds=3.0, requests=n, good=n, failed=0, output_tokens=tokens + i % 3)
            for i, n in enumerate(ends)
        ]
        return replace(measured(1), blocks=tuple(made), requests=sum(ends))

    verdict = judged(waves(3, 2100.0), waves(4, 1550.0))
    assert verdict.outcome is Outcome.PASS
    goodput = verdict.effects[0]
    assert goodput.estimate == pytest.approx(1.35, abs=0.01)
    assert goodput.candidate / goodput.baseline == pytest.approx(goodput.estimate)


def test_more_candidates_need_more_proof() -> None:
    one, many = (
        judged(measured(1, per_block=44), measured(2), comparisons=n).effects[0].interval
        for n in (1, 8)
    )
    assert many.low < one.low
    assert many.level == pytest.approx(1 - 0.05 / 8)


def test_too_little_is_inconclusive() -> None:
    baseline = measured(2)
    few = judged(measured(1, per_block=2), baseline, min_requests=1000)
    short = judged(measured(1, blocks=5), baseline)
    other = judged(replace(measured(1), level="96 streams"), baseline)
    silent = judged(replace(measured(1), ttft_ms=()), baseline)
    assert {v.outcome for v in (few, short, other, silent)} == {Outcome.INCONCLUSIVE}
    assert "1000 are needed" in few.reason
    assert "5 blocks" in short.reason
    assert "96 streams against 48 streams" in other.reason
    assert "first token" in silent.reason


def test_answers_of_one_token_have_no_tpot_and_can_pass() -> None:
    verdict = judged(replace(measured(1, per_block=60), tpot_ms=()), measured(2))
    assert verdict.outcome is Outcome.PASS
    assert "tpot_p95_ms" not in {effect.metric for effect in verdict.effects}
