"""The judge passes proven gains, fails proven harm, and holds in all other cases."""

from dataclasses import replace

import numpy as np
import pytest

from canary.judge import judge, may_yet_pass
from domain.interval import Interval
from domain.live import Margins
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
    """Blocks of three seconds whose requests vary by ``noise``, each of 100 output tokens, and of
    48 streams that always wait."""
    generator = np.random.default_rng(seed)
    requests = np.maximum(generator.normal(per_block, noise * per_block, size=blocks), 0)
    counts = [round(count) for count in requests]
    n = sum(counts)
    made = [
        Block(
            seconds=3.0,
            requests=c,
            good=round(good * c),
            failed=0,
            output_tokens=100.0 * c,
            waited_s=48 * 3.0,
        )
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
        heavier=(),
    )


def runs(
    seed: int,
    n: int = 4,
    *,
    gain: float = 1.0,
    start: float = 0.02,
    drift: float = 0.0,
    turns: tuple[int, ...] = (),
    **kind: float | int,
) -> list[Measurement]:
    """Runs whose speed differs by ``start`` from one engine's start to the next, and by ``drift``
    from turn to turn."""
    generator = np.random.default_rng([seed, 99])
    speeds = gain * (1 + start * generator.normal(size=n))
    if turns:
        speeds = speeds * (1 + drift * np.asarray(turns))
    return [
        measured(100 * seed + i, per_block=40.0 * speed, **kind)  # type: ignore[arg-type]
        for i, speed in enumerate(speeds)
    ]


