"""The benchmark's pure parts: which alarms count as true, and what a stationary resample is."""

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.drift import Alarm, Ends, Span, labelled, main, recall, resampled, shapes, targets
from domain.drift import Component, Drift, DriftRules, Window, distance

RULES = DriftRules(least=0.6, run=2)
[WINDOW] = (Window.of(shape) for shape in shapes(np.array([2.0]), np.random.default_rng(1)))
DRIFT = Drift(
    component=Component.DEMAND,
    distance=1.0,
    limit=0.6,
    noise=None,
    calm=0,
    run=2,
    window=WINDOW,
)


def test_alarms_are_held_against_the_smoothed_rate_since_the_last_one():
    level = np.array([0.0] * 5 + [1.0] * 6 + [0.0] * 6 + [0.7] * 6 + [0.0] * 4)
    alarms = [Alarm(at=8, since=0, drift=DRIFT), Alarm(at=9, since=8, drift=DRIFT)]
    found = labelled(alarms, level, RULES)
    first, *others = found.changes
    assert (first.span, first.size, first.delay) == (Span(5, 9), 1.0, 4)
    assert [(change.span, change.delay) for change in others] == [
        (Span(11, 17), None),
        (Span(23, 27), None),
    ]
    assert found.false == [alarms[1]]
    assert recall(found.changes, 0.6) == pytest.approx(1 / 3, abs=1e-3)
    assert recall(found.changes, 1.1) is None


def test_a_resample_is_of_the_noise_alone_and_the_same_for_a_seed():
    noise = np.arange(500.0)
    first, again = (resampled(noise, 300, np.random.default_rng(3)) for _ in range(2))
    assert (first == again).all()
    assert set(first) <= set(noise)
    neighbours = (np.diff(first) == 1).mean()
    assert 0.9 < neighbours < 1.0


def test_the_same_rates_give_shapes_that_lie_near_one_another():
    one, other = shapes(np.array([20.0, 20.0]), np.random.default_rng(1))
    assert 0 < distance(one, other).value < 0.2


def test_without_the_rates_it_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(tmp_path / "none.csv") == 2
    assert "none.csv is missing" in json.loads(capsys.readouterr().out)["skipped"]


@pytest.mark.parametrize(("end", "met"), [(0.95, True), (1.0, True), (1.01, False)])
def test_the_limit_of_false_alarms_is_held_against_the_intervals_end(end: float, met: bool):
    figures = {"false_alarms_a_week": 0.7, "false_alarms_95": Ends(0.5, end)}
    assert targets(figures) == {"false_alarms_a_week": met}
