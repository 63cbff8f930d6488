"""Arrivals come back as they were sent, whatever the scrapes; what was not seen is a gap."""

import random
from collections.abc import Mapping, Sequence

import pytest

from domain.metrics import NoData, Reading, Sample, Series
from tests.fakes.metrics import FakeEngineMetrics, FakeMetricSource, target
from tools import arrivals, queries
from tools.arrivals import Arrivals

START_S, STEP_S, STEPS = 10_000.0, 5.0, 40
END_S = START_S + STEP_S * STEPS
A, B = target(arm="production", replica="a"), target(arm="production", replica="b")


class Fleet:
    """Engines with known arrivals in each step, scraped at the end of each, each at its phase."""

    def __init__(self, seed: int = 3) -> None:
        self.rng = random.Random(seed)
        self.source = FakeMetricSource()
        self.engines = {A: FakeEngineMetrics(), B: FakeEngineMetrics()}

    def step(self, replica: tuple[tuple[str, str], ...], n: int) -> None:
        """``n`` requests arrive; some end, some are turned away, the rest stays inside."""
        engine = self.engines[replica]
        rejected = self.rng.randint(0, n // 4)
        engine.reject(rejected)
        engine.waiting += n - rejected
        ended = self.rng.randint(0, int(engine.waiting))
        engine.waiting -= ended
        engine.finish(ended, reason=self.rng.choice(["stop", "length", "abort"]))

    def scrape(self, at_s: float, *replicas: tuple[tuple[str, str], ...]) -> None:
        self.source.scrape(at_s, {one: self.engines[one].text() for one in replicas})

    async def counted(self, scrape_s: float = STEP_S) -> Arrivals | None:
        spacing_s = arrivals.spacing(END_S - START_S, scrape_s)
        asked = arrivals.range_queries(queries.where(arm="production"), spacing_s)
        return arrivals.count(
            {
                name: await self.source.read_range(query, START_S, END_S, spacing_s)
                for name, query in asked.items()
            },
            spacing_s,
        )


def sent(seed: int) -> Sequence[int]:
    rng = random.Random(seed)
    return [rng.choice([0, 0, 3, 12]) for _ in range(STEPS + 2)]


async def played(
    fleet: Fleet, counts: Sequence[int], missed: Mapping[int, str] | None = None
) -> None:
    """One replica, scraped 1.1 s after each step began, but for what is ``missed``."""
    for k, n in enumerate(counts):
        at_s = START_S - STEP_S + 1.1 + k * STEP_S
        fleet.step(A, n)
        match (missed or {}).get(k):
            case None:
                fleet.scrape(at_s, A)
            case "down":
                fleet.source.scrape(at_s, {A: None})
            case "restart":
                fleet.engines[A] = FakeEngineMetrics()
                fleet.scrape(at_s, A)
            case "removed":
                fleet.source.scrape(at_s, {})
            case "nobody scraped":
                pass


async def known(fleet: Fleet) -> Arrivals:
    found = await fleet.counted()
    assert found is not None
    return found


async def test_what_arrived_is_counted_whether_it_ended_waits_or_was_turned_away():
    fleet, counts = Fleet(), sent(1)
    await played(fleet, counts)
    found = await known(fleet)
    assert found.step_s == pytest.approx(STEP_S)
    # Round 1 is the first in the window, so the first whole interval ends with round 2.
    assert found.counts == tuple(counts[2 : STEPS + 1])
    assert found.covered == 1


@pytest.mark.parametrize(
    ("missed", "unknown"),
    [
        ({10: "down"}, {10, 11}),
        ({10: "nobody scraped"}, {10, 11}),
        ({10: "nobody scraped", 11: "nobody scraped", 12: "nobody scraped"}, {10, 11, 12, 13}),
        ({10: "removed", 11: "removed"}, {10, 11, 12}),
        ({10: "restart"}, {10}),
    ],
)
async def test_what_was_not_seen_is_a_gap_and_no_number(
    missed: Mapping[int, str], unknown: set[int]
):
    fleet, counts = Fleet(), sent(2)
    await played(fleet, counts, missed)
    found = await known(fleet)
    expected = tuple(None if k in unknown else n for k, n in enumerate(counts) if 2 <= k <= STEPS)
    assert found.counts == expected
    assert found.covered == pytest.approx(1 - len(unknown) / (STEPS - 1))


async def test_scrapes_that_come_early_and_late_lose_nothing():
    fleet, counts = Fleet(), sent(4)
    for k, n in enumerate(counts):
        fleet.step(A, n)
        # About a moment, so that a scrape falls now before it and now after it.
        fleet.scrape(START_S - STEP_S + k * STEP_S + fleet.rng.uniform(-0.6, 0.6) + 2.5, A)
    assert (await known(fleet)).counts == tuple(counts[2 : STEPS + 1])


def test_a_fleet_is_summed_though_each_replica_is_scraped_at_its_own_time():
    """Two replicas that get ``k`` and ``10 k`` in step ``k``, scraped in other quarters of it."""

    def ranges(name: str) -> Sequence[Reading]:
        readings: list[Reading] = []
        for moment in range(4 * 8 + 1):
            series = []
            for replica, quarter, share in (("a", 0, 1), ("b", 3, 10)):
                k = (moment - quarter) // 4
                value = {"finished": share * k * (k + 1) / 2, "scraped": moment % 4 == quarter}
                if k >= 0 and (name != "scraped" or value[name]):
                    labels = (("instance", "host"), ("replica", replica))
                    series.append(Series(labels=labels, value=float(value.get(name, 0.0))))
            sample = Sample(at_s=float(moment), series=tuple(series))
            readings.append(sample if series else NoData(reason="no scrape"))
        return readings

    found = arrivals.count({name: ranges(name) for name in arrivals.range_queries((), 1.0)}, 1.0)
    assert found == Arrivals(4.0, tuple(11.0 * k for k in range(1, 8)))


@pytest.mark.parametrize("goes", [True, False])
async def test_a_replica_that_comes_or_goes_leaves_one_gap(goes: bool):
    fleet, ours, theirs = Fleet(), sent(7), sent(8)
    both = range(20) if goes else range(20, STEPS + 2)
    for k in range(STEPS + 2):
        fleet.step(A, ours[k])
        fleet.step(B, theirs[k] if k in both else 0)
        fleet.scrape(START_S - STEP_S + 1.1 + k * STEP_S, A, *([B] if k in both else []))
    expected = tuple(
        None if k == 20 else ours[k] + (theirs[k] if k in both else 0) for k in range(STEPS + 2)
    )
    assert (await known(fleet)).counts == expected[2 : STEPS + 1]


@pytest.mark.parametrize(("told_s", "true_s", "step_s"), [(5, 15, 15), (5, 4.7, 4.7), (5, 1, 3.75)])
async def test_the_scrape_interval_is_what_it_was_and_not_what_was_told(
    told_s: float, true_s: float, step_s: float
):
    """Told 5 s, moments are 1.25 s apart, so that scrapes each second are taken together."""
    fleet = Fleet()
    at_s, rounds = START_S - 20, 0
    while at_s < END_S:
        fleet.step(A, 4)
        fleet.scrape(at_s, A)
        at_s, rounds = at_s + true_s, rounds + 1
    found = await fleet.counted(told_s)
    assert found is not None
    assert found.step_s == pytest.approx(step_s, rel=0.02)
    assert found.covered == 1
    assert sum(filter(None, found.counts)) == pytest.approx(
        4 / true_s * found.step_s * len(found.counts), rel=0.03
    )


async def test_an_engine_that_counts_no_rejections_has_none():
    fleet, counts = Fleet(), [3] * (STEPS + 2)
    await played(fleet, counts)
    fleet.source.answer(queries.REJECTED, NoData(reason="an older engine"))
    assert set((await known(fleet)).counts) == {3.0}


async def test_without_scrapes_there_is_nothing_to_tell():
    assert await Fleet().counted() is None
