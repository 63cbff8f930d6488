"""The parts of the shape benchmark that need no server: what it claims to be the truth is true."""

import random

import pytest

from benchmarks.shape import (
    MODEL,
    RATE_RPS,
    TRAFFIC,
    Engine,
    Scrape,
    Traffic,
    counted,
    requests,
    samples,
)
from domain.burstiness import burstiness
from tools.counters import counters


@pytest.mark.parametrize("traffic", TRAFFIC, ids=lambda traffic: traffic.name)
def test_the_traffic_has_the_rate_and_the_dispersion_that_it_is_named_for(traffic: Traffic):
    times = traffic.arrive(random.Random(1), RATE_RPS, 100_000.0)
    assert list(times) == sorted(times)
    assert len(times) / 100_000.0 == pytest.approx(RATE_RPS, rel=0.03)
    (long,) = burstiness(counted(times, 0.0, 100.0, 1000), 100.0, (1,))
    assert long.dispersion == pytest.approx(traffic.dispersion, rel=0.2)


def test_the_engine_counts_what_it_was_sent_until_it_is_restarted():
    asked = requests(TRAFFIC[0], random.Random(2), 30.0)
    engine = Engine(1)
    for one in asked:
        engine.send(one)
    engine.show(15.0)
    found = counters(engine.show(600.0))
    assert found is not None
    assert found.requests == len(asked) == len(engine.ended)
    assert found.prompt_tokens == sum(one.isl for one in asked)
    assert found.generation_tokens == sum(one.osl for one in asked)
    assert sorted((o.isl, o.osl) for o in engine.ended) == sorted((a.isl, a.osl) for a in asked)
    engine.restart()
    anew = counters(engine.show(601.0))
    assert anew is not None
    assert anew.requests == 0


def test_a_missed_scrape_is_stored_as_prometheus_stores_it():
    running = f'vllm:num_requests_running{{model_name="{MODEL}"}} 3\n'
    own = (("arm", "a"),)
    stored = samples([Scrape(1.0, running), Scrape(6.0, None), Scrape(11.0, running)], own, 100.0)
    up, series = (("__name__", "up"), *own), (("__name__", "vllm:num_requests_running"), *own)
    assert stored == {
        up: [(101_000, 1), (106_000, 0), (111_000, 1)],
        (*series, ("model_name", MODEL)): [(101_000, 3), (106_000, None), (111_000, 3)],
    }
