"""A study's report: complete in every state of a study, with text that a shell may be given."""

import shlex
import tomllib
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.api.report_page import page_of
from agent.api.report_schemas import ReportView
from agent.report import Report, assemble, serve_line
from agent.report.commands import settings_of
from agent.settings import load
from agent.store import GivenVerdict
from canary.objective import METRICS
from domain.engine import EngineConfig
from domain.errors import BadInput
from domain.slo import SLO
from domain.study import (
    Block,
    Expectation,
    Failure,
    FailureKind,
    Measurement,
    Objective,
    StudyState,
    Trial,
    TrialPurpose,
    TrialState,
)
from serving.flags import parse
from tests.fakes import records

ONE_SWITCH = records.BASELINE.having({"async_scheduling": True})
PLAIN = st.text(st.characters(codec="utf-8"), max_size=20)


def run(tokens: float, ttft_ms: float = 100.0, **changes: Any) -> Measurement:
    """20 blocks of 30 s; a little less and a little more output in turn."""
    blocks = tuple(
        Block(seconds=30.0, requests=10, good=5, failed=0, output_tokens=30 * tokens + n % 2)
        for n in range(20)
    )
    values = {"requests": 200, "blocks": blocks, "ttft_ms": (ttft_ms,) * 50}
    return records.measurement(**values | changes)


def measured(number: int, config: EngineConfig, tokens: float, **changes: Any) -> Trial:
    values = {
        "config": config,
        "state": TrialState.MEASURED,
        "measurement": run(tokens),
        "started_s": 1000.0 * number,
        "ended_s": 1000.0 * number + 720.0,
    }
    return records.trial(number, **values | changes)


def failed(number: int, kind: FailureKind, **changes: Any) -> Trial:
    failure = Failure(kind=kind, sentence="It failed.", log_tail="why")
    values = {
        "state": TrialState.FAILED,
        "failure": failure,
        "started_s": 1000.0 * number,
        "ended_s": 1000.0 * number + 60.0,
    }
    return records.trial(number, **values | changes)


def confirmed(config: EngineConfig, first: int) -> list[Trial]:
    """A round: A B B A."""
    arms = [TrialPurpose.CONFIRM, TrialPurpose.CONFIRM_BASELINE]
    return [
        measured(
            first + n,
            config if arm is arms[0] else records.BASELINE,
            tokens,
            purpose=arm,
        )
        for n, (arm, tokens) in enumerate(
            zip([*arms, *reversed(arms)], (150.0, 100.0, 101.0, 151.0), strict=True)
        )
    ]


SEARCHED = (
    measured(1, records.BASELINE, 98.0, purpose=TrialPurpose.BASELINE, fidelity=records.fidelity()),
    measured(2, ONE_SWITCH, 180.0),
    failed(3, FailureKind.OUT_OF_MEMORY),
    failed(4, FailureKind.REFUSED),
)
WHOLE = (*SEARCHED, *confirmed(ONE_SWITCH, 5))


def report(*trials: Trial, verdicts: tuple[GivenVerdict, ...] = (), **changes: Any) -> Report:
    return assemble(records.study(**changes), trials, verdicts, simulated=False)


def recommended(**changes: Any) -> Report:
    given = (GivenVerdict(9000.0, records.verdict()),)
    return report(*WHOLE, verdicts=given, state=StudyState.RECOMMENDED, **changes)


def test_a_study_that_recommends_names_its_config_and_how_to_serve_it() -> None:
    found = recommended()
    assert found.recommended == ONE_SWITCH
    assert found.reproduction.serve == (
        "vllm serve MODEL --served-model-name demo-hybrid --async-scheduling --max-num-seqs 256"
    )
    assert found.verdicts[0].verdict.effects
    assert found.fidelity == records.fidelity()


