"""The pure parts of the API: what a noun becomes, and where a picture's marks stand."""

import inspect
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.api.errors import STATUSES, answer
from agent.api.plots import front_marks, interval_marks
from agent.api.report_schemas import FrontRowView
from agent.api.schemas import ChangeView, ShapeView
from agent.api.study_schemas import MeasurementView, TrialView
from agent.api.verdict_schemas import EffectView, VerdictView
from agent.report import FrontRow
from agent.store import GivenVerdict
from canary.pareto import Point
from domain import errors
from tests.fakes import records

KINDS = [kind for _, kind in inspect.getmembers(errors, inspect.isclass)]


def effect(**changes: object) -> EffectView:
    return EffectView.of(records.verdict().effects[0]).model_copy(update=changes)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_error_has_a_status_and_says_its_sentence(kind: type[errors.SerinusError]) -> None:
    response = answer(kind("One clear sentence."))
    said = json.loads(bytes(response.body))
    assert response.status_code == next(STATUSES[k] for k in kind.__mro__ if k in STATUSES)
    assert said["sentence"] == "One clear sentence."
    assert ("retry-after" in response.headers) == issubclass(kind, errors.Temporary)


def test_a_number_that_is_not_finite_is_null() -> None:
    view = ShapeView.of(records.shape(rate_rps=math.nan, running=math.inf))
    said = json.loads(view.model_dump_json())
    assert said["rate_rps"] is None and said["running"] is None


def test_burstiness_is_shown_at_the_scale_where_most_of_it_is_sure() -> None:
    view = ShapeView.of(records.shape(burstiness=records.BURSTINESS))
    assert view.burstiest == "4.2 over 20 s"
    assert [(one.scale_s, one.low, one.high, one.intervals) for one in view.burstiness] == [
        (5.0, 0.8, 1.9, 23),
        (20.0, 2.0, 20.0, 5),
    ]
    assert ShapeView.of(records.shape()).burstiest is None


def test_a_measurement_gives_its_figures() -> None:
    view = MeasurementView.of(records.measurement(good=90))
    assert (view.goodput_rps, view.output_tok_s) == (9.0, 5000.0)
    assert (view.ttft_p50_ms, view.ttft_p95_ms) == (149.5, pytest.approx(194.05))


def test_a_measurement_that_never_began_has_no_figures() -> None:
    view = MeasurementView.of(records.measurement(blocks=(), ttft_ms=(), tpot_ms=(3.0,)))
    assert (view.goodput_rps, view.output_tok_s, view.ttft_p95_ms) == (None, None, None)
    assert view.tpot_p95_ms == 3.0


def test_a_trial_names_what_it_changes() -> None:
    view = TrialView.of(records.trial(), records.BASELINE)
    assert view.changes == [
        ChangeView(knob="async_scheduling", before=None, after=True),
        ChangeView(knob="max_num_seqs", before=256, after=512),
    ]


def test_a_verdict_without_evidence_says_so() -> None:
    view = VerdictView.of(GivenVerdict(1.0, records.verdict(evidence=None)))
    assert (view.baseline_n, view.start_s, view.queries) == (None, None, [])


def test_an_interval_stands_on_its_side_of_no_effect() -> None:
    better = interval_marks(effect(low=1.1, estimate=1.2, high=1.3))
    assert better is not None and 50 < better.low < better.estimate < better.high < 100
    less = interval_marks(effect(unit="difference", low=-2.0, estimate=-1.0, high=0.0))
    assert less is not None and 0 < less.low < less.estimate < less.high == 50


@given(st.lists(st.floats(), min_size=3, max_size=3))
def test_marks_stay_inside_the_picture(numbers: list[float]) -> None:
    low, estimate, high = sorted(numbers)
    marks = interval_marks(effect(unit="difference", low=low, estimate=estimate, high=high))
    if all(map(math.isfinite, numbers)):
        assert marks is not None and all(0 <= mark <= 100 for mark in marks)
    else:
        assert marks is None


def front_row(number: int, rate: float, ttft_ms: float | None, kept: bool = True) -> FrontRowView:
    row = FrontRow(
        config=records.CANDIDATE, trials=(number, 9), point=Point(rate, ttft_ms, None), kept=kept
    )
    return FrontRowView.of(row, records.study())


def test_the_front_stands_between_zero_and_the_largest_figure() -> None:
    picture = front_marks(
        [front_row(1, 200.0, 400.0), front_row(2, 100.0, 100.0, kept=False)], "ttft_p95_ms"
    )
    assert picture is not None
    assert (picture.most_rate, picture.most_ms) == (200.0, 400.0)
    assert picture.marks == ((100.0, 0.0, "1", True), (25.0, 30.0, "2", False))


def test_no_front_is_drawn_of_what_is_unknown() -> None:
    rows = [front_row(1, 200.0, None), front_row(2, 0.0, 100.0)]
    assert front_marks(rows, "ttft_p95_ms") is None
    assert front_marks(rows, "tpot_p95_ms") is None
    assert front_marks([], "ttft_p95_ms") is None
