"""What a rehearsal sends: the live shape or a stretch of a trace, in natural text where it can."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import mean, variance

import pytest

from agent.loads import TrialLength, load_of, trace_in
from canary.prompts import part_of
from canary.traces import write_trace
from domain.errors import BadInput
from domain.interval import Interval
from domain.load import Arrival, LoadPlan
from domain.trace import Trace, TracedRequest
from domain.traffic import Burstiness
from tests.fakes.records import shape, study

LENGTH = TrialLength(
    warm_up_s=2.0, measured_s=8.0, screened_s=4.0, min_requests=8, rounds=1, max_model_len=2048
)
OPEN = replace(LENGTH, arrival=Arrival.OPEN)
CORPUS = tuple(range(1000, 9000))
TRACE = Trace(
    requests=tuple(
        TracedRequest(offset_s=n * 0.5, isl=100 + n, osl=9, session=f"s{n % 3}") for n in range(120)
    )
)
LOGGED = Trace(requests=tuple(replace(r, isl=None, osl=None) for r in TRACE.requests))


def test_without_a_trace_the_load_is_the_studys_shape_at_its_concurrency() -> None:
    asked = study()
    plan = load_of(asked, 5, LENGTH)
    assert (plan.arrival, plan.concurrency) == (Arrival.CLOSED, round(asked.shape.concurrency))
    assert (plan.warm_up_s, plan.duration_s, plan.seed) == (2.0, 10.0, 5)


def came(plan: LoadPlan) -> list[float]:
    return [session.start_s for session in plan.sessions]


def test_an_open_load_keeps_the_live_rate_and_comes_alike_in_each_trial() -> None:
    asked = replace(study(), shape=shape(rate_rps=20.0))
    longer = replace(OPEN, measured_s=98.0)
    one, other = (load_of(asked, seed, longer) for seed in (5, 6))
    assert (one.arrival, one.level) == (Arrival.OPEN, "20 requests/s")
    assert len(one.sessions) == pytest.approx(2000, abs=150)
    assert came(one) == came(other)
    assert one.sessions[0].turns[0].prompt != other.sessions[0].turns[0].prompt
    assert came(load_of(replace(asked, seed=asked.seed + 1), 5, longer)) != came(one)


@pytest.mark.parametrize(("times", "streams"), [(2.0, 96), (1.5, 72), (4.0, 192)])
def test_a_heavier_load_is_so_many_times_the_live_one(times: float, streams: int) -> None:
    plan = load_of(study(), 5, LENGTH, times=times)
    assert (plan.concurrency, plan.level) == (streams, f"{streams} streams")
    asked = replace(study(), shape=shape(rate_rps=20.0))
    plan = load_of(asked, 5, replace(OPEN, measured_s=98.0), times=times)
    assert plan.level == f"{20 * times:g} requests/s"
    assert len(plan.sessions) == pytest.approx(2000 * times, rel=0.07)


@pytest.mark.parametrize("concurrency", [0.3, 1.4, 2.5])
def test_little_traffic_has_heavier_loads_too(concurrency: float) -> None:
    asked = replace(study(), shape=shape(running=concurrency, waiting=0.0))
    streams = [load_of(asked, 5, LENGTH, times=times).concurrency for times in (1.0, 2.0, 4.0)]
    assert streams == [times * streams[0] for times in (1, 2, 4)]


def test_an_open_load_has_the_live_bursts() -> None:
    """Counts of seconds vary as live ones did; where that is not known they vary as Poisson's."""

    def dispersion(live: tuple[Burstiness, ...]) -> float:
        asked = replace(study(), shape=shape(rate_rps=20.0, burstiness=live))
        times = came(load_of(asked, 5, replace(OPEN, measured_s=298.0)))
        counts = [sum(second <= at_s < second + 1 for at_s in times) for second in range(300)]
        return variance(counts) / mean(counts)

    interval = Interval(low=6.0, high=10.0, level=0.95, method="test", n=60)
    assert dispersion((Burstiness(scale_s=2.0, dispersion=8.0, interval=interval),)) > 3
    assert 0.7 < dispersion(()) < 1.4


def test_an_open_load_needs_a_rate() -> None:
    with pytest.raises(BadInput, match="no rate to keep; set arrivals to closed"):
        load_of(replace(study(), shape=shape(rate_rps=0.0)), 5, OPEN)


@pytest.mark.parametrize("length", [LENGTH, OPEN])
@pytest.mark.parametrize("trace", [TRACE, LOGGED])
def test_a_trace_keeps_its_own_times(trace: Trace, length: TrialLength) -> None:
    plan = load_of(study(), 5, length, trace=trace)
    assert plan.arrival is Arrival.OPEN
    assert came(plan) == came(load_of(study(), 5, LENGTH, trace=TRACE))


@pytest.mark.parametrize("trace", [None, TRACE, LOGGED])
def test_prompts_are_cut_from_the_corpus(trace: Trace | None) -> None:
    plan = load_of(study(), 5, LENGTH, corpus=CORPUS, trace=trace)
    tokens = {token for session in plan.sessions for turn in session.turns for token in turn.prompt}
    assert tokens <= set(CORPUS)


