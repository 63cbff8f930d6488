"""What ends a run early: an engine that cannot keep up (not a burst, not chance), or a budget."""

import heapq
import math
import random
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import pytest

from canary.loadgen.options import Budget, Options
from canary.loadgen.progress import Progress
from canary.loadgen.saturation import Limits, Sample, over_saturated
from domain.load import Arrival, LoadPlan, RequestSpec, StopCause

SPEC = RequestSpec(prompt=(1,), osl=1)


def poisson(rng: random.Random, rate_rps: float, until_s: float) -> Iterator[float]:
    at_s = rng.expovariate(rate_rps)
    while at_s < until_s:
        yield at_s
        at_s += rng.expovariate(rate_rps)


class Answered:
    """A request of a simulated engine; equal to none but itself."""

    def __init__(self) -> None:
        self.first_s: float | None = None


class Served(NamedTuple):
    """When an engine was asked for an answer, gave its first token, and its last."""

    asked_s: float
    first_s: float
    end_s: float


def queueing(arrivals: Sequence[float], works_s: Sequence[float], places: int) -> list[Served]:
    """An engine that answers ``places`` requests at a time; others wait for their first token."""
    free = [0.0] * places
    served = []
    for at_s, work_s in zip(arrivals, works_s, strict=True):
        first_s = max(at_s, heapq.heappop(free))
        heapq.heappush(free, first_s + work_s)
        served.append(Served(at_s, first_s, first_s + work_s))
    return served


def sharing(arrivals: Sequence[float], works_s: Sequence[float], places: int) -> list[Served]:
    """An engine that begins each answer at once, and beyond ``places`` slows all of them down."""
    served: list[Served] = []
    under_way: list[tuple[float, float]] = []  # the work at which each is done, when it came
    now_s = done_s = 0.0

    def on_to(until_s: float) -> None:
        nonlocal now_s, done_s
        while under_way:
            speed = min(1.0, places / len(under_way))
            end_s = now_s + (under_way[0][0] - done_s) / speed
            if end_s > until_s:
                done_s += (until_s - now_s) * speed
                break
            now_s, done_s = end_s, under_way[0][0]
            at_s = heapq.heappop(under_way)[1]
            served.append(Served(at_s, at_s, end_s))
        now_s = until_s

    for at_s, work_s in zip(arrivals, works_s, strict=True):
        on_to(at_s)
        heapq.heappush(under_way, (done_s + work_s, at_s))
    on_to(math.inf)
    return served


def given_up_at(
    served: Sequence[Served], *, warm_up_s: float = 20.0, until_s: float = 300.0
) -> float | None:
    """When a run that goes like this is given up."""
    progress = Progress(plan(warm_up_s=warm_up_s, duration_s=until_s), Options())
    looks = [(0.1 * i, progress.look) for i in range(int(10 * until_s))]
    events: list[tuple[float, Callable[[float], object]]] = [*looks]
    for request in served:
        answer = Answered()

        def ask(at_s: float, answer: Answered = answer) -> None:
            progress.ask(SPEC)
            progress.begun(answer, at_s)

        def begin(at_s: float, answer: Answered = answer) -> None:
            answer.first_s = at_s

        def end(_: float, answer: Answered = answer) -> None:
            progress.ended(answer)

        events += [(request.asked_s, ask), (request.first_s, begin), (request.end_s, end)]
    for at_s, happens in sorted(events, key=lambda event: event[0]):
        if at_s < until_s and happens(at_s):
            return at_s
    return None


def stopped_at(
    arrivals: list[float],
    service_s: float,
    places: int,
    *,
    seed: int = 0,
    warm_up_s: float = 20.0,
) -> float | None:
    """When a run on an engine of ``places`` is given up; services are exponential of that mean."""
    rng = random.Random(seed)
    works_s = [rng.expovariate(1 / service_s) for _ in arrivals]
    return given_up_at(queueing(arrivals, works_s, places), warm_up_s=warm_up_s)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("rate_rps", [2.0, 8.0, 30.0])
