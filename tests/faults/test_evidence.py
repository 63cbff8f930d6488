"""What a controller trusted with production must do with evidence: behaviours 1 to 9.

The numbers in the names are those of ``docs/behaviours.md``, the list of what such a controller
must do. The real loop, store, evidence and judge; engines that serve and show it as vLLM does.
"""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pytest_httpserver import HTTPServer
from werkzeug import Request, Response

from agent.api.rollout_schemas import RolloutDetail
from agent.evidence import WARMING, LiveEvidence
from agent.leadership import Leadership
from agent.store import Store, open_store
from agent.tuning import TuningPolicy
from canary.live import replayed
from domain.events import EventKind
from domain.metrics import Failed, Partial, Sample, Series
from domain.rollout import Phase, StallAction
from domain.verdict import Outcome, Verdict
from tests.fakes.controller_world import CYCLE_S, PLAN, POLICY, opened
from tests.fakes.live_world import LANE, MODEL, LiveWorld, Manner
from tests.fakes.metrics import FakeEngineMetrics, FakeMetricSource, target
from tools.live_shape import LiveShape
from tools.prometheus import PrometheusSource
from tools.queries import FINISHED, TTFT

PRODUCTION = "production-0"
STALL_CYCLES = 12


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with opened(tmp_path) as store:
        yield store


def stalling(action: StallAction) -> TuningPolicy:
    plan = replace(PLAN, stall_s=STALL_CYCLES * CYCLE_S, stall_action=action)
    return replace(POLICY, rollout=plan)


def phase(world: LiveWorld) -> Phase:
    rollout = world.rollout()
    assert rollout is not None
    return rollout.phase


def without(metric: str, text: str) -> str:
    return "\n".join(line for line in text.splitlines() if not line.startswith(metric)) + "\n"


def valued(metric: str, value: str, text: str) -> str:
    """The exposition with another value in each of the metric's series."""
    return re.sub(rf"(?m)^({re.escape(metric)}\{{.*\}}) .*$", rf"\1 {value}", text)


Fault = Callable[[LiveWorld], None]


def on_lane(change: Callable[[str], str | None]) -> Fault:
    def spoil(world: LiveWorld) -> None:
        world.shown = lambda slot, text: change(text) if slot == LANE else text

    return spoil


def lost(slot: str) -> Fault:
    def spoil(world: LiveWorld) -> None:
        world.shown = lambda name, text: None if name == slot else text

    return spoil


def all_late(world: LiveWorld) -> None:
    world.late = True


def incomplete(world: LiveWorld) -> None:
    some = Sample(at_s=0.0, series=(Series(labels=(("finished_reason", "stop"),), value=900.0),))
    world.source.answer(FINISHED, Partial(reason="a store did not answer", sample=some))


def refused(world: LiveWorld) -> None:
    world.source.answer(FINISHED, Failed(reason="Prometheus did not answer within 5 s"))


FAULTS: dict[str, Fault] = {
    "empty": on_lane(lambda text: without(FINISHED, text)),
    "nan": on_lane(lambda text: valued(TTFT.sum, "NaN", text)),
    "inf": on_lane(lambda text: valued(FINISHED, "+Inf", text)),
    "late": all_late,
    "candidate_lost": lost(LANE),
    "production_lost": lost(PRODUCTION),
    "partial": incomplete,
    "refused": refused,
}


@pytest.mark.parametrize("action", StallAction)
@pytest.mark.parametrize("fault", FAULTS)
async def test_01_without_whole_metrics_a_step_holds_and_then_does_as_configured(
    store: Store, fault: str, action: StallAction
) -> None:
    """Kayenta passes empty data unless told otherwise; argo-rollouts#1905."""
    world = LiveWorld(store, policy=stalling(action))
    await world.recommended()
    await world.at_step(0)
    FAULTS[fault](world)
    sentence = await world.tick(STALL_CYCLES - 2)
    assert "Inconclusive" in sentence and "cannot be judged" in sentence
    assert (world.rollout().step, (await world.split()).weight) == (0, PLAN.steps[0].weight)
    assert {verdict.outcome for verdict in world.verdicts()[1:]} <= {Outcome.INCONCLUSIVE}
    await world.tick(2 * STALL_CYCLES)
    paged = [event for event in world.notifier.told if event.kind is EventKind.HELD]
    if action is StallAction.ROLL_BACK:
        assert phase(world) is Phase.ROLLED_BACK
        assert "Inconclusive" in world.rollout().reason
    else:
        assert (phase(world), world.rollout().step) == (Phase.PROGRESSING, 0)
        assert len(paged) == 1 and "longer than stall_s" in paged[0].sentence


