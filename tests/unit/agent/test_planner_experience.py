"""Earlier findings are tried first where they count, and never taken on trust."""

from __future__ import annotations

import pytest

from agent.planner.experience import AGE_S, AUTHOR, MOST, Experienced, Found, proposals
from agent.planner.rulebook import Rulebook
from domain.engine import EngineConfig, SearchSpace
from domain.study import Objective, Study
from tests.fakes import records
from tests.fakes.records import knob, shape

SPACE = SearchSpace(
    knobs=(
        knob("max_num_seqs", (64, 128, 256, 512), 256),
        knob("async_scheduling", (False, True), False),
    )
)
ENGINE = "vLLM 0.32 of org/name, 1 x gpu"
NOW_S = 100 * 86_400.0
SEATS = EngineConfig.of({"max_num_seqs": 512})
SCHEDULING = EngineConfig.of({"async_scheduling": True})


def study(**changes: object) -> Study:
    return records.study(
        **{"created_s": NOW_S, "baseline": EngineConfig(), "engine": ENGINE} | changes
    )


def earlier(config: EngineConfig = SEATS, days: float = 3.0, **changes: object) -> Found:
    made: dict[str, object] = {"id": f"{days} days", "created_s": NOW_S - days * 86_400, **changes}
    return Found(study(**made), config)


def proposed(*found: Found) -> list[EngineConfig]:
    return [proposal.config for proposal in proposals(study(), SPACE, found)]


def test_a_finding_for_traffic_like_this_is_proposed_with_its_source() -> None:
    (proposal,) = proposals(study(), SPACE, [earlier()])
    assert proposal.config == SEATS
    assert "study 3.0 days recommended it 3.0 days ago" in proposal.hypothesis
    assert "distance 0.00" in proposal.hypothesis
    assert "must show that again" in proposal.hypothesis


@pytest.mark.parametrize(
    "found",
    [
        earlier(engine="vLLM 0.31 of org/name, 1 x gpu"),
        earlier(shape=shape(model="another")),
        earlier(objective=Objective.THROUGHPUT),
        earlier(days=AGE_S / 86_400 + 0.1),
        earlier(days=-0.1),
        earlier(shape=shape(rate_rps=8.1)),
        earlier(EngineConfig.of({"max_num_seqs": 300})),
        earlier(EngineConfig.of({"gone": 1})),
        earlier(EngineConfig()),
        earlier(EngineConfig.of({"max_num_seqs": 256})),
    ],
    ids=lambda found: f"{found.study.id}, {found.config}",
)
def test_what_was_found_for_something_else_counts_for_nothing(found: Found) -> None:
    assert proposed(found) == []


def test_an_engine_that_nobody_named_is_like_no_other() -> None:
    unnamed = study(engine="")
    assert proposals(unnamed, SPACE, [earlier(engine="")]) == ()


def test_the_nearest_traffic_comes_first_then_the_newest_and_each_config_once() -> None:
    far = earlier(SEATS, shape=shape(rate_rps=6.0))
    assert proposed(far, earlier(SCHEDULING, days=9.0)) == [SCHEDULING, SEATS]
    assert proposed(earlier(SEATS, days=9.0), earlier(SCHEDULING)) == [SCHEDULING, SEATS]
    assert proposed(far, earlier(SEATS), earlier(SCHEDULING, days=9.0)) == [SEATS, SCHEDULING]


def test_a_long_history_does_not_take_the_whole_budget() -> None:
    configs = [EngineConfig.of({"max_num_seqs": seats}) for seats in (64, 128, 512)]
    assert len(proposed(*map(earlier, configs))) == MOST


async def test_earlier_findings_come_before_the_planners_own_until_they_are_tried() -> None:
    planner = Experienced(Rulebook(), lambda _: [earlier(SEATS), earlier(SCHEDULING, days=9.0)])
    first = (await planner.propose(study(), SPACE, (), 8)).ranked
    assert [p.config for p in first[:2]] == [SEATS, SCHEDULING]
    assert [p.author for p in first] == [AUTHOR, AUTHOR] + [""] * (len(first) - 2)
    assert len(first) > 2, "a finding that cannot be tried shuts nobody out"
    assert len({p.config for p in first}) == len(first)
    tried = [records.trial(1, config=SEATS)]
    second = (await planner.propose(study(), SPACE, tried, 8)).ranked
    assert second[0].config == SCHEDULING
    assert SEATS not in [p.config for p in second]
    both = [*tried, records.trial(2, config=SCHEDULING)]
    third = await planner.propose(study(), SPACE, both, 8)
    alone = await Rulebook().propose(study(), SPACE, both, 8)
    assert third == alone
    assert third.author == "rulebook"


async def test_findings_that_cannot_be_tried_leave_the_planner_its_turn() -> None:
    planner = Experienced(Rulebook(), lambda _: [earlier(shape=shape(model="another"))])
    found = await planner.propose(study(), SPACE, (), 8)
    assert found.author == "rulebook"


def test_traffic_is_like_todays_where_a_replica_gets_as_much() -> None:
    """The same demand on more replicas is less for each, and the other way round."""
    alike = earlier(shape=shape(rate_rps=2.0, running=20.0, waiting=4.0))
    half = study(replicas=2)
    (proposal,) = proposals(half, SPACE, [alike])
    assert "distance 0.00" in proposal.hypothesis
    assert proposals(study(replicas=8), SPACE, [earlier()]) == ()
    assert proposals(study(replicas=8), SPACE, [earlier(replicas=8)])
