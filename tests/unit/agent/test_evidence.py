"""What a step of a rollout is judged by, also by a controller that was restarted meanwhile."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from agent.bursts import BY_GATEWAY
from agent.evidence import (
    AS_LOADED,
    BEFORE,
    FIRST_STEP,
    STEP_BEGAN,
    STOOD_IN,
    WARMING,
    LiveEvidence,
)
from agent.leadership import Leadership
from agent.store import Store
from canary.live import replayed
from domain.fleet import Role, SlotTraffic, Split
from domain.rollout import Phase, Rollout
from domain.slo import SLO
from domain.verdict import Outcome, Verdict
from tests.fakes.controller_world import PLAN, opened
from tests.fakes.metrics import FakeEngineMetrics, FakeMetricSource, target
from tests.fakes.rollout_world import fresh_rollout, plan_for

SCRAPE_S = 5.0
BEGAN_S, FIRST_S, LAST_S, NOW_S = 1000.0, 1100.0, 1200.0, 1260.0
LIVE = target(arm="production")
CANDIDATE = target(arm="candidate", replica="r1", config="c1")


class Arms:
    """Two engines whose metrics are scraped while they serve; ``source`` knows all of it."""

    def __init__(self) -> None:
        self.source = FakeMetricSource()
        self._engines = {LIVE: FakeEngineMetrics(), CANDIDATE: FakeEngineMetrics()}

    def serve(self, start_s: float, end_s: float, *, live: int, candidate: int) -> None:
        """So many requests a scrape of each arm in this time."""
        at_s = start_s
        while at_s <= end_s:
            shown = {arm: engine.text() for arm, engine in self._engines.items()}
            self.source.scrape(at_s, shown)
            for arm, requests in ((LIVE, live), (CANDIDATE, candidate)):
                self._engines[arm].finish(requests)
            at_s += SCRAPE_S

    def restart(self) -> None:
        """What was scraped so far is forgotten, as by a controller that is killed."""
        self.source = FakeMetricSource()


@pytest.fixture
def arms() -> Arms:
    return Arms()


@pytest.fixture
def leadership(tmp_path: Path) -> Iterator[Leadership]:
    with opened(tmp_path) as store:
        yield _leading(store)


def _leading(store: Store) -> Leadership:
    leadership = Leadership(store, holder="one", ttl_s=1e6)
    assert leadership.renew(BEGAN_S)
    return leadership


def at_step(step: int, since_s: float | None, **changes: object) -> Rollout:
    rollout = replace(fresh_rollout(Phase.PROGRESSING), plan=PLAN, created_s=BEGAN_S)
    return replace(rollout, step=step, baking_since_s=since_s, **changes)


def split(errors: int = 0, requests: int = 0) -> Split:
    slots = [
        SlotTraffic(
            slot=role.value,
            role=role,
            admitted=True,
            up=True,
            in_flight=0,
            requests=requests,
            errors=errors if role is Role.CANARY else 0,
        )
        for role in Role
    ]
    return Split(weight=25, slots=tuple(slots))


async def judged(
    arms: Arms, leadership: Leadership, rollout: Rollout, now: float
) -> Verdict | None:
    """What a controller that has just started says."""
    return await LiveEvidence(arms.source, SLO(ttft_ms=1000), leadership, model="m").verdict(
        rollout, split(), now
    )


async def test_nothing_is_said_before_the_weight_is_in_force(
    arms: Arms, leadership: Leadership
) -> None:
    assert await judged(arms, leadership, at_step(0, None), NOW_S) is None
    starting = at_step(0, FIRST_S, phase=Phase.STARTING)
    assert await judged(arms, leadership, starting, NOW_S) is None
    assert await judged(arms, leadership, at_step(0, FIRST_S), FIRST_S + 1) is None


async def test_both_arms_are_compared_over_the_step(arms: Arms, leadership: Leadership) -> None:
    arms.serve(BEGAN_S, LAST_S, live=10, candidate=5)
    verdict = await judged(arms, leadership, at_step(0, FIRST_S), LAST_S)
    assert verdict.outcome is Outcome.PASS
    warm_s = FIRST_S + WARMING * PLAN.steps[0].bake_s
    assert (verdict.evidence.start_s, verdict.evidence.end_s) == (warm_s, LAST_S)
    assert verdict.evidence.compared.variation is None
    assert BEFORE not in verdict.evidence.notes
    assert verdict.evidence.candidate_n == pytest.approx(100, rel=0.1)
    assert verdict.evidence.baseline_n == pytest.approx(200, rel=0.1)


async def test_while_a_cache_warms_errors_are_judged_alone(
    arms: Arms, leadership: Leadership
) -> None:
    """A session that comes to the candidate with a step finds nothing of itself in its cache."""
    plan = replace(PLAN, steps=tuple(replace(step, bake_s=400.0) for step in PLAN.steps))
    arms.serve(BEGAN_S, LAST_S, live=20, candidate=20)
    evidence = LiveEvidence(arms.source, SLO(ttft_ms=1000), leadership, model="m")
    step, soon = at_step(0, FIRST_S, plan=plan), FIRST_S + 70
    early = await evidence.verdict(step, split(), soon)
    assert early.outcome is Outcome.INCONCLUSIVE and "warming" in early.reason
    assert (early.evidence.start_s, early.evidence.end_s) == (FIRST_S, soon)
    assert (await evidence.verdict(step, split(errors=200), soon)).outcome is Outcome.FAIL
    later = await evidence.verdict(step, split(errors=200), LAST_S - 5)
    assert later.evidence.start_s == FIRST_S + 80
    assert later.evidence.compared.candidate.errors == 0


async def test_a_missing_arm_is_inconclusive_and_named(arms: Arms, leadership: Leadership) -> None:
    arms.serve(BEGAN_S, FIRST_S, live=10, candidate=5)
    verdict = await judged(arms, leadership, at_step(0, LAST_S), NOW_S)
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert verdict.reason.startswith("The metrics of the candidate arm cannot be judged: finished")


@pytest.mark.parametrize(("broken", "outcome"), [(0, "inconclusive"), (30, "fail")])
async def test_broken_answers_need_no_metrics_to_be_proven(
    arms: Arms, leadership: Leadership, broken: int, outcome: str
) -> None:
    """An engine that fails may well show no metrics either: it once kept its weight for that."""
    evidence = LiveEvidence(arms.source, SLO(ttft_ms=1000), leadership, model="m")
    step = at_step(0, LAST_S)
    await evidence.verdict(step, split(errors=7, requests=100), LAST_S)
    verdict = await evidence.verdict(step, split(errors=7 + broken, requests=140), NOW_S)
    assert verdict.outcome is Outcome(outcome)
    if broken:
        assert verdict.evidence.candidate_n == 40 and BY_GATEWAY in verdict.evidence.notes
        assert replayed(verdict.evidence) == verdict


async def test_counts_of_an_older_version_prove_nothing_without_metrics(
    arms: Arms, leadership: Leadership
) -> None:
    """It kept no requests, so those since then are not known."""
    step = at_step(0, LAST_S)
    older = {"rollout": step.id, "step": 0, "start_s": LAST_S, "errors": {"canary": 0}}
    older["errors"]["production"] = 0
    with leadership.work() as uow:
        uow.state.set(STEP_BEGAN, older)
        uow.commit()
    evidence = LiveEvidence(arms.source, SLO(ttft_ms=1000), leadership, model="m")
    verdict = await evidence.verdict(step, split(errors=30, requests=140), LAST_S + 5)
    assert verdict.outcome is Outcome.INCONCLUSIVE


async def test_broken_answers_at_the_gateway_count_against_the_candidate(
    arms: Arms, leadership: Leadership
) -> None:
    arms.serve(BEGAN_S, LAST_S, live=20, candidate=20)
    """Also for a controller that was restarted since the step began."""

    async def seen(errors: int, at_s: float) -> Verdict:
        evidence = LiveEvidence(arms.source, SLO(ttft_ms=1000), leadership, model="m")
        return await evidence.verdict(at_step(0, FIRST_S), split(errors=errors), at_s)

    before, after = await seen(500, LAST_S - 10), await seen(700, LAST_S)
    assert (before.outcome, after.outcome) == (Outcome.PASS, Outcome.FAIL)
    assert after.evidence.compared.candidate.errors == 200


async def test_a_gateway_that_was_started_anew_counts_from_nothing(
    arms: Arms, leadership: Leadership
) -> None:
    arms.serve(BEGAN_S, LAST_S, live=20, candidate=20)
    evidence = LiveEvidence(arms.source, SLO(ttft_ms=1000), leadership, model="m")
    await evidence.verdict(at_step(0, FIRST_S), split(errors=500), LAST_S - 10)
    counted = [
        (await evidence.verdict(at_step(0, FIRST_S), split(errors=errors), LAST_S)).evidence
        for errors in (3, 5)
    ]
    assert [found.compared.candidate.errors for found in counted] == [3, 5]
    later = await evidence.verdict(at_step(1, LAST_S - 12), split(errors=9), LAST_S)
    assert later.evidence.compared.candidate.errors == 0


async def test_a_gateway_without_errors_that_was_started_anew_is_told_by_its_requests(
    arms: Arms, leadership: Leadership
) -> None:
    """Its requests were once counted only from where they passed those of before."""
    evidence, step = LiveEvidence(arms.source, None, leadership, model="m"), at_step(0, LAST_S)
    await evidence.verdict(step, split(requests=1000), LAST_S)
    verdict = await evidence.verdict(step, split(errors=30, requests=60), NOW_S)
    assert verdict.outcome is Outcome.FAIL and verdict.evidence.candidate_n == 60


async def test_at_100_percent_the_baseline_is_the_time_before_the_rollout(
    arms: Arms, leadership: Leadership
) -> None:
    """In as many windows as are known, by which it is seen how much they differ."""
    arms.serve(BEGAN_S - 150, BEGAN_S, live=10, candidate=0)
    arms.serve(BEGAN_S + SCRAPE_S, NOW_S, live=0, candidate=10)
    verdict = await judged(arms, leadership, at_step(1, LAST_S), NOW_S)
    assert verdict.outcome is Outcome.PASS
    assert verdict.evidence.compared.variation.windows == 3
    assert verdict.evidence.baseline_n == pytest.approx(300, rel=0.1)
    assert BEFORE in verdict.evidence.notes
    assert STOOD_IN not in verdict.evidence.notes


async def test_restarted_at_100_percent_the_first_step_stands_in(
    arms: Arms, leadership: Leadership
) -> None:
    """A restarted controller once held for ever: it had never seen the time before."""
    arms.serve(BEGAN_S, LAST_S, live=10, candidate=5)
    assert (await judged(arms, leadership, at_step(0, FIRST_S), LAST_S)).outcome is Outcome.PASS
    arms.restart()
    arms.serve(LAST_S + SCRAPE_S, NOW_S, live=0, candidate=15)
    verdict = await judged(arms, leadership, at_step(1, LAST_S), NOW_S)
    assert verdict.outcome is Outcome.PASS
    assert verdict.evidence.baseline_n == pytest.approx(200, rel=0.1)
    assert STOOD_IN in verdict.evidence.notes
    assert BEFORE not in verdict.evidence.notes


async def test_another_rollouts_first_step_never_stands_in(
    arms: Arms, leadership: Leadership
) -> None:
    arms.serve(BEGAN_S, LAST_S, live=10, candidate=5)
    await judged(arms, leadership, at_step(0, FIRST_S, id="earlier"), LAST_S)
    arms.restart()
    arms.serve(LAST_S + SCRAPE_S, NOW_S, live=0, candidate=15)
    verdict = await judged(arms, leadership, at_step(1, LAST_S), NOW_S)
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert verdict.reason.startswith("The metrics of the production arm cannot be judged")


async def test_an_idle_time_before_the_rollout_is_no_evidence_of_steadiness(
    arms: Arms, leadership: Leadership
) -> None:
    arms.serve(BEGAN_S - 300, BEGAN_S - 55, live=0, candidate=0)
    arms.serve(BEGAN_S - 50, BEGAN_S, live=10, candidate=0)
    arms.serve(BEGAN_S + SCRAPE_S, NOW_S, live=0, candidate=10)
    verdict = await judged(arms, leadership, at_step(1, LAST_S), NOW_S)
    assert verdict.evidence.compared.variation.windows == 1


async def test_a_first_step_that_an_older_version_kept_does_not_stand_in(
    arms: Arms, leadership: Leadership
) -> None:
    with leadership.work() as uow:
        uow.state.set(
            FIRST_STEP, {"rollout": at_step(0, None).id, "reading": {"arm": "production"}}
        )
        uow.commit()
    arms.serve(BEGAN_S - 120, BEGAN_S, live=10, candidate=0)
    arms.serve(BEGAN_S + SCRAPE_S, NOW_S, live=0, candidate=10)
    known = await judged(arms, leadership, at_step(1, LAST_S), NOW_S)
    assert known.outcome is Outcome.PASS
    arms.restart()
    arms.serve(LAST_S + SCRAPE_S, NOW_S, live=0, candidate=10)
    unknown = await judged(arms, leadership, at_step(1, LAST_S), NOW_S)
    assert unknown.outcome is Outcome.INCONCLUSIVE


async def test_what_broke_while_no_controller_looked_counts_against_the_candidate(
    arms: Arms, leadership: Leadership
) -> None:
    """One that was down as the cache became warm once promoted a step of broken answers."""
    plan = replace(PLAN, steps=tuple(replace(step, bake_s=300.0) for step in PLAN.steps))
    arms.serve(BEGAN_S, NOW_S, live=20, candidate=20)
    step = at_step(0, FIRST_S, plan=plan)
    for errors, at_s, outcome in (
        (0, FIRST_S + 5, Outcome.INCONCLUSIVE),
        (500, NOW_S, Outcome.FAIL),
    ):
        evidence = LiveEvidence(arms.source, SLO(ttft_ms=1000), leadership, model="m")
        assert (await evidence.verdict(step, split(errors), at_s)).outcome is outcome


def beside(replicas: int, step: int = 1) -> Rollout:
    return at_step(step, LAST_S, plan=plan_for(replicas, (5, 100)))


async def test_a_lane_in_for_one_of_several_replicas_is_held_against_both_times(
    arms: Arms, leadership: Leadership
) -> None:
    """Its engine carries more than each of those beside it: as much as each of them before."""
    arms.serve(BEGAN_S - 150, BEGAN_S, live=20, candidate=0)
    arms.serve(BEGAN_S + SCRAPE_S, NOW_S, live=10, candidate=10)
    verdict = await judged(arms, leadership, beside(2), NOW_S)
    compared = verdict.evidence.compared
    assert verdict.outcome is Outcome.PASS
    assert compared.baseline.requests == pytest.approx(120, rel=0.2)
    assert compared.as_loaded.requests > compared.baseline.requests
    assert compared.variation.windows > 1
    assert {AS_LOADED, BEFORE} <= set(verdict.evidence.notes)
    first = await judged(arms, leadership, beside(2, step=0), NOW_S)
    assert first.evidence.compared.as_loaded is None
    assert AS_LOADED not in first.evidence.notes


async def test_where_the_time_before_is_not_known_those_beside_can_pass_it_alone(
    arms: Arms, leadership: Leadership
) -> None:
    arms.serve(LAST_S - 20, NOW_S, live=10, candidate=10)
    verdict = await judged(arms, leadership, beside(3), NOW_S)
    assert verdict.outcome is Outcome.PASS
    assert verdict.evidence.compared.as_loaded.requests == 0
    assert BEFORE not in verdict.evidence.notes


async def test_among_many_replicas_the_load_is_alike_and_one_time_is_enough(
    arms: Arms, leadership: Leadership
) -> None:
    arms.serve(BEGAN_S - 150, NOW_S, live=20, candidate=10)
    verdict = await judged(arms, leadership, beside(20, step=0), NOW_S)
    assert verdict.evidence.compared.as_loaded is None
    assert verdict.evidence.compared.variation is None


async def test_a_first_step_that_is_the_last_one_does_not_stand_in_for_the_time_before(
    arms: Arms, leadership: Leadership
) -> None:
    """Its baseline carried less than the candidate, so as a measure it would be unfair."""
    arms.serve(LAST_S - 20, NOW_S, live=10, candidate=10)
    rollout = at_step(0, LAST_S, plan=plan_for(2, (100,)))
    for _ in range(2):
        verdict = await judged(arms, leadership, rollout, NOW_S)
        assert verdict.outcome is Outcome.PASS
        assert verdict.evidence.compared.as_loaded.requests == 0
    with leadership.view() as uow:
        assert uow.state.get(FIRST_STEP) is None