async def test_01_metrics_that_come_back_are_judged_from_then_on(store: Store) -> None:
    world = LiveWorld(store, policy=stalling(StallAction.HOLD))
    await world.recommended()
    await world.at_step(0)
    world.late = True
    await world.tick(2 * STALL_CYCLES)
    world.late = False
    await world.until(lambda: phase(world) is Phase.PROMOTED, cycles=200)


async def test_02_an_idle_arm_is_told_apart_from_one_that_is_not_seen(store: Store) -> None:
    """dynamo#6985."""
    world = LiveWorld(store, policy=stalling(StallAction.HOLD))
    await world.recommended()
    await world.at_step(0)
    world.arriving = {PRODUCTION: 40}
    sentence = await world.tick(20)
    assert re.search(r"The candidate served \d requests in \d+ s; 8 are needed", sentence)
    world.shown = lambda slot, text: None if slot == LANE else text
    sentence = await world.tick(20)
    assert "metrics of the candidate arm cannot be judged" in sentence


async def test_02_at_rest_no_traffic_is_said_as_such_and_no_scrape_holds(store: Store) -> None:
    world = LiveWorld(store, per_cycle=0, live=True)
    await world.settle()
    idle = await world.tick(80)
    assert idle.startswith("No study is wanted: 0.0 requests/s")
    world.shown = lambda slot, text: None
    assert (await world.tick(5)).startswith("Holding: finished is ")
    assert world.studies.begun == []


@pytest.mark.parametrize("step", [0, 1])
@pytest.mark.parametrize("action", StallAction)
async def test_03_too_few_requests_never_become_a_promotion(
    store: Store, action: StallAction, step: int
) -> None:
    """argo-rollouts#3850."""
    world = LiveWorld(store, policy=stalling(action))
    await world.recommended()
    await world.at_step(step)
    world.arriving = {LANE: 0, PRODUCTION: 40}
    await world.tick(3 * STALL_CYCLES)
    assert world.active() is None
    expected = {StallAction.HOLD: Phase.PROGRESSING, StallAction.ROLL_BACK: Phase.ROLLED_BACK}
    assert phase(world) is expected[action]
    assert world.rollout().step == step


async def test_03_too_few_requests_of_the_baseline_prove_nothing_either(store: Store) -> None:
    world = LiveWorld(store, policy=stalling(StallAction.HOLD))
    await world.recommended()
    await world.at_step(0)
    world.arriving = {LANE: 40, PRODUCTION: 0}
    sentence = await world.tick(3 * STALL_CYCLES)
    assert "The baseline served" in sentence
    assert (phase(world), world.rollout().step) == (Phase.PROGRESSING, 0)


def rows(*, times: int, by: tuple[str, ...]) -> list[dict[str, object]]:
    """An answer in which each series comes so often, all with the same labels."""
    labels = {"finished_reason": "stop", "le": "+Inf", "instance": "i", "replica": "r"}
    row = {"metric": {k: v for k, v in labels.items() if k in by}, "value": [1.0, "100"]}
    return [row] * times


@pytest.mark.parametrize("times", [0, 2])
async def test_04_several_series_for_one_or_none_are_an_error_and_no_silent_pick(
    store: Store, httpserver: HTTPServer, times: int
) -> None:
    def answered(request: Request) -> Response:
        query = request.form["query"]
        by = re.findall(r"\w+", found[1]) if (found := re.match(r"sum by \((.*?)\)", query)) else ()
        shown = [] if "up{" in query else rows(times=times, by=tuple(by))
        data = {"resultType": "vector", "result": shown}
        return Response(json.dumps({"status": "success", "data": data}), 200)

    httpserver.expect_request("/api/v1/query").respond_with_handler(answered)
    source = PrometheusSource(httpserver.url_for("").rstrip("/"))
    verdict = await judged_over(source, store)
    source.close()
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert ("several series" if times else "is missing") in verdict.reason