def test_all_trials_of_a_study_repeat_one_stretch_of_the_trace_with_other_tokens() -> None:
    one, other = (load_of(study(), seed, LENGTH, trace=TRACE) for seed in (5, 6))

    def sent(plan):
        return [(s.start_s, s.turns[0].isl, s.turns[0].osl) for s in plan.sessions]

    assert one.arrival is Arrival.OPEN
    assert sent(one) == sent(other)
    assert len(sent(one)) == 20
    assert one.sessions[0].turns[0].prompt != other.sessions[0].turns[0].prompt


def test_a_trace_without_lengths_gives_its_times_to_the_shapes_lengths() -> None:
    logged = load_of(study(), 5, LENGTH, trace=LOGGED)
    times = [session.start_s for session in logged.sessions]
    assert [after - at for at, after in pairwise(times)] == pytest.approx([0.5] * 19)
    assert all(session.turns[0].isl > 0 for session in logged.sessions)


def test_a_trace_shorter_than_a_trial_is_played_whole() -> None:
    short = Trace(requests=TRACE.requests[:10])
    assert len(load_of(study(), 5, LENGTH, trace=short).sessions) == 10


def test_a_file_is_read_as_the_trace_that_it_is(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("".join(write_trace(TRACE, "azure")), encoding="utf-8")
    assert [r.isl for r in trace_in(path).requests] == [r.isl for r in TRACE.requests]
    path.write_bytes(b"\xff\xfe\xff")
    with pytest.raises(BadInput, match="is no text in UTF-8"):
        trace_in(path)
    with pytest.raises(BadInput, match="cannot be read: No such file"):
        trace_in(tmp_path / "none")


@pytest.mark.parametrize("length", [LENGTH, OPEN])
@pytest.mark.parametrize("trace", [None, TRACE, LOGGED])
def test_a_screening_load_is_the_beginning_of_the_whole_one(
    trace: Trace | None, length: TrialLength
) -> None:
    asked = replace(study(), shape=shape(rate_rps=20.0))
    whole = load_of(asked, 5, length, trace=trace)
    screening = load_of(asked, 5, length, trace=trace, screening=True)
    assert (screening.warm_up_s, screening.duration_s) == (2.0, 6.0)
    assert screening.level == whole.level
    if whole.arrival is Arrival.OPEN:
        times = [session.start_s for session in whole.sessions]
        assert [session.start_s for session in screening.sessions] == times[
            : len(screening.sessions)
        ]
        assert 0 < len(screening.sessions) < len(times)


def test_of_several_replicas_one_is_rehearsed() -> None:
    asked = replace(study(), shape=shape(rate_rps=20.0), replicas=2)
    assert load_of(asked, 5, LENGTH).concurrency == round(asked.shape.concurrency / 2)
    assert load_of(asked, 5, LENGTH, times=2.0).concurrency == round(asked.shape.concurrency)
    plan = load_of(asked, 5, replace(OPEN, measured_s=98.0))
    assert (plan.level, len(plan.sessions)) == ("10 requests/s", pytest.approx(1000, abs=110))


def test_a_trace_of_all_replicas_is_thinned_to_the_whole_sessions_of_one() -> None:
    """A replica meets all turns of a conversation, in their time, or none."""
    sessions = [f"s{n}" for n in range(60)]
    trace = Trace(
        requests=tuple(
            TracedRequest(offset_s=n * 0.1, isl=100, osl=9, session=sessions[n % 60])
            for n in range(600)
        )
    )
    kept = {seed: part_of(trace, 3, seed=seed) for seed in (study().seed, study().seed + 1)}
    for part in kept.values():
        names = {request.session for request in part.requests}
        assert 10 < len(names) < 30
        assert part.requests == tuple(r for r in trace.requests if r.session in names)
    one, other = kept.values()
    assert one.requests != other.requests
    assert part_of(trace, 3, seed=study().seed) == one
    whole, long = study(), replace(LENGTH, measured_s=58.0)
    plan = load_of(replace(whole, replicas=3), 5, long, trace=trace)
    assert [s.start_s for s in plan.sessions] == [r.offset_s for r in one.requests]
    assert len(load_of(whole, 5, long, trace=trace).sessions) == 600


def test_sessions_that_a_trace_does_not_name_are_thinned_by_their_prefixes() -> None:
    turns = [tuple(range(100 * n, 100 * n + turn + 2)) for n in range(30) for turn in range(3)]
    trace = Trace(
        requests=tuple(
            TracedRequest(offset_s=0.5 * n, isl=16 * len(blocks), osl=4, blocks=blocks)
            for n, blocks in enumerate(turns)
        ),
        block_tokens=16,
    )
    part = part_of(trace, 2, seed=3)
    met = [request.blocks[0] for request in part.requests]
    assert 0 < len(met) < len(turns)
    assert {met.count(first) for first in met} == {3}


def test_a_trace_of_too_few_sessions_for_the_replicas_is_refused() -> None:
    lone = Trace(requests=tuple(replace(r, session="one") for r in TRACE.requests))
    seed = next(n for n in range(99) if not _kept(lone, n))
    with pytest.raises(BadInput, match="has 1 sessions, too few to tell what one of 3 replicas"):
        load_of(replace(study(), replicas=3, seed=seed), 5, LENGTH, trace=lone)


def _kept(trace: Trace, seed: int) -> bool:
    try:
        return bool(part_of(trace, 3, seed=seed).requests)
    except BadInput:
        return False
