"""Benchmarks compare their figures with their limits, and say by their exit code how that went."""

import json

import numpy as np
import pytest

from benchmarks import drift, fidelity, loadgen, replay, shape
from benchmarks.fidelity import Graded
from benchmarks.shape import TRAFFIC, Quantile, Row
from benchmarks.targets import ended, held, skipped
from domain.fidelity import Fidelity, Grade

ONE_CORE = {
    "fault": None,
    "failed": 0,
    "ttft_p50_bias_ms": -5.0,
    "tpot_bias_pct": 1.0,
    "first_request_s": 0.99,
    "cpu_us_per_token": 25.0,
}
REPLAYED = {
    "requests": 100,
    "got": 100,
    "failed": 0,
    "offset_within_10_ms": 0.99,
    "isl_exact": 1.0,
    "osl_exact": 1.0,
    "reuse_gap_points": 2.0,
}


def test_one_missed_target_is_enough_for_exit_code_1(capsys: pytest.CaptureFixture[str]):
    assert ended(held({"figure": 1}, {"a": True, "b": True})) == 0
    assert ended(held({"figure": 1}, {"a": True, "b": False})) == 1
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert last == {"figure": 1, "targets": {"a": True, "b": False}, "targets_met": False}


def test_what_was_not_measured_met_no_target(capsys: pytest.CaptureFixture[str]):
    assert skipped("There is no file.") == 2
    assert json.loads(capsys.readouterr().out) == {"skipped": "There is no file."}


@pytest.mark.parametrize(
    ("changed", "missed"),
    [
        ({}, []),
        ({"ttft_p50_bias_ms": -5.01}, ["ttft_p50_bias_ms"]),
        ({"tpot_bias_pct": 1.01}, ["tpot_bias_pct"]),
        ({"first_request_s": 1.0}, ["first_request_s"]),
        ({"cpu_us_per_token": 25.1}, ["cpu_us_per_token"]),
        ({"fault": "The load client sent late."}, ["fit"]),
        ({"failed": 1}, ["fit"]),
    ],
)
def test_the_load_client_is_held_to_each_of_its_limits(changed: dict, missed: list[str]):
    found = loadgen.targets(ONE_CORE | changed, {"exact": True})
    assert [name for name, met in found.items() if not met] == missed


def test_one_request_counted_wrong_misses_the_target():
    assert not loadgen.targets(ONE_CORE, {"exact": False})["error_accounting"]


@pytest.mark.parametrize(
    ("changed", "missed"),
    [
        ({}, []),
        ({"got": 99}, ["complete"]),
        ({"failed": 1}, ["complete"]),
        ({"offset_within_10_ms": 0.98}, ["offsets"]),
        ({"isl_exact": 0.99}, ["isl"]),
        ({"osl_exact": 0.99}, ["osl"]),
        ({"reuse_gap_points": 2.1}, ["reuse"]),
    ],
)
def test_a_replay_is_held_to_each_of_its_limits(changed: dict, missed: list[str]):
    found = replay.targets(REPLAYED | changed)
    assert [name for name, met in found.items() if not met] == missed


@pytest.mark.parametrize(
    ("rate_error", "true", "missed"),
    [(0.03, 15.0, []), (0.031, 15.0, ["rate"]), (0.0, 20.5, ["quantiles"])],
)
def test_a_shape_is_held_to_its_rate_and_its_buckets(
    rate_error: float, true: float, missed: list[str]
):
    row = Row(
        traffic=TRAFFIC[0].name,
        dispersion_by_design=1.0,
        requests=100,
        rate_rps=2.0,
        rate_error=rate_error,
        isl_mean_error=0.0,
        osl_mean_error=0.0,
        covered=1.0,
        quantiles=[Quantile("isl p50", true, 15.0, 10.0, 20.0)],
        dispersion=[shape.Spread(5.0, 1.0, 1.0, 0.5, 2.0, 100)],
    )
    found = shape.summary([row], 600.0)["targets"]
    assert isinstance(found, dict)
    assert [name for name, met in found.items() if not met] == missed


@pytest.mark.parametrize(
    ("matching", "removed", "missed"),
    [
        (Grade.A, Grade.D, []),
        (Grade.B, Grade.D, ["matching"]),
        (Grade.A, fidelity.LIMIT, ["removed"]),
    ],
)
def test_fidelity_is_held_to_telling_plans_apart(
    matching: Grade, removed: Grade, missed: list[str]
):
    [live] = drift.shapes(np.array([2.0]), np.random.default_rng(1))
    right, wrong = (Fidelity(grade=grade, rows=(), reasons=()) for grade in (matching, removed))
    one = Graded(live, right, wrong, {})
    found = fidelity.told([one, one])["targets"]
    assert isinstance(found, dict)
    assert [name for name, met in found.items() if not met] == missed