async def test_04_an_engine_that_two_jobs_scrape_is_not_counted_twice(store: Store) -> None:
    source, engine = FakeMetricSource(), FakeEngineMetrics(MODEL)
    for at_s in range(0, 200, 5):
        engine.finish(20)
        shown = {
            target(arm=arm, replica=arm, job=job): engine.text()
            for arm in ("production", "candidate")
            for job in ("one", "other")
        }
        source.scrape(float(at_s), shown)
    verdict = await judged_over(source, store, now=199.0)
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "counts an engine more than once" in verdict.reason


async def judged_over(
    source: PrometheusSource | FakeMetricSource, store: Store, now: float = 199.0
) -> Verdict:
    """The verdict on a first step that has baked for a while."""
    world = LiveWorld(store)
    await world.recommended()
    await world.at_step(0)
    rollout = replace(world.rollout(), baking_since_s=now - 60.0)
    leadership = Leadership(store, holder="judging", ttl_s=60.0)
    world.clock.advance(60.0)
    assert leadership.renew(world.clock.now())
    evidence = LiveEvidence(source, POLICY.slo, leadership, model=MODEL)
    verdict = await evidence.verdict(rollout, await world.split(), now)
    assert verdict is not None
    return verdict


async def test_05_every_verdict_is_kept_whole_and_comes_out_the_same_from_the_store(
    store: Store, tmp_path: Path
) -> None:
    """flagger#1810."""
    world = LiveWorld(store)
    await world.recommended()
    await world.until(lambda: world.active() is not None, cycles=200)
    with open_store(f"sqlite:///{tmp_path / 'serinus.db'}") as anew, anew.view() as uow:
        kept = [given.verdict for given in uow.verdicts.of(world.rollout().id)]
    assert [v.outcome for v in kept].count(Outcome.PASS) >= len(PLAN.steps)
    # What could not be asked in a step's first seconds says so and decides nothing.
    unasked = [verdict for verdict in kept if verdict.evidence is None]
    assert all("cannot be judged" in verdict.reason for verdict in unasked)
    for verdict in [verdict for verdict in kept if verdict not in unasked]:
        evidence = verdict.evidence
        assert evidence is not None and evidence.compared is not None
        assert replayed(evidence) == verdict
        assert evidence.end_s > evidence.start_s
        assert {"candidate", "production"} == set(
            re.findall(r'arm="(\w+)"', " ".join(evidence.queries))
        )
        assert evidence.candidate_n == evidence.compared.candidate.requests
        assert evidence.compared.terms.min_requests == PLAN.min_requests
    # The replay judges: other counts give another verdict.
    compared = kept[-1].evidence.compared
    worse = replace(compared.candidate, errors=compared.candidate.requests // 2)
    changed = replace(kept[-1].evidence, compared=replace(compared, candidate=worse))
    assert replayed(changed).outcome is Outcome.FAIL


@pytest.mark.parametrize(
    ("manner", "metric"),
    [
        (Manner(failing_of_ten=1), "error_rate"),
        # The nine others are so much faster that the mean is the baseline's.
        (Manner(ttft_s=0.01, slow_of_ten=1, odd_ttft_s=1.91), "ttft_p95_ms"),
    ],
    ids=["sparse failures", "a long tail under an equal mean"],
)
async def test_06_harm_that_no_mean_shows_sends_the_candidate_back(
    store: Store, manner: Manner, metric: str
) -> None:
    """kayenta#426, kayenta#780."""
    world = LiveWorld(store, per_cycle=400)
    world.manners[LANE] = manner
    await world.recommended()
    await world.until(lambda: phase(world) is Phase.ROLLED_BACK, cycles=60)
    failed = world.verdicts()[-1]
    assert failed.outcome is Outcome.FAIL
    harmed = [effect for effect in failed.effects if effect.metric == metric]
    assert len(harmed) == 1 and harmed[0].interval.low > 0


async def test_06_arms_are_compared_over_one_window_after_the_warm_up(store: Store) -> None:
    world = LiveWorld(store)
    await world.recommended()
    await world.at_step(0)
    since_s = world.rollout().baking_since_s
    world.source.asked.clear()
    await world.until(lambda: world.rollout().step == 1)
    passed = next(v for v in world.verdicts() if v.outcome is Outcome.PASS)
    warm_s = since_s + WARMING * PLAN.steps[0].bake_s
    assert passed.evidence.start_s == warm_s
    at_once = [q for q, at_s in world.source.asked if at_s == passed.evidence.end_s]
    assert {q.window_s for q in at_once} == {passed.evidence.end_s - warm_s}
    assert {dict(q.where)["arm"] for q in at_once} == {"production", "candidate"}


async def test_07_the_hit_rates_of_both_caches_stand_beside_the_latencies(store: Store) -> None:
    world = LiveWorld(store)
    world.manners[LANE] = Manner(prefix_hits=0)
    await world.recommended()
    await world.until(lambda: world.rollout() and world.rollout().step == 1)
    note = "Prefix cache hit rate: candidate 0.0%, baseline 50.0%."
    passed = next(v for v in world.verdicts() if v.outcome is Outcome.PASS)
    assert note in passed.evidence.notes
    with store.view() as uow:
        shown = RolloutDetail.of(world.rollout(), uow.verdicts.of(world.rollout().id), ())
    assert note in shown.model_dump_json()


@pytest.mark.parametrize("change", ["reset", "older_names", "removed_replica"])
async def test_08_no_reset_rename_or_replica_that_left_corrupts_a_rate(
    store: Store, change: str
) -> None:
    """vllm#18354."""
    steps = tuple(replace(step, bake_s=20.0) for step in PLAN.steps)
    world = LiveWorld(store, policy=replace(POLICY, rollout=replace(PLAN, steps=steps)))
    await world.recommended()
    if change == "removed_replica":
        stale = FakeEngineMetrics(MODEL)
        gone = target(arm="candidate", replica="gone", config="other")
        for age_s in (1.5, 1.0):
            stale.finish(100_000, ttft_s=30.0)
            world.source.scrape(world.clock.now() - age_s, {gone: stale.text()})
    if change == "older_names":
        world.shown = lambda slot, text: text.replace(
            "vllm:prefix_cache_", "vllm:gpu_prefix_cache_"
        ).replace("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds")
    await world.at_step(0)
    world.arriving = {LANE: 20, PRODUCTION: 60}
    await world.tick(6)
    if change == "reset":
        world.metrics[LANE, world.launcher.engines[LANE]] = FakeEngineMetrics(MODEL)
    await world.until(lambda: world.rollout().step == 1)
    evidence = [v for v in world.verdicts() if v.outcome is Outcome.PASS][-1].evidence
    came = 20 / CYCLE_S * (evidence.end_s - evidence.start_s)
    assert evidence.candidate_n == pytest.approx(came, rel=0.2)
    assert evidence.baseline_n == pytest.approx(3 * came, rel=0.2)
    candidate = evidence.compared.candidate
    assert candidate.prefix_hit_rate == pytest.approx(0.5, abs=0.01)
    assert candidate.ttft.mean == pytest.approx(0.2, rel=0.05)


async def test_09_demand_is_what_came_and_not_what_was_finished() -> None:
    """An engine that cannot keep up would else look idle the more, the more comes; dynamo#11693."""
    source, engine = FakeMetricSource(), FakeEngineMetrics(MODEL)
    engine.running = 10.0
    finished, queued, rejected = 4, 6, 2
    for k in range(60):
        engine.finish(finished)
        engine.waiting += queued
        engine.reject(rejected)
        source.scrape(2.0 * k, {target(arm="production"): engine.text()})
    live = LiveShape(source, model=MODEL, arm="production", scrape_s=2.0)
    shape = await live.read(118.0, 100.0)
    came_rps = (finished + queued + rejected) / 2
    assert shape.rate_rps == pytest.approx(came_rps, rel=0.03)
    assert shape.requests / 100.0 == pytest.approx(finished / 2, rel=0.03)
