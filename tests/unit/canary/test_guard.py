"""Budgets and cooldowns stand whatever is proposed."""

from dataclasses import replace

from canary.guard import Limits, left_today_s, refuse_minutes, refuse_rollout, refuse_study
from domain.approval import Autonomy
from domain.rollout import Phase
from tests.fakes.rollout_world import BASELINE, CANDIDATE, fresh_rollout

LIMITS = Limits(autonomy=Autonomy.AUTONOMOUS, changes_a_day=2, studies_a_day=3, cooldown_s=600.0)
NOW = 1_000_000.0


def test_study_is_refused_by_autonomy_budget_and_cooldown():
    assert refuse_study(LIMITS, [], False, NOW) is None
    observe = replace(LIMITS, autonomy=Autonomy.OBSERVE)
    assert "observe" in (refuse_study(observe, [], True, NOW) or "")
    assert "budget of 3" in (refuse_study(LIMITS, [NOW - 5000.0] * 3, True, NOW) or "")
    assert "another 500 s" in (refuse_study(LIMITS, [NOW - 100.0], False, NOW) or "")
    assert refuse_study(LIMITS, [NOW - 100.0], True, NOW) is None
    assert refuse_study(LIMITS, [NOW - 90_000.0] * 9, False, NOW) is None


def test_study_is_refused_where_the_days_minutes_do_not_hold_it():
    day = replace(LIMITS, lane_s_a_day=3600.0)
    assert refuse_minutes(day, used_s=3000.0, least_s=600.0) is None
    assert refuse_minutes(day, used_s=3001.0, least_s=600.0) == (
        "A study may need 10 min of the canary lane, and of the day's 60 min 50 are used up; wait "
        "until they are a day old, or raise canary_minutes_a_day."
    )
    assert refuse_minutes(day, used_s=9000.0, least_s=600.0) is not None
    assert refuse_minutes(LIMITS, used_s=1e9, least_s=600.0) is None


def test_what_is_left_of_the_day_is_never_less_than_nothing():
    day = replace(LIMITS, lane_s_a_day=3600.0)
    assert [left_today_s(day, used) for used in (0.0, 3600.0, 9000.0)] == [3600.0, 0.0, 0.0]
    assert left_today_s(LIMITS, 9000.0) is None


def test_rollout_is_refused_by_autonomy_company_and_budget():
    assert refuse_rollout(LIMITS, [], CANDIDATE.digest, NOW) is None
    recommend = replace(LIMITS, autonomy=Autonomy.RECOMMEND)
    assert "recommend" in (refuse_rollout(recommend, [], CANDIDATE.digest, NOW) or "")
    assert "under way" in (refuse_rollout(LIMITS, [fresh_rollout()], CANDIDATE.digest, NOW) or "")
    moved = replace(fresh_rollout(Phase.PROMOTED), created_s=NOW - 5000.0)
    refusal = refuse_rollout(LIMITS, [moved, replace(moved, id="r2")], CANDIDATE.digest, NOW)
    assert "budget of 2" in (refusal or "")


def test_config_that_was_left_does_not_come_back_within_the_cooldown():
    promoted = replace(fresh_rollout(Phase.PROMOTED), phase_since_s=NOW - 60.0)
    assert "was left" in (refuse_rollout(LIMITS, [promoted], BASELINE.digest, NOW) or "")
    assert refuse_rollout(LIMITS, [promoted], CANDIDATE.digest, NOW) is None
    assert refuse_rollout(LIMITS, [promoted], BASELINE.digest, NOW + 700.0) is None
    undone = replace(fresh_rollout(Phase.ROLLED_BACK), phase_since_s=NOW - 60.0)
    assert "was left" in (refuse_rollout(LIMITS, [undone], CANDIDATE.digest, NOW) or "")


def test_going_back_after_a_promotion_is_a_change_and_bars_what_was_left():
    undone = replace(
        fresh_rollout(Phase.ROLLED_BACK),
        created_s=NOW - 90_000.0,
        promoted_s=NOW - 80_000.0,
        phase_since_s=NOW - 60.0,
    )
    assert "was left" in (refuse_rollout(LIMITS, [undone], CANDIDATE.digest, NOW) or "")
    assert refuse_rollout(LIMITS, [undone], BASELINE.digest, NOW) is None
    once = replace(LIMITS, changes_a_day=1)
    assert "budget of 1" in (refuse_rollout(once, [undone], BASELINE.digest, NOW) or "")
    today = replace(undone, created_s=NOW - 5000.0, promoted_s=NOW - 4000.0)
    assert "budget of 2" in (refuse_rollout(LIMITS, [today], BASELINE.digest, NOW) or "")
