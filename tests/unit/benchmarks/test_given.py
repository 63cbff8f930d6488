"""A given load says what it gives and nothing that only production could know."""

from dataclasses import replace

from benchmarks.given import TrialList, exactly, given_shape, given_study
from domain.engine import EngineConfig
from domain.study import Trial, TrialPurpose, TrialState
from domain.traffic import Bounds


def test_a_given_load_has_its_lengths_and_streams_and_no_rate():
    shape = given_shape("m", streams=16, isl=exactly(512), osl=exactly(32), hit_rate=0.5)
    assert (shape.concurrency, shape.rate_rps, shape.requests) == (16.0, 0.0, 0.0)
    assert (shape.isl.mean, shape.osl.mean, shape.prefix_hit_rate) == (512.0, 32.0, 0.5)
    assert shape.isl.quantile_bounds(0.95) == Bounds(511.0, 512.0)
    study = given_study("s", shape, reason="A test.", trials=4, seed=3)
    assert (study.baseline, study.trial_budget, study.shape) == (EngineConfig(), 4, shape)


def test_the_list_of_trials_keeps_their_order_and_the_last_that_is_known_of_each():
    first, second = (
        Trial(
            id=name,
            study_id="s",
            number=number,
            purpose=TrialPurpose.SEARCH,
            config=EngineConfig(),
            hypothesis="",
        )
        for number, name in enumerate("ab")
    )
    log = TrialList()
    log.add(first)
    log.add(second)
    ended = replace(first, state=TrialState.MEASURED)
    log.save(ended)
    assert log.trials("s") == (ended, second)
