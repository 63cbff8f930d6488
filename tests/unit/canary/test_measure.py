"""A measurement says what happened in its window, or says why it cannot."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from canary.measure import measure
from domain.load import (
    Arrival,
    ClientHealth,
    LoadPlan,
    LoadResult,
    RequestError,
    RequestRecord,
    RequestSpec,
    Session,
    StopCause,
    Stopped,
)
from domain.slo import SLO
from domain.study import EngineCounters, Failure, FailureKind, Measurement
from tests.fakes.loadgen import EngineBehaviour, simulate

SLO_ = SLO(ttft_ms=500)
FIT = ClientHealth(send_lag_ms=1.0, loop_lag_ms=1.0, cpu=0.2)


def record(
    sent_s: float,
    *,
    ttft_s: float = 0.1,
    tpot_s: float = 0.01,
    osl: int = 11,
    error: RequestError | None = None,
) -> RequestRecord:
    first_s = sent_s + ttft_s
    last_s = first_s + tpot_s * (osl - 1)
    return RequestRecord(
        session="s",
        turn=0,
        scheduled_s=sent_s,
        sent_s=sent_s,
        end_s=last_s,
        isl=100,
        osl=osl,
        first_s=first_s,
        last_s=last_s,
        error=error,
    )


def result(records: list[RequestRecord], health: ClientHealth = FIT) -> LoadResult:
    return LoadResult(
        plan_level="4 streams",
        seed=9,
        warm_up_s=10.0,
        duration_s=30.0,
        records=tuple(records),
        health=health,
    )


def evenly(n: int = 40, **options: object) -> list[RequestRecord]:
    """``n`` requests sent in the window, none in its last half second."""
    return [record(10 + i * 19.5 / n, **options) for i in range(n)]


def measured(records: list[RequestRecord], **options: object) -> Measurement:
    got = measure(result(records), SLO_, None, None, **options)
    assert isinstance(got, Measurement), got
    return got


def failed(records: list[RequestRecord], health: ClientHealth = FIT) -> Failure:
    got = measure(result(records, health), SLO_, None, None)
    assert isinstance(got, Failure)
    return got


def counters(
    requests: float,
    generation_tokens: float,
    prompt_tokens: float | None = None,
    **others: float,
) -> EngineCounters:
    """Prompts have 100 tokens, as those of ``record``."""
    return EngineCounters(
        requests=requests,
        prompt_tokens=100 * requests if prompt_tokens is None else prompt_tokens,
        generation_tokens=generation_tokens,
        **others,
    )


def test_a_steady_run() -> None:
    got = measured(evenly())
    assert (got.level, got.seed, got.requests, got.failed) == ("4 streams", 9, 40, 0)
    assert got.ttft_ms == pytest.approx([100] * 40)
    assert got.tpot_ms == pytest.approx([10] * 40)
    assert len(got.blocks) == 20
    assert {block.seconds for block in got.blocks} == {1.0}
    assert got.goodput_rps == pytest.approx(2.0)
    assert got.output_tok_s == pytest.approx(22.0)
    assert (got.prefix_hit_rate, got.draft_acceptance, got.preemptions) == (None, None, None)


def test_a_request_counts_where_it_ended_and_its_tokens_where_they_were_made() -> None:
    slow = record(10.0, ttft_s=0.25, tpot_s=0.2, osl=11)  # tokens from 10.25 to 12.25
    got = measured([*evenly(8, osl=1), slow], blocks=20)
    mine = [block.output_tokens for block in got.blocks[:3]]
    others = [block.output_tokens for block in measured(evenly(8, osl=1)).blocks[:3]]
    assert [a - b for a, b in zip(mine, others, strict=True)] == pytest.approx(
        [11 * 0.75 / 2, 11 * 1 / 2, 11 * 0.25 / 2]
    )
    assert got.blocks[2].requests == measured(evenly(8, osl=1)).blocks[2].requests + 1


def test_a_miss_of_the_slo_is_a_request_but_not_a_good_one() -> None:
    got = measured([*evenly(10), *evenly(10, ttft_s=0.6, osl=1)])
    assert sum(block.requests for block in got.blocks) == 20
    assert sum(block.good for block in got.blocks) == 10


def test_failed_requests_are_counted_and_cut_off_ones_are_not() -> None:
    got = measured(
        [
            *evenly(40),
            *evenly(4, error=RequestError.HTTP_5XX),
            *evenly(8, error=RequestError.CANCELLED),
        ]
    )
    assert (got.requests, got.failed) == (44, 4)
    assert sum(block.failed for block in got.blocks) == 4
    assert len(got.ttft_ms) == 40


def test_the_waiting_of_a_request_counts_where_it_ended() -> None:
    """Each takes 0.2 s; one that began in the warm-up counts whole."""
    got = measured([*evenly(), record(9.0, ttft_s=1.5)])
    assert got.blocks[0].waited_s == pytest.approx(2 * 0.2 + 1.6)
    assert got.waited_s == pytest.approx(40 * 0.2 + 1.6)
    assert measured(evenly()).stream_rps == pytest.approx(1 / 0.2)


def test_in_an_open_plan_the_waiting_begins_when_a_request_is_due() -> None:
    late = [replace(each, scheduled_s=each.sent_s - 0.3) for each in evenly()]
    got = measure(replace(result(late), arrival=Arrival.OPEN), SLO_, None, None)
    assert isinstance(got, Measurement)
    assert got.stream_rps == pytest.approx(1 / 0.5)
    assert measured(late).stream_rps == pytest.approx(1 / 0.2)


def test_what_fails_or_is_left_lying_makes_no_run_faster() -> None:
    sound = measured([*evenly(40), *evenly(8, osl=101)]).stream_rps
    cut_off = evenly(8, error=RequestError.CANCELLED)
    lying = [replace(each, sent_s=10.0, end_s=30.0) for each in cut_off]
    failing = measured([*evenly(40), *evenly(8, osl=1, error=RequestError.HTTP_5XX)]).stream_rps
    assert sound is not None and failing is not None
    assert measured([*evenly(40), *cut_off]).stream_rps == measured(evenly(40)).stream_rps
    forgotten = measured([*evenly(40), *lying]).stream_rps
    assert forgotten is not None and forgotten < sound
    assert failing == pytest.approx(40 / (48 * 0.2))


def test_the_edges_of_the_window_take_nothing_from_a_slow_engine() -> None:
    """Eight streams of ten-second requests make 8 x 10 tokens/s in any window of a steady run."""
    spec = RequestSpec(prompt=(1,) * 16, osl=100)
    plan = LoadPlan(
        level="8",
        arrival=Arrival.CLOSED,
        concurrency=8,
        sessions=tuple(
            Session(name=f"s{i}", turns=(replace(spec, think_s=i * 1.25 if i < 8 else 0.0),))
            for i in range(100)
        ),
        warm_up_s=20.0,
        duration_s=60.0,
        seed=1,
    )
    run = simulate(plan, EngineBehaviour(ttft_s=0.1, tpot_s=0.1))
    got = measure(run, SLO_, None, None)
    assert isinstance(got, Measurement)
    assert got.output_tok_s == pytest.approx(80, rel=0.02)
    assert got.goodput_rps == pytest.approx(0.8, rel=0.05)
    assert got.stream_rps == pytest.approx(0.1, rel=0.01)


def test_latencies_are_those_sent_after_the_warm_up() -> None:
    early = [record(9.5, ttft_s=2.0) for _ in range(5)]
    got = measured([*evenly(20), *early])
    assert len(got.ttft_ms) == 20
    assert got.requests == 25


def test_rates_come_from_the_engines_counters() -> None:
    before = counters(
        3, 50, prefix_queries=100, prefix_hits=10, draft_tokens=10, accepted_tokens=5, preemptions=1
    )
    after = counters(
        43,
        490,
        prefix_queries=1100,
        prefix_hits=710,
        draft_tokens=110,
        accepted_tokens=85,
        preemptions=4,
    )
    got = measure(result(evenly()), SLO_, before, after)
    assert isinstance(got, Measurement)
    assert (got.prefix_hit_rate, got.draft_acceptance, got.preemptions) == (0.7, 0.8, 3)


def test_a_counter_that_went_back_or_stood_still_gives_no_rate() -> None:
    before = counters(9, 9, prefix_queries=100, prefix_hits=10, draft_tokens=5, accepted_tokens=5)
    after = counters(0, 0, prefix_queries=50, prefix_hits=40, draft_tokens=5, accepted_tokens=5)
    got = measure(result(evenly()), SLO_, before, after)
    assert isinstance(got, Measurement)
    assert (got.prefix_hit_rate, got.draft_acceptance) == (None, None)


def test_more_than_a_fifth_failed_is_a_failure_that_names_the_error() -> None:
    got = failed([*evenly(30), *evenly(10, error=RequestError.HTTP_5XX)])
    assert got.kind is FailureKind.REQUEST_ERRORS
    assert got.sentence == (
        "10 of 40 requests failed, 10 of them http_5xx; more than 20% is no measurement."
    )


def test_timeouts_are_a_hang() -> None:
    assert failed(evenly(9, error=RequestError.TIMEOUT)).kind is FailureKind.HUNG


def test_an_engine_that_gave_no_token_hung() -> None:
    silent = [
        replace(r, first_s=None, last_s=None) for r in evenly(4, error=RequestError.CANCELLED)
    ]
    got = failed(silent)
    assert (got.kind, got.sentence) == (FailureKind.HUNG, "No request got a token in 30.0 s.")


def test_too_few_requests_are_no_measurement() -> None:
    got = failed(evenly(7))
    assert got.kind is FailureKind.REQUEST_ERRORS
    assert got.sentence.startswith("Only 7 requests were sent and completed in the 20.0 s")
    assert measured(evenly(8)).requests == 8


def test_no_records_at_all_are_no_measurement() -> None:
    assert failed([]).kind is FailureKind.REQUEST_ERRORS


def test_a_run_that_ended_in_its_warm_up_was_interrupted() -> None:
    short = replace(result(evenly()), duration_s=10.0)
    got = measure(short, SLO_, None, None)
    assert isinstance(got, Failure)
    assert got.kind is FailureKind.INTERRUPTED


def test_an_unfit_client_is_a_failure_with_its_own_sentence() -> None:
    got = failed(evenly(), replace(FIT, fault="The load client sent 90 ms late."))
    assert got == Failure(
        kind=FailureKind.CLIENT_UNFIT, sentence="The load client sent 90 ms late."
    )


def test_an_engines_failure_is_not_blamed_on_the_client() -> None:
    got = failed(evenly(10, error=RequestError.CONNECT), replace(FIT, fault="Late."))
    assert got.kind is FailureKind.REQUEST_ERRORS


@pytest.mark.parametrize(
    ("ended", "prompts", "tokens", "said"),
    [
        (40, 4000, 440, None),
        (40, 4000, 446, None),
        (41, 4000, 440, None),  # one that was ending when the counters were read
        (40, 4000, 460, "460 generated tokens and the load client 440;"),
        (40, 4000, 420, "420 generated tokens and the load client 440;"),
        (40, 4200, 440, "4,200 prompt tokens and the load client 4,000;"),
        (30, 4000, 440, "30 requests and the load client 40;"),
        (90, 9000, 900, "90 requests and the load client 40;"),
        (44, 4200, 470, None),  # four cut off after some of their tokens
        (44, 4400, 560, "560 generated tokens and the load client 440 to 484;"),
    ],
)
def test_counts_must_agree_with_the_engines(
    ended: int, prompts: int, tokens: int, said: str | None
) -> None:
    records = evenly(40)
    if ended == 44:
        records += evenly(4, error=RequestError.CANCELLED)
    after = counters(5 + ended, 100 + tokens, 500 + prompts)
    got = measure(result(records), SLO_, counters(5, 100), after)
    if said is None:
        assert isinstance(got, Measurement)
    else:
        assert isinstance(got, Failure)
        assert got.kind is FailureKind.CLIENT_UNFIT
        assert said in got.sentence


@pytest.mark.parametrize(("planned", "agrees"), [(0, True), (99, True), (80, False), (120, False)])
def test_prompts_must_be_as_long_as_planned(planned: int, agrees: bool) -> None:
    records = [replace(each, planned_isl=planned) for each in evenly()]
    got = measure(result(records), SLO_, None, None)
    assert isinstance(got, Measurement) is agrees
    if isinstance(got, Failure):
        assert "4,000 prompt tokens where the plan has" in got.sentence


def test_prompts_that_nobody_counted_are_not_compared() -> None:
    cut_off = [replace(r, isl=0) for r in evenly(4, error=RequestError.CANCELLED)]
    after = counters(5 + 44, 100 + 460, 500 + 9000)
    got = measure(result([*evenly(), *cut_off]), SLO_, counters(5, 100), after)
    assert isinstance(got, Measurement)


def test_an_open_plan_is_judged_by_what_its_users_waited() -> None:
    late = [replace(each, scheduled_s=each.sent_s - 0.45) for each in evenly()]
    closed = measured(late)
    got = measure(replace(result(late), arrival=Arrival.OPEN), SLO_, None, None)
    assert isinstance(got, Measurement)
    assert got.ttft_ms == closed.ttft_ms == pytest.approx([100] * 40)
    assert (got.scheduled_ttft_ms, closed.scheduled_ttft_ms) == (pytest.approx([550] * 40), ())
    assert (got.goodput_rps, closed.goodput_rps) == (0.0, pytest.approx(2.0))


def test_over_saturation_is_a_finding_unless_the_client_was_unfit() -> None:
    stopped = Stopped(cause=StopCause.OVER_SATURATED, sentence="Requests under way grew.")
    run = replace(result(evenly()), arrival=Arrival.OPEN, stopped=stopped)
    assert measure(run, SLO_, None, None) == Failure(
        kind=FailureKind.OVER_SATURATED,
        sentence="Over-saturated at 1.3 requests/s: Requests under way grew.",
    )
    unfit = replace(run, health=replace(FIT, fault="The load client sent 90 ms late."))
    got = measure(unfit, SLO_, None, None)
    assert isinstance(got, Failure)
    assert got.kind is FailureKind.CLIENT_UNFIT


def test_a_run_that_spent_its_budget_is_measured_as_far_as_it_went() -> None:
    spent = Stopped(cause=StopCause.BUDGET, sentence="The budget of 40 requests was spent.")
    assert isinstance(
        measure(replace(result(evenly()), stopped=spent), SLO_, None, None), Measurement
    )


SHARED = tuple(range(64))


def shared_plan(streams: int = 4) -> LoadPlan:
    """Prompts of 128 tokens, the first 64 of which are the same in all; a second each."""
    sessions = tuple(
        Session(
            name=str(i),
            turns=(
                RequestSpec(prompt=(*SHARED, *range(1000 * (i + 1), 1000 * (i + 1) + 64)), osl=91),
            ),
        )
        for i in range(400)
    )
    return LoadPlan(
        level="4 streams",
        arrival=Arrival.CLOSED,
        concurrency=streams,
        sessions=sessions,
        warm_up_s=2.0,
        duration_s=12.5,
        seed=9,
    )


def test_a_plan_tells_lengths_streams_and_what_a_cache_could_find() -> None:
    """Also of what was cut off, so that a short run does not hold short answers alone."""
    plan = shared_plan()
    run = simulate(plan, EngineBehaviour(ttft_s=0.1, tpot_s=0.01))
    cut_off = sum(record.error is RequestError.CANCELLED for record in run.records)
    assert cut_off == 4
    got = measure(run, SLO_, None, None, plan=plan)
    assert isinstance(got, Measurement)
    assert got.isl == (128,) * len(run.records)
    assert got.osl == (91,) * len(run.records)
    assert got.streams == 4
    assert got.planned_hit_rate == pytest.approx(0.5 * 399 / 400)
    sent = len(run.records)
    assert got.possible_hit_rate == pytest.approx(0.5 * (sent - 1) / sent)


def test_what_a_cache_could_find_is_told_in_the_blocks_that_the_plan_is_made_for() -> None:
    """Prompts that share 64 of 128 tokens have no block of 128 in common."""
    plan = replace(shared_plan(), block_tokens=128)
    got = measure(simulate(plan, EngineBehaviour()), SLO_, None, None, plan=plan)
    assert isinstance(got, Measurement)
    assert (got.planned_hit_rate, got.possible_hit_rate) == (0, 0)


@pytest.mark.parametrize(
    ("hits", "queries", "warm"),
    [
        (0.48, 1.0, False),
        (0.50, 1.0, False),  # a template's tokens beside the plan's
        (0.55, 1.0, True),
        (0.80, 1.0, True),
        (0.45, 0.9, False),  # the last ones still waited when the run ended
        (0.55, 0.9, True),
        (None, None, False),
    ],
)
def test_hits_beyond_what_an_empty_cache_could_give_void_the_measurement(
    hits: float | None, queries: float | None, warm: bool
) -> None:
    plan = shared_plan()
    run = simulate(plan, EngineBehaviour(ttft_s=0.1, tpot_s=0.01))
    tokens = 128 * len(run.records)
    sent = len(run.records)
    before = counters(0, 0, 0, prefix_hits=70_000, prefix_queries=90_000)
    after = counters(sent, 91 * sent, tokens)
    if hits is not None and queries is not None:
        after = replace(
            after, prefix_hits=70_000 + hits * tokens, prefix_queries=90_000 + queries * tokens
        )
    got = measure(run, SLO_, before, after, plan=plan)
    if not warm:
        assert isinstance(got, Measurement)
        return
    assert isinstance(got, Failure)
    assert got.kind is FailureKind.WARM_CACHE and not got.kind.blames_config
    assert got.sentence.endswith("it was warm with another run's prompts.")


@given(
    runs=st.lists(
        st.tuples(
            st.floats(0, 29.9),
            st.floats(0.001, 5),
            st.floats(0, 0.5),
            st.integers(1, 200),
            st.sampled_from([None, None, None, RequestError.CANCELLED, RequestError.HTTP_5XX]),
        ),
        max_size=60,
    ),
    blocks=st.integers(1, 40),
)
def test_blocks_add_up_to_the_whole(runs: list, blocks: int) -> None:
    records = [
        record(sent_s, ttft_s=ttft_s, tpot_s=tpot_s, osl=osl, error=error)
        for sent_s, ttft_s, tpot_s, osl, error in runs
    ]
    got = measure(result(records), SLO_, None, None, blocks=blocks)
    if isinstance(got, Failure):
        assert got.sentence.endswith(".")
        return
    assert got.seconds == pytest.approx(20.0)
    assert sum(block.requests for block in got.blocks) == got.requests
    assert sum(block.failed for block in got.blocks) == got.failed
    assert all(block.good + block.failed <= block.requests for block in got.blocks)
    made = sum(block.output_tokens for block in got.blocks)
    assert 0 <= made <= sum(r.osl for r in records if not r.failed) * 1.001