def test_an_engine_that_keeps_up_is_left_alone(seed: int, rate_rps: float) -> None:
    arrivals = list(poisson(random.Random(seed), rate_rps, 300.0))
    assert stopped_at(arrivals, 5.0, int(rate_rps * 5.0 * 1.4) + 4, seed=seed) is None


@pytest.mark.parametrize("seed", range(5))
def test_an_engine_asked_for_half_more_than_it_can_is_given_up_early(seed: int) -> None:
    arrivals = list(poisson(random.Random(seed), 15.0, 300.0))
    at_s = stopped_at(arrivals, 2.0, 20, seed=seed)
    assert at_s is not None
    assert at_s < 150


def test_a_burst_that_is_worked_off_is_let_pass() -> None:
    rng = random.Random(1)
    calm = list(poisson(rng, 4.0, 300.0))
    burst = [100.0 + at_s for at_s in poisson(rng, 8.0, 40.0)]
    assert stopped_at(sorted(calm + burst), 1.0, 10) is None


def test_a_run_that_fills_up_is_let_pass() -> None:
    """Answers of a quarter of a minute on average, and a warm-up far too short for them."""
    arrivals = list(poisson(random.Random(3), 10.0, 300.0))
    assert stopped_at(arrivals, 15.0, 1000, warm_up_s=1.0) is None


Engine = Callable[[Sequence[float], Sequence[float], int], list[Served]]


def even(rng: random.Random, mean_s: float) -> float:
    """Answers that are nearly of one length."""
    return rng.uniform(0.9, 1.1) * mean_s


def skewed(rng: random.Random, mean_s: float) -> float:
    """Answers of which a few are much longer than most."""
    return rng.lognormvariate(math.log(mean_s) - 0.5, 1.0)


def load(
    engine: Engine,
    lengths: Callable[[random.Random, float], float],
    mean_s: float,
    *,
    used: float,
    rate_rps: float = 5.0,
    seed: int = 1,
) -> list[Served]:
    """What becomes of 300 s of requests, on an engine that they use to this share of it."""
    rng = random.Random(seed)
    arrivals = list(poisson(rng, rate_rps, 300.0))
    works_s = [lengths(rng, mean_s) for _ in arrivals]
    return engine(arrivals, works_s, round(rate_rps * mean_s / used))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("warm_up_s", [1.0, 20.0])
@pytest.mark.parametrize("mean_s", [30.0, 60.0, 110.0])
@pytest.mark.parametrize("lengths", [even, skewed])
@pytest.mark.parametrize("engine", [queueing, sharing])
def test_long_answers_at_a_rate_that_the_engine_carries_are_never_given_up(
    engine: Engine,
    lengths: Callable[[random.Random, float], float],
    mean_s: float,
    warm_up_s: float,
    seed: int,
) -> None:
    """Much longer than the warm-up: requests under way grow for as long as the first ones last."""
    served = load(engine, lengths, mean_s, used=0.7, seed=seed)
    assert given_up_at(served, warm_up_s=warm_up_s) is None


@pytest.mark.parametrize("used", [1.5, 3.0, 20.0])
@pytest.mark.parametrize("lengths", [even, skewed])
@pytest.mark.parametrize("mean_s", [2.0, 60.0])
def test_requests_that_queue_up_are_given_up_early_whatever_the_answers_last(
    mean_s: float, lengths: Callable[[random.Random, float], float], used: float
) -> None:
    """Also where the queue is so long that hardly a request of the first seconds ends."""
    at_s = given_up_at(load(queueing, lengths, mean_s, used=used, rate_rps=20.0))
    assert at_s is not None
    assert at_s < 140


@pytest.mark.parametrize(("mean_s", "before_s"), [(2.0, 140.0), (30.0, 220.0)])
@pytest.mark.parametrize("lengths", [even, skewed])
def test_answers_that_all_get_slower_are_given_up_in_the_end(
    lengths: Callable[[random.Random, float], float], mean_s: float, before_s: float
) -> None:
    """No request waits for its first token, so the run has to fill up before it can be judged."""
    at_s = given_up_at(load(sharing, lengths, mean_s, used=1.5, rate_rps=20.0))
    assert at_s is not None
    assert at_s < before_s