def test_every_trial_is_told_with_its_figures_or_its_failure() -> None:
    found = recommended()
    assert [row.trial.number for row in found.runs] == [1, 2, 3, 4, 5, 6, 7, 8]
    figures = found.runs[1].figures
    assert figures is not None
    assert figures.output.value == pytest.approx(180.0, rel=0.01)
    assert figures.goodput.value == pytest.approx(90.0, rel=0.01)
    assert (figures.goodput_rps, figures.ttft_p95_ms) == (pytest.approx(1 / 6), 100.0)
    assert figures.output.interval is not None and figures.output.interval.n == 20
    assert found.runs[2].figures is None and found.runs[2].trial.failure is not None


def test_what_was_expected_stands_beside_what_was_measured() -> None:
    assert report(*WHOLE).calibrations == ()
    over = records.BASELINE.digest
    expected = Expectation(author="model m", metric="goodput_rps", times=1.2, over=over)
    hopeful = [replace(t, expected=expected) if t.number == 2 else t for t in WHOLE]
    found = report(*hopeful)
    assert [run.trial.number for run in found.runs if run.seen] == [2]
    view = ReportView.of(found)
    assert view.runs[1].expected == "expected goodput_rps times 1.2, measured times 1"
    (told,) = view.calibrations
    assert told.startswith("0 of 1 expectations of model m came true")


def test_the_cost_counts_engines_that_were_started_and_minutes_of_the_lane() -> None:
    cost = report(*WHOLE, records.trial(9)).cost
    assert (cost.starts, cost.refused, cost.failed, cost.running) == (8, 1, 1, 1)
    assert cost.lane_minutes == pytest.approx(6 * 12 + 2)
    assert cost.measuring_minutes == pytest.approx(6 * 10)


def test_the_front_rests_on_fresh_runs_where_there_are_any() -> None:
    slow = measured(9, records.CANDIDATE, 90.0)
    prompt = measured(10, EngineConfig(), 80.0, measurement=run(80.0, ttft_ms=50.0))
    front = report(*WHOLE, slow, prompt).front
    assert [(row.config, row.trials, row.kept) for row in front] == [
        (ONE_SWITCH, (5, 8), True),
        (records.BASELINE, (6, 7), False),
        (records.CANDIDATE, (9,), False),
        (EngineConfig(), (10,), True),
    ]
    assert front[0].point.rate == pytest.approx(150.5 / 2, rel=0.01)
    by_output = report(*WHOLE, objective=Objective.THROUGHPUT).front
    assert by_output[0].point.rate == pytest.approx(150.5, rel=0.01)


def waited(trial: Trial, seconds: float) -> Trial:
    """Its requests waited so long in each block, and no heavier load was borne."""
    assert trial.measurement is not None
    blocks = tuple(replace(block, waited_s=seconds) for block in trial.measurement.blocks)
    return replace(trial, measurement=replace(trial.measurement, blocks=blocks, heavier=()))


def test_speed_is_told_where_it_is_known_and_makes_the_front_of_its_objective() -> None:
    slow, fast = waited(SEARCHED[0], 40.0), waited(SEARCHED[1], 20.0)
    older = measured(9, records.CANDIDATE, 900.0)
    found = report(slow, fast, older, objective=Objective.LATENCY)
    told = [run.figures for run in found.runs if run.figures is not None]
    assert [one.speed.value if one.speed else None for one in told] == [0.25, 0.5, None]
    assert told[1].speed is not None and told[1].speed.interval is not None
    assert [(row.trials, row.point.rate, row.kept) for row in found.front] == [
        ((2,), 0.5, True),
        ((1,), 0.25, False),
    ]
    page = page_of(ReportView.of(found))
    assert "Speed, requests/s a stream" in page


@pytest.mark.parametrize("objective", Objective)
def test_a_report_of_older_rows_is_whole_under_every_objective(objective: Objective) -> None:
    page = page_of(ReportView.of(report(*WHOLE, objective=objective)))
    assert "Speed /s" in page
    assert ("No config was measured." in page) is (objective in (Objective.LATENCY, Objective.COST))


