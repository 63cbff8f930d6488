"""What every Planner keeps: bounded, feasible, new, normalised proposals, and never a raise."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
from pytest_httpserver import HTTPServer

from agent.language.dialect import Way
from agent.language.endpoint import Endpoint
from agent.planner.experience import Experienced, Found
from agent.planner.model import ModelPlanner
from agent.planner.rulebook import Rulebook
from domain.engine import Condition, EngineConfig, Knob, Place, SearchSpace
from domain.ports import Planner, Proposal, Proposals
from domain.study import (
    Failure,
    FailureKind,
    Objective,
    Study,
    Trial,
    TrialPurpose,
    TrialState,
)
from tests.fakes.clock import FakeClock
from tests.fakes.records import study

SPACE = SearchSpace(
    knobs=(
        Knob(
            name="speculative_method",
            place=Place.SPECULATIVE,
            domain=("none", "mtp"),
            default="none",
        ),
        Knob(
            name="num_speculative_tokens",
            place=Place.SPECULATIVE,
            domain=(1, 3),
            default=1,
            only_if=(Condition("speculative_method", ("mtp",)),),
        ),
        Knob(name="async_scheduling", place=Place.FLAG, domain=(False, True), default=False),
        Knob(
            name="mamba_backend",
            place=Place.FLAG,
            domain=("triton", "flashinfer"),
            default="triton",
        ),
    )
)
STUDY = study(objective=Objective.THROUGHPUT, baseline=EngineConfig(), engine="vLLM on a GPU")


@dataclass
class OneSwitch:
    """The fake: async scheduling, unless it was tried."""

    async def propose(
        self, study: Study, space: SearchSpace, trials: Sequence[Trial], limit: int
    ) -> Proposals:
        config = EngineConfig.of({"async_scheduling": True})
        known = [trial.config for trial in trials]
        if limit < 1 or config in known or space.fault(config):
            return Proposals("fake", ())
        return Proposals("fake", (Proposal(config=config, hypothesis="Why not?", metric="m"),))


@pytest.fixture(params=["rulebook", "experienced", "model", "model that is down", "fake"])
def planner(request: pytest.FixtureRequest, httpserver: HTTPServer) -> Planner:
    if request.param == "rulebook":
        return Rulebook()
    if request.param == "experienced":
        found = [
            Found(replace(STUDY, id="s0", created_s=0.0), EngineConfig.of(values))
            for values in ({"mamba_backend": "flashinfer"}, {"async_scheduling": True}, {"old": 1})
        ]
        return Experienced(Rulebook(), lambda study: found)
    if request.param == "fake":
        return OneSwitch()
    changes = [
        [{"knob": "async_scheduling", "value": "true"}],
        [{"knob": "mamba_backend", "value": "flashinfer"}],
        [{"knob": "num_speculative_tokens", "value": "3"}],
        [{"knob": "launch_missiles", "value": "3"}],
        [{"knob": "async_scheduling", "value": "true"}],
    ]
    proposals = [
        {
            "changes": made,
            "hypothesis": "Why not?",
            "metric": "output_tok_s",
            "expected_times": 1.1,
        }
        for made in changes
    ]
    message = {"role": "assistant", "content": json.dumps({"proposals": proposals})}
    served = httpserver.expect_request("/v1/chat/completions")
    if request.param == "model":
        served.respond_with_json({"choices": [{"finish_reason": "stop", "message": message}]})
    else:
        served.respond_with_data("down", status=503)
    language = Endpoint(
        base_url=httpserver.url_for("/v1"),
        model="small",
        api_key="",
        clock=FakeClock(),
        timeout_s=5,
        way=Way.JSON_SCHEMA,
    )
    return ModelPlanner(language=language, name="small", fallback=Rulebook())


def died(number: int, config: EngineConfig) -> Trial:
    return Trial(
        id=f"t{number}",
        study_id="s1",
        number=number,
        purpose=TrialPurpose.SEARCH,
        config=config,
        hypothesis="",
        state=TrialState.FAILED,
        failure=Failure(kind=FailureKind.DIED, sentence="The engine died."),
    )


async def test_proposals_are_feasible_normalised_distinct_and_explained(planner: Planner) -> None:
    proposals = await planner.propose(STUDY, SPACE, (), 10)
    assert proposals.author
    assert proposals.ranked
    for proposal in proposals.ranked:
        assert SPACE.fault(proposal.config) is None
        assert SPACE.normalised(proposal.config) == proposal.config
        assert proposal.hypothesis and proposal.metric
    assert len({p.config for p in proposals.ranked}) == len(proposals.ranked)


@pytest.mark.parametrize("limit", [0, 1, 2])
async def test_no_more_than_the_limit_is_proposed(planner: Planner, limit: int) -> None:
    assert len((await planner.propose(STUDY, SPACE, (), limit)).ranked) <= limit


async def test_nothing_is_proposed_twice_and_the_ideas_run_out(planner: Planner) -> None:
    trials: list[Trial] = []
    for number in range(1, 30):
        ranked = (await planner.propose(STUDY, SPACE, trials, 1)).ranked
        if not ranked:
            return
        assert ranked[0].config not in [trial.config for trial in trials]
        trials.append(died(number, ranked[0].config))
    pytest.fail("the planner never ran out of ideas in a space of twelve configs")


async def test_the_production_config_is_not_proposed(planner: Planner) -> None:
    production = replace(STUDY, baseline=EngineConfig.of({"async_scheduling": True}))
    proposals = await planner.propose(production, SPACE, (died(1, production.baseline),), 10)
    assert production.baseline not in [p.config for p in proposals.ranked]
