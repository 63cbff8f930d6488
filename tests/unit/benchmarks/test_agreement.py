"""How two clients are compared: one reading of both, the same stretch, and three words."""

import json
import math
from pathlib import Path

import pytest

from benchmarks.accounting import (
    Answered,
    Figures,
    Stretch,
    as_planned,
    as_summed_up,
    figures,
    ours,
    silent,
    stretch,
    theirs,
)
from benchmarks.agreement import Heat, Shape, in_time, plan_of
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


def test_two_pairs_are_measured_at_least_and_more_only_in_time() -> None:
    assert another(100.0, None, 0.0)
    assert another(100.0, 20.0, 120.0)
    assert not another(100.0, 20.1, 120.0)


@pytest.mark.parametrize(("until_s", "count"), [(-math.inf, 2), (math.inf, 6)])
async def test_pairs_come_two_and_two_until_time_or_plans_are_over(
    until_s: float, count: int
) -> None:
    plan = plan_of([[1]], Shape(streams=1, requests=1, isl=1, osl=24))
    heats = [Heat(Path(str(number)), plan) for number in range(6)]
    asked: list[tuple[int, str]] = []

    async def pair_of(number: int, heat: Heat) -> Pair[Figures]:
        asked.append((number, heat.trace.name))
        return Pair(EVEN, EVEN)

    assert len(await in_time(until_s, heats, pair_of)) == count
    assert asked == [(number, str(number)) for number in range(count)]


def test_our_records_and_what_vllm_kept_are_read_alike() -> None:
    shape = Shape(streams=1, requests=4, isl=2, osl=24)
    plan = plan_of([[1, 2], [3, 4], [5, 6], [7, 8]], shape)
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
    assert found[0].sent_s == pytest.approx(50.0)
    assert [each.ttft_ms for each in found] == pytest.approx([100.0] * 4)
    assert [each.tpot_ms for each in found] == pytest.approx([10.0] * 4)


def test_what_vllm_kept_is_read_as_vllm_sums_it_up() -> None:
    assert len(theirs(SAID)) == 3
    assert as_summed_up(SAID)
    assert not as_summed_up(SAID | {"mean_ttft_ms": 440.0})
    assert not as_summed_up(SAID | {"output_throughput": 10.5})


def test_the_first_round_and_what_follows_the_last_request_are_left_out() -> None:
    burst = [Answered(0.0, 9.0, 10.0, 64, 11), Answered(0.0, 9.0, 11.0, 64, 11)]
    steady = [Answered(10.0 + i, 10.2 + i, 12.2 + i, 64, 21) for i in range(3)]
    of = stretch([*burst, *steady], streams=2)
    assert of == Stretch(10.0, 12.0)
    found = figures([*burst, *steady], of)
    assert found.ttft_p50_ms == pytest.approx(200.0)
    assert found.ttft_mean_ms == pytest.approx(200.0)
    assert found.tpot_mean_ms == pytest.approx(100.0)
    # Half of the second burst's tokens, and of the steady ones those that had come by 12 s.
    assert found.output_tok_s == pytest.approx((5 + 1 + 18 + 1 + 8) / 2)


def test_tokens_outside_the_stretch_do_not_count() -> None:
    assert Answered(0.0, 1.0, 2.0, 64, 11).tokens_within(Stretch(3.0, 4.0)) == 0
    assert Answered(0.0, 3.5, 3.5, 64, 1).tokens_within(Stretch(3.0, 4.0)) == 1


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
