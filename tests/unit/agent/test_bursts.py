"""Answers that break of late, as the gateway counts them: how few prove that an engine fails."""

import pytest

from agent.bursts import BY_GATEWAY, RECENT_S, Bursts
from canary.live import replayed
from domain.fleet import Role, SlotTraffic, Split
from domain.verdict import Outcome

CYCLE_S = 2.0
PRODUCTION = (5000, 3)


def split(candidate: tuple[int, int], production: tuple[int, int] = PRODUCTION) -> Split:
    slots = [
        SlotTraffic(
            slot=role.value,
            role=role,
            admitted=True,
            up=True,
            in_flight=0,
            requests=requests,
            errors=errors,
        )
        for role, (requests, errors) in (
            (Role.CANARY, candidate),
            (Role.PRODUCTION, production),
        )
    ]
    return Split(weight=25, slots=tuple(slots))


def looks(*counts: tuple[int, int], production: tuple[int, int] = PRODUCTION) -> list[bool]:
    """Whether each look at the candidate's counts, a cycle apart, proves a burst."""
    bursts = Bursts()
    return [
        bursts.proven("r", split(each, production), CYCLE_S * number, 1) is not None
        for number, each in enumerate(counts)
    ]


def test_an_engine_that_breaks_after_a_long_good_time_is_seen_at_once() -> None:
    """Over the whole of a long step its errors were a small share for a long time."""
    assert looks((9000, 0), (9020, 0), (9040, 20)) == [False, False, True]


def test_few_requests_are_looked_at_together() -> None:
    counts = [(100 + number, number) for number in range(6)]
    assert looks(*counts) == [False, False, False, False, True, True]


def test_what_lies_further_back_than_recently_counts_no_more() -> None:
    quiet = round(RECENT_S / CYCLE_S) + 1
    counts = [(100, 0), (102, 2), *[(102, 2)] * quiet, (104, 4)]
    assert not any(looks(*counts))


@pytest.mark.parametrize("errors", [1, 2])
def test_one_or_two_never_prove_anything(errors: int) -> None:
    assert looks((100, 0), (100 + errors, errors)) == [False, False]


def test_errors_that_both_arms_have_prove_nothing() -> None:
    assert looks((100, 0), (120, 4), production=(1000, 200)) == [False, False]


def test_without_any_of_production_nothing_is_proven() -> None:
    assert looks((100, 0), (120, 20), production=(5, 0)) == [False, False]


def test_a_gateway_that_counts_anew_and_another_rollout_begin_anew() -> None:
    assert looks((500, 90), (20, 0), (40, 20)) == [False, False, True]
    bursts = Bursts()
    assert bursts.proven("one", split((100, 0)), 0.0, 1) is None
    assert bursts.proven("two", split((120, 20)), CYCLE_S, 1) is None


def test_a_clock_that_was_set_back_begins_anew() -> None:
    bursts = Bursts()
    times = (7200.0, 3600.0, 3602.0)
    counts = ((100, 0), (120, 20), (140, 40))
    found = [bursts.proven("r", split(c), t, 1) for c, t in zip(counts, times, strict=True)]
    assert [each is not None for each in found] == [False, False, True]


def test_the_verdict_says_what_it_rests_on_and_can_be_given_again() -> None:
    bursts = Bursts()
    bursts.proven("r", split((100, 0)), 0.0, 1)
    verdict = bursts.proven("r", split((120, 20)), CYCLE_S, 1)
    assert verdict is not None and verdict.outcome is Outcome.FAIL
    assert verdict.evidence is not None and BY_GATEWAY in verdict.evidence.notes
    assert (verdict.evidence.candidate_n, verdict.evidence.start_s) == (20, 0.0)
    assert replayed(verdict.evidence) == verdict


def test_good_traffic_never_proves_a_burst() -> None:
    """Half a percent of errors in both arms, over an hour of looks."""
    counts = [(20 * number, number // 10) for number in range(1800)]
    assert not any(looks(*counts, production=(20_000, 100)))