def test_the_loads_of_a_run_are_told_with_what_a_token_costs_at_each() -> None:
    assert SEARCHED[1].measurement is not None
    live = replace(SEARCHED[1].measurement, level="48 streams", slo_met=True)
    doubled = replace(
        live,
        level="96 streams",
        blocks=tuple(replace(b, output_tokens=1.5 * b.output_tokens) for b in live.blocks),
    )
    broken = replace(live, level="192 streams", slo_met=False)
    loaded = replace(SEARCHED[1], measurement=replace(live, heavier=(doubled, broken)))
    found = report(SEARCHED[0], loaded, objective=Objective.COST)
    figures = found.runs[1].figures
    assert figures is not None and figures.capacity is not None
    assert [load.best for load in figures.loads] == [False, True, False]
    assert figures.capacity.value == figures.loads[1].goodput_tok_s
    assert figures.capacity.value == pytest.approx(135.0, rel=1e-3)
    assert figures.loads[1].engine_s_a_million == pytest.approx(1e6 / 135.0, rel=1e-3)
    assert [row.trials for row in found.front] == [(2,)]
    page = page_of(ReportView.of(found))
    assert "96 streams" in page and "Capacity tok/s" in page and "broken" in page
    assert 'id="loads"' not in page_of(ReportView.of(report(*WHOLE)))


@pytest.mark.parametrize("heavier", [(), None], ids=["too much", "nobody can tell"])
def test_why_a_heavier_load_has_no_figures_is_told(heavier: tuple[Measurement, ...] | None) -> None:
    assert SEARCHED[1].measurement is not None
    ended = replace(SEARCHED[1].measurement, heavier=heavier, heavier_end="Half of it failed.")
    found = ReportView.of(report(SEARCHED[0], replace(SEARCHED[1], measurement=ended)))
    assert [run.figures.heavier_end for run in found.runs if run.figures] == [
        "",
        "Half of it failed.",
    ]
    loads = page_of(found).partition('id="loads"')[2].partition("</section>")[0]
    assert loads.count("Half of it failed.") == 1


def test_fresh_runs_tell_every_objective_that_is_known() -> None:
    arms = [waited(trial, 30.0) for trial in confirmed(ONE_SWITCH, 1)]
    (finalist,) = report(*arms).finalists
    names = [effect.metric for effect in finalist.effects]
    assert names == [*METRICS.values(), "ttft_p95_ms", "tpot_p95_ms"]


def test_one_switch_is_told_once_from_the_runs_of_the_search() -> None:
    (switch,) = recommended().switches
    assert (switch.change.knob, switch.before, switch.after) == ("async_scheduling", 1, 2)


def test_fresh_runs_are_compared_run_by_run_for_each_finalist() -> None:
    other = confirmed(records.CANDIDATE, 9)
    first, second = report(*WHOLE, *other, state=StudyState.NOTHING_BETTER).finalists
    assert (first.config, first.trials, first.baseline_trials) == (ONE_SWITCH, (5, 8), (6, 7))
    assert (second.config, second.trials, second.baseline_trials) == (
        records.CANDIDATE,
        (9, 12),
        (10, 11),
    )
    goodput, output, ttft, tpot = first.effects
    assert output.estimate == pytest.approx(150.5 / 100.5, rel=0.01)
    assert (goodput.interval.n, output.interval.method) == (
        4,
        "moderated t on logarithms of 2 + 2 runs",
    )
    assert (ttft.metric, ttft.estimate, tpot.metric) == ("ttft_p95_ms", 1.0, "tpot_p95_ms")


def test_a_finalist_that_lost_a_run_has_no_effects() -> None:
    lost = (*WHOLE[:-1], failed(8, FailureKind.DIED, config=ONE_SWITCH,
                                purpose=TrialPurpose.CONFIRM))  # fmt: skip
    (finalist,) = report(*lost, state=StudyState.NOTHING_BETTER).finalists
    assert (finalist.trials, finalist.effects) == ((5, 8), ())


