"""How two clients are compared: one plan, one reading of both, the engine's own count, and three
words."""

import json
import math
from pathlib import Path

import pytest

from benchmarks.accounting import (
    Answered,
    ByEngine,
    Counted,
    Figures,
    as_planned,
    as_summed_up,
    by_engine,
    counted,
    figures,
    ours,
    silent,
    theirs,
)
from benchmarks.agreement import Heat, Run, Shape, in_time, plan_of
from benchmarks.paired import (
    STUDENT,
    Agreement,
    Difference,
    Pair,
    agreement,
    agreements,
    another,
    difference,
    joined,
    table,
)
from tests.fakes.loadgen import EngineBehaviour, simulate

SAID = {
    "start_times": [100.0, 100.0, 102.0, 103.0],
    "ttfts": [0.5, 0.6, 0.2, 0.0],
    "latencies": [1.4, 1.5, 1.1, 0.0],
    "input_lens": [64, 64, 64, 64],
    "output_lens": [10, 10, 10, 0],
    "errors": ["", "", "", "refused"],
    "duration": 3.0,
    "output_throughput": 10.0,
    "median_ttft_ms": 500.0,
    "mean_ttft_ms": 433.333,
    "mean_tpot_ms": 100.0,
}
EVEN = Figures(100.0, 200.0, 250.0, 20.0)
SHAPE = Shape(rate_rps=2.0, requests=4, isl=2, osl=24)


def test_a_difference_is_that_of_neighbours_with_its_interval() -> None:
    pairs = [Pair(102.0, 100.0), Pair(51.0, 50.0), Pair(102.0, 100.0), Pair(51.0, 50.0)]
    assert difference(pairs) == pytest.approx((2.0, 2.0, 2.0))
    wide = difference([Pair(104.0, 100.0), Pair(100.0, 100.0)])
    assert wide.low < 0 < wide.percent < wide.high
    log = math.log(1.04) / 2
    assert wide.high == pytest.approx(math.expm1(log + STUDENT[1] * log) * 100, abs=0.01)


def test_more_pairs_than_the_table_knows_narrow_the_interval_by_their_number_alone() -> None:
    few, many = [Pair(104.0, 100.0), Pair(100.0, 100.0)] * 16, [Pair(104.0, 100.0)] * 32
    many += [Pair(100.0, 100.0)] * 32
    assert len(few) == max(STUDENT) + 1 and len(many) == 64
    narrow, wide = difference(many), difference(few)
    assert wide.percent == narrow.percent
    assert (wide.high - wide.low) / (narrow.high - narrow.low) == pytest.approx(2**0.5, rel=0.03)


@pytest.mark.parametrize(
    ("low", "high", "word"),
    [
        (-3.0, 3.0, Agreement.MET),
        (1.0, 2.0, Agreement.MET),
        (-7.8, 15.6, Agreement.UNPROVEN),
        (2.0, 3.1, Agreement.UNPROVEN),
        (-3.1, 0.0, Agreement.UNPROVEN),
        (3.1, 9.0, Agreement.MISSED),
        (-9.0, -3.1, Agreement.MISSED),
    ],
)
def test_only_an_interval_that_lies_inside_meets_the_limit(
    low: float, high: float, word: Agreement
) -> None:
    assert agreement(Difference((low + high) / 2, low, high), 3.0) is word


def test_of_two_looks_the_one_that_is_outside_decides() -> None:
    met, unproven, missed = Agreement.MET, Agreement.UNPROVEN, Agreement.MISSED
    assert joined([met, missed]) is missed
    assert joined([met, unproven]) is met
    assert joined([unproven, unproven]) is unproven


def test_a_figure_that_differs_is_told_by_its_name() -> None:
    slower = EVEN._replace(ttft_p50_ms=220.0)
    alike, apart = table([Pair(EVEN, EVEN)] * 2, 3.0), table([Pair(slower, EVEN)] * 2, 3.0)
    assert alike["pairs"] == 2
    assert apart["ttft_p50_ms"]["difference_pct"] == pytest.approx(10.0)
    words = agreements([alike, apart])
    assert [n for n, word in words.items() if word is not Agreement.MET] == ["ttft_p50_ms"]
    assert words["ttft_p50_ms"] is Agreement.MISSED


def test_a_look_that_lacks_a_figure_says_nothing_of_it() -> None:
    alike = table([Pair(EVEN, EVEN)] * 2, 3.0)
    apart = table([Pair(ByEngine(1.0, 1.1, 1.0), ByEngine(1.0, 1.0, 1.0))] * 2, 3.0)
    words = agreements([alike, apart])
    assert list(words) == list(Figures._fields)
    assert [n for n, word in words.items() if word is not Agreement.MET] == ["ttft_mean_ms"]


def test_two_pairs_are_measured_at_least_and_more_only_in_time() -> None:
    assert another(100.0, None, 0.0)
    assert another(100.0, 20.0, 120.0)
    assert not another(100.0, 20.1, 120.0)


