from __future__ import annotations

from dataclasses import replace

import pytest

from agent.planner.diagnosis import Bottleneck, diagnose
from domain.engine import EngineConfig, Knob, Place, SearchSpace
from domain.study import (
    Block,
    Measurement,
    Study,
    Trial,
    TrialPurpose,
    TrialState,
)
from domain.traffic import Distribution, Latencies
from tests.fakes import records

SPACE = SearchSpace(
    knobs=(
        Knob(name="max_num_seqs", place=Place.FLAG, domain=(64, 128, 256), default=128),
        Knob(name="async_scheduling", place=Place.FLAG, domain=(False, True), default=False),
    )
)


def study(isl: float = 512, osl: float = 512, **figures: object) -> Study:
    whole = {
        "requests": 1000.0,
        "running": 100.0,
        "waiting": 0.0,
        "isl": Distribution.of_values([isl], (1e6,)),
        "osl": Distribution.of_values([osl], (1e6,)),
        "latencies": Latencies(),
        "prefix_hit_rate": None,
        **figures,
    }
    return records.study(shape=records.shape(**whole), baseline=EngineConfig())


def baseline_trial(**figures: object) -> Trial:
    whole = {
        "level": "l",
        "seed": 1,
        "requests": 100,
        "failed": 0,
        "blocks": (Block(seconds=1.0, requests=100, good=1, failed=0, output_tokens=1.0),),
        "ttft_ms": (),
        "tpot_ms": (),
        **figures,
    }
    return Trial(
        id="t1",
        study_id="s1",
        number=1,
        purpose=TrialPurpose.BASELINE,
        config=EngineConfig(),
        hypothesis="",
        state=TrialState.MEASURED,
        measurement=Measurement(**whole),  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    ("given", "expected", "words"),
    [
        (study(running=0.0), Bottleneck.UNKNOWN, "no requests were seen"),
        (study(preemptions=50.0), Bottleneck.KV_CACHE, "0.05 preemptions a request"),
        (study(preemptions=5.0), Bottleneck.DECODE, "1.0 prompt tokens"),
        (study(running=125.0, waiting=40.0), Bottleneck.SCHEDULER, "max_num_seqs is 128"),
        (study(running=50.0, waiting=40.0), Bottleneck.KV_CACHE, "the batch has places left"),
        (
            study(8192, 64, running=50.0, waiting=40.0, kv_cache_usage=0.97),
            Bottleneck.KV_CACHE,
            "the KV cache is 97% full",
        ),
        (
            study(running=50.0, waiting=40.0, kv_cache_usage=0.4),
            Bottleneck.PREFILL,
            "the KV cache is 40% full",
        ),
        (study(8192, 64, running=50.0, waiting=40.0), Bottleneck.PREFILL, "prompts are long"),
        (study(draft_acceptance=0.31), Bottleneck.SPECULATION, "31% of drafted tokens"),
        (study(8192, 128), Bottleneck.PREFILL, "64.0 prompt tokens"),
        (study(8192, 128, prefix_hit_rate=0.95), Bottleneck.DECODE, "3.2 prompt tokens"),
        (
            study(latencies=Latencies(ttft_p95_ms=900.0, tpot_p95_ms=60.0)),
            Bottleneck.PREFILL,
            "TTFT p95 is 1.80 times its limit",
        ),
        (
            study(latencies=Latencies(ttft_p95_ms=100.0, tpot_p95_ms=60.0)),
            Bottleneck.DECODE,
            "TPOT p95 is 1.20 times its limit",
        ),
    ],
)
def test_the_bottleneck_is_named_with_its_figures(
    given: Study, expected: Bottleneck, words: str
) -> None:
    found = diagnose(given, SPACE, ())
    assert found.bottleneck is expected
    assert words in found.sentence


def test_places_in_the_batch_are_the_baselines_own_where_it_sets_them() -> None:
    waiting = study(running=125.0, waiting=40.0)
    assert diagnose(waiting, SearchSpace(knobs=()), ()).bottleneck is Bottleneck.KV_CACHE


def test_what_live_traffic_does_not_tell_is_read_from_the_baselines_trial() -> None:
    silent = study()
    assert diagnose(silent, SPACE, (baseline_trial(preemptions=9.0),)).bottleneck is (
        Bottleneck.KV_CACHE
    )
    told = diagnose(silent, SPACE, (baseline_trial(prefix_hit_rate=0.4, draft_acceptance=0.8),))
    assert "40% of prompt tokens found in the prefix cache" in told.sentence
    assert "80% of drafted tokens accepted" in told.sentence


def test_live_figures_outrank_the_trials() -> None:
    live = study(preemptions=0.0)
    assert diagnose(live, SPACE, (baseline_trial(preemptions=9.0),)).bottleneck is (
        Bottleneck.DECODE
    )


def test_the_sentence_sets_latencies_beside_their_limits() -> None:
    sentence = diagnose(study(latencies=Latencies(ttft_p95_ms=420.0)), SPACE, ()).sentence
    assert "TTFT p95 420 ms (limit 500 ms)" in sentence
    assert "100 requests at once (0 of them waiting), 512 tokens in and 512 out" in sentence


def test_of_several_replicas_one_is_told() -> None:
    sentence = diagnose(replace(study(), replicas=4), SPACE, ()).sentence
    assert "25 requests at once on each of 4 replicas (0 of them waiting)" in sentence
