"""What ends a run early: an engine that cannot keep up (not a burst, not chance), or a budget."""

import heapq
import random
from collections.abc import Iterator

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


def stopped_at(
    arrivals: list[float],
    service_s: float,
    places: int,
    *,
    seed: int = 0,
    warm_up_s: float = 20.0,
    until_s: float = 300.0,
) -> float | None:
    """When a run on an engine of ``places`` is given up; services are exponential of that mean."""
    rng = random.Random(seed)
    progress = Progress(plan(warm_up_s=warm_up_s, duration_s=until_s), Options())
    free = [0.0] * places
    events = [(at_s, False) for at_s in arrivals]
    for at_s in arrivals:
        end_s = max(at_s, heapq.heappop(free)) + rng.expovariate(1 / service_s)
        heapq.heappush(free, end_s)
        events.append((end_s, True))
    looks = [(0.1 * i, None) for i in range(int(10 * until_s))]
    for at_s, is_end in sorted([*events, *looks], key=lambda event: event[0]):
        if is_end is None:
            if progress.look(at_s):
                return at_s
        elif is_end:
            progress.ended()
        else:
            progress.ask(SPEC)
    return None


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


def steady(**fields: list[float]) -> list[Sample]:
    """A sample each half second for 40 s at 10 requests/s."""
    return [
        Sample(
            10 + i / 2,
            100 + 5 * i,
            int(fields.get("under_way", [5.0] * 81)[i]),
            fields.get("lag_s", [0.0] * 81)[i],
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
        progress.ask(SPEC)
    assert progress.look(1.0) is None
    progress.ask(SPEC)
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
