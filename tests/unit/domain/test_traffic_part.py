"""What one of several engines gets of a fleet's traffic."""

from dataclasses import replace

import pytest

from tests.fakes.records import BURSTINESS, shape

WHOLE = shape(
    output_tok_s=900.0,
    rejected=6.0,
    preemptions=3.0,
    finish_reasons=(("length", 30.0), ("stop", 450.0)),
    burstiness=BURSTINESS,
)


def test_flows_are_shared_out_and_what_is_alike_on_each_is_not() -> None:
    part = WHOLE.part(3)
    assert (part.requests, part.running, part.output_tok_s) == (160.0, 40 / 3, 300.0)
    assert (part.rejected, part.preemptions) == (2.0, 1.0)
    assert part.rate_rps == pytest.approx(WHOLE.rate_rps / 3)
    assert part.concurrency == pytest.approx(WHOLE.concurrency / 3)
    assert part.grown == pytest.approx(WHOLE.grown / 3)
    assert part.finish_reasons == (("length", 10.0), ("stop", 150.0))
    for name in ("isl", "osl", "latencies", "prefix_hit_rate", "window_s", "end_s", "model"):
        assert getattr(part, name) == getattr(WHOLE, name)


def test_one_engine_gets_all_and_what_nobody_knows_stays_unknown() -> None:
    assert WHOLE.part(1) == WHOLE
    part = replace(WHOLE, output_tok_s=None, rejected=None, preemptions=None).part(2)
    assert (part.output_tok_s, part.rejected, part.preemptions) == (None, None, None)


def test_bursts_are_thinned_towards_a_poisson_stream() -> None:
    bursty, even = (replace(BURSTINESS[0], dispersion=dispersion) for dispersion in (5.0, 0.2))
    assert bursty.part(4).dispersion == pytest.approx(2.0)
    assert even.part(4).dispersion == pytest.approx(0.8)
    interval, thinned = BURSTINESS[1].interval, BURSTINESS[1].part(2).interval
    assert (thinned.low, thinned.high) == (1 + (interval.low - 1) / 2, 1 + (interval.high - 1) / 2)