def judged(
    candidate: list[Measurement],
    baseline: list[Measurement],
    objective: Objective = Objective.GOODPUT,
    **options: object,
) -> Verdict:
    return judge(candidate, baseline, objective, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("objective", Objective)
def test_arms_of_one_kind_neither_pass_nor_fail(objective: Objective) -> None:
    outcomes = [judged(runs(2 * i), runs(2 * i + 1), objective).outcome for i in range(40)]
    assert set(outcomes) == {Outcome.INCONCLUSIVE}


def test_starts_that_differ_are_no_effect_however_many_requests_each_has() -> None:
    """Blocks of one run agree within a percent; two starts differ by ten."""
    outcomes = [
        judged(
            runs(2 * i, 2, start=0.1, noise=0.01),
            runs(2 * i + 1, 2, start=0.1, noise=0.01),
        ).outcome
        for i in range(40)
    ]
    assert outcomes.count(Outcome.PASS) + outcomes.count(Outcome.FAIL) <= 1


@pytest.mark.parametrize("objective", Objective)
def test_ten_percent_more_is_found_nearly_always(objective: Objective) -> None:
    outcomes = [
        judged(runs(2 * i, 6, gain=1.1), runs(2 * i + 1, 6), objective).outcome for i in range(16)
    ]
    assert outcomes.count(Outcome.PASS) >= 14
    assert outcomes.count(Outcome.FAIL) == 0


def test_a_host_that_drifts_while_the_arms_alternate_is_no_effect() -> None:
    ours, theirs = (0, 3, 5, 6), (1, 2, 4, 7)
    for i in range(10):
        for drift in (-0.03, 0.03):
            candidate = runs(2 * i, drift=drift, turns=ours)
            baseline = runs(2 * i + 1, drift=drift, turns=theirs)
            verdict = judged(candidate, baseline)
            assert verdict.outcome is Outcome.INCONCLUSIVE
            assert verdict.effects[0].estimate == pytest.approx(1.0, abs=0.05)


def test_the_same_input_gives_the_same_verdict() -> None:
    candidate, baseline = runs(1, gain=1.1), runs(2)
    assert judged(candidate, baseline) == judged(candidate, baseline)


@pytest.mark.parametrize(
    ("objective", "metric", "noun"),
    [
        (Objective.GOODPUT, "goodput_rps", "Goodput"),
        (Objective.THROUGHPUT, "output_tok_s", "Output"),
        (Objective.LATENCY, "stream_rps", "Speed"),
        (Objective.COST, "capacity_tok_s", "Capacity"),
    ],
)
def test_a_pass_says_its_numbers_and_shows_every_effect(
    objective: Objective, metric: str, noun: str
) -> None:
    verdict = judged(runs(1, gain=1.5), runs(2), objective, start_s=10.0, end_s=130.0)
    assert verdict.outcome is Outcome.PASS
    assert verdict.effects[0].metric == metric
    assert verdict.reason.startswith(f"{noun} is ")
    assert "99 % interval" in verdict.reason
    assert "8 runs" in verdict.reason
    assert {effect.metric for effect in verdict.effects} == {
        "goodput_rps",
        "output_tok_s",
        "stream_rps",
        "capacity_tok_s",
        "ttft_p95_ms",
        "tpot_p95_ms",
        "error_rate",
    }
    assert verdict.evidence is not None
    assert (verdict.evidence.start_s, verdict.evidence.end_s) == (10.0, 130.0)
    assert verdict.evidence.baseline_n == sum(run.requests for run in runs(2))
    assert "50.0%" in verdict.evidence.notes[0]


@pytest.mark.parametrize("objective", Objective)
def test_a_loss_fails(objective: Objective) -> None:
    verdict = judged(runs(1, gain=0.75), runs(2), objective)
    assert verdict.outcome is Outcome.FAIL
    assert "a proven loss" in verdict.reason


def test_a_small_gain_is_inconclusive_however_sure() -> None:
    candidate = runs(1, 12, gain=1.02, start=0.0, noise=0.001)
    verdict = judged(candidate, runs(2, 12, start=0.0, noise=0.001))
    assert verdict.effects[0].interval.low > 1
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "less than 3%" in verdict.reason


def test_a_small_loss_is_inconclusive_however_sure() -> None:
    candidate = runs(1, 12, gain=0.98, start=0.0, noise=0.001)
    verdict = judged(candidate, runs(2, 12, start=0.0, noise=0.001))
    assert verdict.effects[0].interval.high < 1
    assert verdict.outcome is Outcome.INCONCLUSIVE


def test_more_runs_are_worth_while_only_until_a_gain_is_proven_or_ruled_out() -> None:
    def open_(candidate: list[Measurement], baseline: list[Measurement]) -> bool:
        return may_yet_pass(judged(candidate, baseline), Objective.GOODPUT)

    assert open_(runs(1, gain=1.05, start=0.05), runs(2, start=0.05))
    assert not open_(runs(1, gain=1.5), runs(2))
    assert not open_(runs(1, gain=0.7), runs(2))
    assert not open_(runs(1, 12, start=0.0, noise=0.002), runs(2, 12, start=0.0, noise=0.002))
    silent = [replace(run, ttft_ms=()) for run in runs(1)]
    assert not open_(silent, runs(2))


def test_two_runs_that_agree_by_chance_prove_nothing() -> None:
    """One measurement handed in twice has no spread at all."""
    candidate, baseline = measured(1, per_block=41.5, noise=0.0), measured(2, noise=0.0)
    verdict = judged([candidate] * 2, [baseline] * 2)
    assert verdict.outcome is Outcome.INCONCLUSIVE


def test_objectives_differ() -> None:
    """More tokens a second, fewer of them in time: a gain of throughput and a loss of goodput."""
    candidate, baseline = runs(1, gain=1.5, good=0.4), runs(2)
    assert judged(candidate, baseline, Objective.THROUGHPUT).outcome is Outcome.PASS
    assert judged(candidate, baseline, Objective.GOODPUT).outcome is Outcome.FAIL


@pytest.mark.parametrize("objective", Objective)
def test_a_gain_that_costs_a_tail_fails(objective: Objective) -> None:
    verdict = judged(runs(1, gain=1.5, ttft_ms=400), runs(2), objective)
    assert verdict.outcome is Outcome.FAIL
    assert verdict.reason.startswith("ttft_p95_ms is ")


def test_a_longer_tail_within_the_slo_is_no_harm_to_goodput() -> None:
    candidate, baseline = runs(1, gain=1.5, ttft_ms=400), runs(2)
    slo = SLO(ttft_ms=1000.0)
    assert judged(candidate, baseline, slo=slo).outcome is Outcome.PASS
    tight = judged(candidate, baseline, slo=SLO(ttft_ms=450.0))
    assert tight.outcome is Outcome.FAIL
    assert "beyond the SLO's 450 ms" in tight.reason
    for other in (Objective.THROUGHPUT, Objective.LATENCY):
        assert judged(candidate, baseline, other, slo=slo).outcome is Outcome.FAIL


@pytest.mark.parametrize("objective", Objective)
def test_a_gain_that_costs_errors_fails_and_margins_can_be_wider(objective: Objective) -> None:
    """Means and medians miss sparse failures (kayenta#780)."""
    candidate, baseline = runs(1, gain=1.5, failed=60), runs(2)
    verdict = judged(candidate, baseline, objective)
    assert verdict.outcome is Outcome.FAIL
    assert "requests failed against 0 of" in verdict.reason
    wide = judged(candidate, baseline, objective, margins=Margins(error_rate=0.10))
    assert wide.outcome is Outcome.PASS


def test_a_few_more_errors_hold() -> None:
    candidate = [measured(i, per_block=6, failed=3) for i in range(2)]
    verdict = judged(candidate, [measured(10 + i, per_block=4) for i in range(2)])
    assert verdict.outcome is Outcome.INCONCLUSIVE


@pytest.mark.parametrize("zero", [0.0, 1e-9])
def test_no_goodput_in_the_baseline_divides_by_no_zero(zero: float) -> None:
    candidate, baseline = runs(1), runs(2, good=zero)
    assert judged(candidate, baseline).outcome is Outcome.PASS
    assert judged(baseline, candidate).outcome is Outcome.FAIL
    nothing = judged(baseline, baseline)
    assert nothing.outcome is Outcome.INCONCLUSIVE
    assert all(np.isfinite(effect.interval.high) for effect in nothing.effects)


def test_streams_that_end_in_waves_do_not_hide_a_gain() -> None:
    """48 streams of one length: seven waves against five in the window, 35 % more tokens."""

    def waves(period: int, tokens: float) -> list[Measurement]:
        ends = [48 if i % period == 0 else 0 for i in range(20)]
        made = [
            Block(seconds=3.0, requests=n, good=n, failed=0, output_tokens=tokens + i % 3)
            for i, n in enumerate(ends)
        ]
        of = [measured(seed) for seed in range(3)]
        return [replace(run, blocks=tuple(made), requests=sum(ends)) for run in of]

    verdict = judged(waves(3, 2100.0), waves(4, 1550.0))
    assert verdict.outcome is Outcome.PASS
    goodput = verdict.effects[0]
    assert goodput.estimate == pytest.approx(1.35, abs=0.01)
    assert goodput.candidate / goodput.baseline == pytest.approx(goodput.estimate)


def test_a_share_of_the_error_needs_more_proof() -> None:
    def intervals(share: float) -> dict[str, Interval]:
        effects = judged(runs(1, gain=1.1), runs(2), share=share).effects
        return {effect.metric: effect.interval for effect in effects}

    once, eighth = intervals(1.0), intervals(0.125)
    assert eighth["goodput_rps"].low < once["goodput_rps"].low
    assert eighth["goodput_rps"].level == pytest.approx(1 - 0.01 / 8)
    assert eighth["ttft_p95_ms"].level == pytest.approx(1 - 0.01 / 8)


def test_a_tail_beyond_the_slo_must_be_shown_not_to_be_worse() -> None:
    """Alike tails pass once the runs agree; alike by chance is not enough."""
    sure = judged(runs(1, gain=1.5, start=0.01), runs(2, start=0.01), slo=SLO(ttft_ms=100.0))
    assert sure.outcome is Outcome.PASS
    noisy = [
        replace(run, ttft_ms=tuple(ms * factor for ms in run.ttft_ms))
        for run, factor in zip(runs(1, gain=1.5), (0.8, 1.2, 0.9, 1.1), strict=True)
    ]
    unsure = judged(noisy, runs(2), slo=SLO(ttft_ms=100.0))
    assert unsure.outcome is Outcome.INCONCLUSIVE
    assert unsure.reason.startswith("ttft_p95_ms")
    assert "is not ruled out at 90 %" in unsure.reason


def test_too_little_is_inconclusive() -> None:
    baseline = runs(2)
    few = judged(runs(1), [*baseline[1:], measured(5, per_block=2)], min_requests=100)
    single = judged(runs(1, 1), baseline)
    other = judged([replace(run, level="96 streams") for run in runs(1)], baseline)
    silent = judged([replace(run, ttft_ms=()) for run in runs(1)], baseline)
    assert {v.outcome for v in (few, single, other, silent)} == {Outcome.INCONCLUSIVE}
    assert "100 are needed" in few.reason
    assert "1 runs; 2 are needed" in single.reason
    assert "48 streams against 96 streams" in other.reason
    assert "first token" in silent.reason


def test_answers_of_one_token_have_no_tpot_and_can_pass() -> None:
    candidate = [replace(run, tpot_ms=()) for run in runs(1, gain=1.5)]
    verdict = judged(candidate, runs(2))
    assert verdict.outcome is Outcome.PASS
    assert "tpot_p95_ms" not in {effect.metric for effect in verdict.effects}


def older(run: Measurement) -> Measurement:
    """As a version stored it that did not count what users waited."""
    return replace(run, blocks=tuple(replace(block, waited_s=None) for block in run.blocks))


def test_latency_that_is_not_known_of_every_run_decides_nothing_and_is_not_shown() -> None:
    candidate, baseline = runs(1, gain=1.5), runs(2)
    for ours, theirs in (
        ([older(candidate[0]), *candidate[1:]], baseline),
        (candidate, [older(run) for run in baseline]),
    ):
        verdict = judged(ours, theirs, Objective.LATENCY)
        assert verdict.outcome is Outcome.INCONCLUSIVE
        assert verdict.reason == "Speed is not known of every run."
        shown = judged(ours, theirs)
        assert shown.outcome is Outcome.PASS
        assert "stream_rps" not in {effect.metric for effect in shown.effects}


def test_speed_is_the_inverse_of_the_mean_wait() -> None:
    """48 streams of 40 requests in three seconds: 3.6 s each."""
    speed = judged(runs(1, start=0.0), runs(2, start=0.0), Objective.LATENCY).effects[0]
    assert 1 / speed.baseline == pytest.approx(3.6, rel=0.02)