@pytest.mark.parametrize(
    ("trials", "state"),
    [
        ((), StudyState.RUNNING),
        ((records.trial(1, purpose=TrialPurpose.BASELINE),), StudyState.RUNNING),
        ((failed(1, FailureKind.START, purpose=TrialPurpose.BASELINE),), StudyState.FAILED),
        ((measured(1, records.BASELINE, 9.0, purpose=TrialPurpose.BASELINE),
          failed(2, FailureKind.REFUSED)), StudyState.NOTHING_BETTER),
        ((measured(1, records.BASELINE, 0.0, measurement=run(0.0, blocks=(), ttft_ms=()),
                   purpose=TrialPurpose.BASELINE),), StudyState.FAILED),
        (confirmed(ONE_SWITCH, 1)[:1], StudyState.FAILED),
        ((), StudyState.RECOMMENDED),
    ],
    ids=["begun", "in its first trial", "failed at the baseline", "all refused",
         "never measured", "one fresh run", "recommended without rows"],
)  # fmt: skip
def test_a_partial_study_has_a_report(trials: tuple[Trial, ...], state: StudyState) -> None:
    found = report(*trials, state=state)
    assert len(found.runs) == len(trials)
    assert found.recommended is None and found.reproduction.serve == ""
    assert found.switches == ()


def test_a_knob_that_nobody_knows_any_more_is_said() -> None:
    unknown = records.BASELINE.having({"warp_drive": 9})
    found = report(*confirmed(unknown, 1), state=StudyState.RECOMMENDED).reproduction
    assert found.serve == "" and "warp_drive is not a knob" in found.serve_fault
    with pytest.raises(BadInput, match="warp_drive"):
        serve_line(unknown)


def test_variables_come_first_and_json_is_quoted() -> None:
    config = EngineConfig.of(
        {
            "OMP_NUM_THREADS": 1,
            "speculative_method": "mtp",
            "num_speculative_tokens": 3,
            "max_num_seqs": 512,
        }
    )
    line = serve_line(config)
    assert line == (
        "OMP_NUM_THREADS=1 vllm serve MODEL --max-num-seqs 512 --speculative-config "
        """'{"method":"mtp","num_speculative_tokens":3}'"""
    )


@given(name=PLAIN, cores=PLAIN.filter(bool), drafter=PLAIN.filter(bool))
def test_what_a_shell_reads_is_what_was_meant(name: str, cores: str, drafter: str) -> None:
    config = EngineConfig.of(
        {
            "VLLM_CPU_OMP_THREADS_BIND": cores,
            "speculative_method": "eagle3",
            "speculative_model": drafter,
            "num_speculative_tokens": 2,
        }
    )
    variable, vllm, serve, model, flag, given_name, *argv = shlex.split(
        serve_line(config, ("--served-model-name", name))
    )
    assert (vllm, serve, model, flag) == ("vllm", "serve", "MODEL", "--served-model-name")
    assert given_name == name
    assert parse(argv, dict([variable.split("=", 1)])) == config


def test_the_settings_are_those_of_the_study(tmp_path) -> None:
    study = records.study(objective=Objective.THROUGHPUT, trial_budget=9)
    path = tmp_path / "study.toml"
    path.write_text(settings_of(study), encoding="utf-8")
    settings = load(path)
    assert SLO.parse(settings.slo) == study.slo
    assert (settings.objective, settings.trial_budget) == (Objective.THROUGHPUT, 9)
    assert (settings.served_model_name, settings.window_s) == ("demo-hybrid", 120.0)
    assert EngineConfig.of(settings.baseline) == study.baseline
    assert recommended().reproduction.commands == (
        "serinus up --config study.toml",
        "serinus tune --config study.toml",
    )


@given(
    model=PLAIN,
    values=st.dictionaries(
        PLAIN,
        st.booleans() | st.integers(-(2**60), 2**60) | PLAIN
        | st.floats(allow_nan=False, allow_infinity=False),
        max_size=4,
    ),
)  # fmt: skip
def test_the_settings_are_toml_whatever_they_hold(model: str, values: dict[str, Any]) -> None:
    study = records.study(shape=records.shape(model=model), baseline=EngineConfig.of(values))
    read = tomllib.loads(settings_of(study))
    assert (read["served_model_name"], read["baseline"]) == (model, values)