def steady(filled_after: int = 0, **fields: list[float]) -> list[Sample]:
    """A sample each half second for 40 s at 10 requests/s."""
    return [
        Sample(
            10 + i / 2,
            100 + 5 * i,
            int(fields.get("under_way", [5.0] * 81)[i]),
            int(fields.get("waiting", [0.0] * 81)[i]),
            fields.get("lag_s", [0.0] * 81)[i],
            filling=i < filled_after,
        )
        for i in range(81)
    ]


@pytest.mark.parametrize(
    ("samples", "limits", "said"),
    [
        (steady(), Limits(), None),
        (steady(), Limits(under_way=5), None),
        (steady(), Limits(under_way=4), "5 requests were under way at once, more than the limit"),
        (steady(under_way=[2.0 * i for i in range(81)]), Limits(), "grew from 40 to 160 in 30 s"),
        (steady(under_way=[2.0 * i for i in range(81)]), Limits(growing_s=41.0), None),
        (steady(20, under_way=[2.0 * i for i in range(81)]), Limits(), "grew from 40 to 160"),
        (steady(21, under_way=[2.0 * i for i in range(81)]), Limits(), None),
        (steady(81, waiting=[2.0 * i for i in range(81)]), Limits(), "wait for a first token grew"),
        (steady(under_way=[0.2 * i for i in range(81)]), Limits(), None),
        (steady(lag_s=[0.05 * i for i in range(81)]), Limits(), "lag grew from 1.0 s to 4.0 s"),
        (steady(lag_s=[0.005 * i for i in range(81)]), Limits(), None),
        ([], Limits(under_way=1), None),
    ],
)
def test_what_is_given_up_and_why(samples: list[Sample], limits: Limits, said: str | None) -> None:
    reason = over_saturated(samples, limits)
    assert (said in reason) if said and reason else reason is said


def plan(arrival: Arrival = Arrival.OPEN, **changes: float) -> LoadPlan:
    return LoadPlan(
        level="test",
        arrival=arrival,
        concurrency=1,
        sessions=(),
        seed=1,
        **{"warm_up_s": 60.0, "duration_s": 100.0} | changes,
    )


@pytest.mark.parametrize("arrival", Arrival)
def test_the_limit_holds_for_open_plans_also_before_anything_was_answered(
    arrival: Arrival,
) -> None:
    progress = Progress(plan(arrival), Options(saturation=Limits(under_way=3)))
    for _ in range(3):
        progress.begun(Answered(), 0.5)
    assert progress.look(1.0) is None
    progress.begun(Answered(), 1.5)
    stopped = progress.look(2.0)
    assert (stopped is not None) is (arrival is Arrival.OPEN)
    if stopped is not None:
        assert stopped.cause is StopCause.OVER_SATURATED


@pytest.mark.parametrize(
    ("budget", "asked", "said"),
    [
        (Budget(), 9, None),
        (Budget(requests=4), 4, "The budget of 4 requests was spent."),
        (Budget(requests=9), 9, None),
        (Budget(requests=0), 0, "The budget of 0 requests was spent."),
        (Budget(tokens=11), 5, "The budget of 11 tokens was spent."),
    ],
)
def test_a_budget_is_never_exceeded(budget: Budget, asked: int, said: str | None) -> None:
    progress = Progress(plan(), Options(budget=budget))
    assert [progress.ask(SPEC) for _ in range(9)].count(True) == asked
    stopped = progress.over(50.0)
    assert (stopped and stopped.sentence) == said
    assert stopped is None or stopped.cause is StopCause.BUDGET


@pytest.mark.parametrize(
    ("seconds", "lasts_s", "over_s", "spent"),
    [(40.0, 40.0, 40.1, True), (40.0, 40.0, 30.0, False), (200.0, 100.0, 100.1, False)],
)
def test_seconds_cut_a_run_off_unless_its_plan_ends_before(
    seconds: float, lasts_s: float, over_s: float, spent: bool
) -> None:
    progress = Progress(plan(), Options(budget=Budget(seconds=seconds)))
    assert progress.duration_s == lasts_s
    assert (progress.over(over_s) is not None) is spent
