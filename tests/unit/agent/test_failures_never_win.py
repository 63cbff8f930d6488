"""What crashed, ran out of memory, hung or took too long wins under no objective.

The trap of minimising over tuners: a config that answers nothing has no latency, and a trial that
broke off keeps the figures that it had until then.
"""

from dataclasses import replace
from itertools import count

import pytest

from agent.graph import Conclusion
from agent.loads import TrialLength
from agent.planner.rulebook import Rulebook
from agent.rehearsals import Rehearsals, unresolved
from canary.racing import Bar
from canary.trial import PlansOf
from domain.engine import EngineConfig, SearchSpace
from domain.slo import SLO
from domain.study import (
    Failure,
    FailureKind,
    Objective,
    StudyState,
    Trial,
    TrialPurpose,
    TrialState,
)
from tests.fakes.clock import FakeClock
from tests.fakes.records import knob, measured, study
from tests.unit.agent.test_graph_with_rulebook import Rows

SEATS = (128, 256, 512, 1024)
TOK_S = {128: 60.0, 256: 100.0, 512: 200.0, 1024: 900.0}
DOOMED = EngineConfig.of({"max_num_seqs": 1024})
"""By far the fastest, for as long as it lives."""


async def concluded(
    kind: FailureKind, objective: Objective, purpose: TrialPurpose, lives: int
) -> tuple[Conclusion, Rows]:
    """A study in which the doomed config fails in each run of this purpose after ``lives``."""
    turns = count()

    async def rehearse(
        trial: Trial, plans_of: PlansOf, slo: SLO, with_quality: bool, bar: Bar | None
    ) -> Trial:
        tok_s = TOK_S[int(trial.config.get("max_num_seqs") or 256)]
        run = replace(trial, measurement=measured(tok_s, good=10))
        if trial.config == DOOMED and trial.purpose is purpose and next(turns) >= lives:
            failure = Failure(kind=kind, sentence="It broke off.")
            return replace(run, state=TrialState.FAILED, failure=failure)
        return replace(run, state=TrialState.MEASURED)

    rows = Rows()
    rehearsals = Rehearsals(
        log=rows,
        planner=Rulebook(),
        space=SearchSpace(knobs=(knob("max_num_seqs", SEATS, 256),)),
        rehearse=rehearse,
        resolve=unresolved,
        length=TrialLength(warm_up_s=1.0, measured_s=9.0, screened_s=4.0, min_requests=1, rounds=2),
        fidelity_limit=None,
        clock=FakeClock(0.0),
        new_id=map(str, count()).__next__,
    )
    asked = study(objective=objective, baseline=EngineConfig())
    return await rehearsals.graph_for(asked).run(asked), rows


@pytest.mark.parametrize("objective", Objective)
@pytest.mark.parametrize("kind", FailureKind)
async def test_what_fails_in_the_search_wins_under_no_objective(
    kind: FailureKind, objective: Objective
) -> None:
    conclusion, rows = await concluded(kind, objective, TrialPurpose.SEARCH, 0)
    assert any(trial.config == DOOMED for trial in rows.trials(conclusion.study.id))
    assert conclusion.recommendation is not None
    assert conclusion.recommendation.config == EngineConfig.of({"max_num_seqs": 512})


@pytest.mark.parametrize("lives", [0, 1])
@pytest.mark.parametrize("objective", Objective)
@pytest.mark.parametrize("kind", FailureKind)
async def test_what_dies_in_the_confirmation_loses_its_recommendation(
    kind: FailureKind, objective: Objective, lives: int
) -> None:
    conclusion, rows = await concluded(kind, objective, TrialPurpose.CONFIRM, lives)
    trials = rows.trials(conclusion.study.id)
    assert any(t.config == DOOMED and t.state is TrialState.FAILED for t in trials)
    assert conclusion.recommendation is not None
    assert conclusion.recommendation.config == EngineConfig.of({"max_num_seqs": 512})


@pytest.mark.parametrize("objective", Objective)
async def test_without_a_failure_it_would_have_won(objective: Objective) -> None:
    """Else the tests above could not fail."""
    conclusion, _ = await concluded(FailureKind.DIED, objective, TrialPurpose.CONFIRM, lives=99)
    assert conclusion.study.state is StudyState.RECOMMENDED
    assert conclusion.recommendation is not None
    assert conclusion.recommendation.config == DOOMED