@pytest.mark.parametrize(("until_s", "count"), [(-math.inf, 2), (math.inf, 6)])
async def test_pairs_come_two_and_two_until_time_or_plans_are_over(
    until_s: float, count: int
) -> None:
    plan = plan_of([[1]], Shape(rate_rps=1.0, requests=1, isl=1, osl=24))
    run = Run(EVEN, Counted(1.0, 250.0, 20.0))
    heats = [Heat(Path(str(number)), plan) for number in range(6)]
    asked: list[tuple[int, str]] = []

    async def pair_of(number: int, heat: Heat) -> Pair[Run]:
        asked.append((number, heat.trace.name))
        return Pair(run, run)

    assert len(await in_time(until_s, heats, pair_of)) == count
    assert asked == [(number, str(number)) for number in range(count)]


def test_our_records_and_what_vllm_kept_are_read_alike() -> None:
    plan = plan_of([[1, 2], [3, 4], [5, 6], [7, 8]], SHAPE)
    osls = [turn.osl for session in plan.sessions for turn in session.turns]
    assert min(osls) >= 12 and max(osls) <= 36 and len(set(osls)) == 4
    found = ours(simulate(plan, EngineBehaviour(ttft_s=0.1, tpot_s=0.01)).records, zero_s=50.0)
    said = {
        "start_times": [each.sent_s for each in found],
        "ttfts": [each.ttft_ms / 1000 for each in found],
        "latencies": [each.last_s - each.sent_s for each in found],
        "input_lens": [2] * 4,
        "output_lens": osls,
        "errors": [""] * 4,
    }
    for one, other in zip(found, theirs(said), strict=True):
        assert one == pytest.approx(other)
    assert [each.sent_s - 50.0 for each in found] == pytest.approx(SHAPE.starts_s())
    assert [each.ttft_ms for each in found] == pytest.approx([100.0] * 4)
    assert [each.tpot_ms for each in found] == pytest.approx([10.0] * 4)


def test_what_vllm_kept_is_read_as_vllm_sums_it_up() -> None:
    assert len(theirs(SAID)) == 3
    assert as_summed_up(SAID)
    assert not as_summed_up(SAID | {"mean_ttft_ms": 440.0})
    assert not as_summed_up(SAID | {"output_throughput": 10.5})


def test_the_figures_are_of_all_requests_of_a_run() -> None:
    answers = [Answered(10.0 + i, 10.2 + i, 12.2 + i, 64, 21) for i in range(3)]
    found = figures([*answers, Answered(11.0, 11.6, 12.6, 64, 11)])
    assert found.output_tok_s == pytest.approx(74 / 4.2)
    assert found.ttft_p50_ms == pytest.approx(200.0)
    assert found.ttft_mean_ms == pytest.approx(300.0)
    assert found.tpot_mean_ms == pytest.approx(100.0)


def test_what_an_engine_counted_of_a_run_is_what_it_counted_since() -> None:
    def shown(requests: int, ttft_s: float, tpot_s: float) -> Counted:
        labels = '{engine="0",model_name="m"}'
        return counted(
            f"vllm:time_to_first_token_seconds_sum{labels} {ttft_s}\n"
            f"vllm:request_time_per_output_token_seconds_count{labels} {requests}\n"
            f"vllm:request_time_per_output_token_seconds_sum{labels} {tpot_s}\n"
        )

    of_run = shown(70, 27.0, 4.2).since(shown(10, 12.0, 3.0))
    assert of_run == pytest.approx((60.0, 15_000.0, 1200.0))
    assert by_engine(EVEN, of_run) == pytest.approx((0.8, 1.0, 1.0))
    late = EVEN._replace(ttft_p50_ms=225.0, ttft_mean_ms=255.0, tpot_mean_ms=19.0)
    assert by_engine(late, of_run) == pytest.approx((0.9, 1.02, 0.95))


def test_an_engine_that_does_not_count_is_no_measure() -> None:
    with pytest.raises(KeyError):
        counted("vllm:num_requests_running 1\n")


def test_times_are_the_same_in_each_run_and_come_at_the_rate() -> None:
    many = SHAPE._replace(requests=4000).starts_s()
    assert many == sorted(many) and many[:4] == SHAPE.starts_s()
    assert len(many) / many[-1] == pytest.approx(2.0, rel=0.05)


def test_answers_of_other_lengths_than_planned_are_found() -> None:
    answers = [Answered(0.0, 1.0, 2.0, 64, osl) for osl in (12, 30)]
    assert as_planned(answers, 64, [30, 12])
    assert not as_planned(answers, 64, [30, 13])
    assert not as_planned(answers, 65, [30, 12])
    assert not as_planned(answers[:1], 64, [30, 12])


def test_first_chunks_without_text_are_counted_once_an_answer() -> None:
    def chunk(index: int, text: str) -> str:
        return "data: " + json.dumps({"choices": [{"index": index, "text": text}]})

    usage = "data: " + json.dumps({"choices": [], "usage": {"prompt_tokens": 9}})
    lines = [chunk(0, ""), chunk(1, " a"), "", chunk(0, " b"), chunk(1, ""), usage, "data: [DONE]"]
    assert silent(lines) == 0.5
