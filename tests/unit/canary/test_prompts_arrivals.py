"""Open plans keep a rate and its bursts, or exact times, whatever the engine does."""

import random
from collections import defaultdict
from itertools import pairwise
from statistics import fmean, pvariance

import pytest

from canary.prompts import Arriving, arrivals_of, ideal_hit_rate, synthesise
from canary.prompts.arrivals import offsets
from canary.prompts.lengths import draw_turns
from canary.traces import length_correlation
from domain.errors import BadInput
from domain.interval import Interval
from domain.load import Arrival, LoadPlan
from domain.trace import Trace, TracedRequest
from domain.traffic import Burstiness, Distribution, Latencies, TrafficShape

SHAPE = TrafficShape(
    model="m",
    end_s=0.0,
    window_s=300.0,
    requests=1000.0,
    rate_rps=25.0,
    running=8.0,
    waiting=0.0,
    isl=Distribution.of_values(range(100, 900), (100, 200, 500, 1000)),
    osl=Distribution.of_values(range(20, 180), (20, 50, 100, 200)),
    latencies=Latencies(),
    burstiness=(
        Burstiness(
            scale_s=5.0,
            dispersion=4.0,
            interval=Interval(low=3.0, high=5.0, level=0.95, method="", n=40),
        ),
    ),
    correlation=0.6,
    prefix_hit_rate=0.5,
)


def planned(**options: object) -> LoadPlan:
    given = {"concurrency": 8, "warm_up_s": 5.0, "duration_s": 200.0, "level": "x", "seed": 1}
    return synthesise(SHAPE, **{**given, "arrival": Arrival.OPEN, **options})


def dispersion(times_s: list[float], until_s: float, interval_s: float) -> float:
    counts = [0] * int(until_s / interval_s)
    for at_s in times_s:
        counts[int(at_s / interval_s)] += 1
    return pvariance(counts) / fmean(counts)


@pytest.mark.parametrize("wanted", [0.0, 0.3, 1.0, 8.0])
@pytest.mark.parametrize("rate", [2.0, 40.0])
def test_arrivals_keep_their_rate_and_their_bursts(wanted: float, rate: float) -> None:
    until_s = 80_000 / rate
    drawn = list(offsets(random.Random(3), rate_rps=rate, until_s=until_s, dispersion=wanted))
    assert len(drawn) == pytest.approx(rate * until_s, rel=0.03)
    assert drawn == sorted(drawn)
    assert drawn[0] >= 0 and drawn[-1] < until_s
    found = dispersion(drawn, until_s, 200 / rate)
    assert found == pytest.approx(wanted, rel=0.2, abs=0.02)


def test_a_bursty_stream_is_no_denser_at_its_beginning() -> None:
    """A stream that begins with a request would have some 4 more in its first second."""
    first = [
        sum(1 for _ in offsets(random.Random(n), rate_rps=10.0, until_s=1.0, dispersion=8.0))
        for n in range(2000)
    ]
    assert fmean(first) == pytest.approx(10.0, rel=0.06)


def test_an_open_plan_is_the_shapes_rate_bursts_and_reuse() -> None:
    plan = planned()
    times = [session.start_s for session in plan.sessions]
    assert plan.arrival is Arrival.OPEN
    assert times == sorted(times)
    assert len(times) / plan.duration_s == pytest.approx(25.0, rel=0.06)
    assert dispersion(times, 200.0, 5.0) == pytest.approx(4.0, rel=0.4)
    assert all(len(session.turns) == 1 for session in plan.sessions)
    assert ideal_hit_rate(plan) == pytest.approx(0.5, abs=0.03)
    lengths = [(turn.isl, turn.osl) for session in plan.sessions for turn in session.turns]
    assert length_correlation(lengths) == pytest.approx(0.6, abs=0.05)


def test_conversations_go_on_side_by_side_and_grow() -> None:
    spoken: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for session in planned(turns=4).sessions:
        spoken[session.name].append((session.start_s, session.turns[0].isl))
    counts = [len(turns) for turns in spoken.values()]
    assert counts[:8] == [4, 3, 2, 1, 4, 3, 2, 1]
    assert max(counts) == 4
    for turns in spoken.values():
        assert [isl for _, isl in turns] == sorted(isl for _, isl in turns)
    gaps = [turns[1][0] - turns[0][0] for turns in spoken.values() if len(turns) > 1]
    assert fmean(gaps) == pytest.approx(16 / 25.0, rel=0.1)


def test_rate_and_bursts_can_be_asked_for() -> None:
    plan = planned(rate_rps=50.0, dispersion=0.0, duration_s=20.0)
    gaps = {round(b.start_s - a.start_s, 6) for a, b in pairwise(plan.sessions)}
    assert gaps == {0.02}


def test_exact_arrivals_are_kept_with_their_sessions() -> None:
    arrivals = [Arriving(0.25, "b"), Arriving(0.125, "a"), Arriving(7.0, "a"), Arriving(250.0, "a")]
    plan = planned(arrivals=arrivals, arrival=Arrival.CLOSED)
    assert plan.arrival is Arrival.OPEN
    assert [(s.start_s, s.name) for s in plan.sessions] == [(0.125, "a"), (0.25, "b"), (7.0, "a")]
    assert plan.sessions[0].turns[0].isl <= plan.sessions[2].turns[0].isl


def test_a_log_without_lengths_gives_arrivals() -> None:
    """As the gateway's own log: times and sessions, no lengths."""
    requests = tuple(
        TracedRequest(offset_s=at_s, isl=None, osl=None, session=session)
        for at_s, session in ((0.0, "x"), (10.0, None), (12.0, "x"), (15.0, "x"))
    )
    arriving = arrivals_of(Trace(requests=requests), start_s=10.0, window_s=5.0, speed=2.0)
    assert arriving == [Arriving(0.0, "request 0"), Arriving(1.0, "x")]
    assert len(planned(arrivals=arriving).sessions) == 2


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"rate_rps": 0.0}, "need a rate above 0"),
        ({"dispersion": -1.0}, "dispersion from 0 to 1000"),
        ({"dispersion": 2000.0}, "dispersion from 0 to 1000"),
        ({"rate_rps": 500.0}, r"more than a plan can hold; make it 0\.\d+ times as long"),
        ({"arrivals": [Arriving(-1.0, "a")]}, "before the plan's start"),
        ({"correlation": 1.5}, "between -1 and 1"),
    ],
)
def test_arrivals_that_make_no_plan_are_refused(options: dict, sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        planned(**options)


def test_a_trace_is_not_slowed_to_a_standstill() -> None:
    with pytest.raises(BadInput, match="at a speed above 0"):
        arrivals_of(Trace(requests=()), speed=0.0)


@pytest.mark.parametrize("wanted", [-0.7, 0.0, 0.4, 0.9])
def test_lengths_are_as_correlated_as_asked_and_distributed_as_before(wanted: float) -> None:
    drawn = draw_turns(SHAPE, random.Random(5), 6400, longest=1e9, correlation=wanted)
    assert length_correlation(drawn) == pytest.approx(wanted, abs=0.05)
    plain = draw_turns(SHAPE, random.Random(5), 6400, longest=1e9)
    assert sorted(t.osl for t in drawn) == sorted(t.osl for t in plain)
    assert [t.isl for t in drawn] == [t.isl for t in plain]
