"""The order of fresh runs is fair to both arms, and looks spend no more error than there is."""

import pytest

from canary.rounds import ROUND, candidates_turn, share_of_error


def test_the_order_is_the_mirrored_one() -> None:
    order = "".join("A" if candidates_turn(run) else "B" for run in range(16))
    assert order == "ABBABAABBAABABBA"


@pytest.mark.parametrize("rounds", [1, 2, 4])
def test_a_host_that_drifts_in_a_straight_line_weighs_on_both_arms_alike(rounds: int) -> None:
    runs = range(rounds * ROUND)
    ours = [run for run in runs if candidates_turn(run)]
    theirs = [run for run in runs if not candidates_turn(run)]
    assert len(ours) == len(theirs)
    assert sum(ours) == sum(theirs)
    if rounds % 2 == 0:
        assert sum(run**2 for run in ours) == sum(run**2 for run in theirs)


@pytest.mark.parametrize("rounds", [1, 3, 8])
def test_the_looks_spend_the_whole_error_and_no_more(rounds: int) -> None:
    shares = [share_of_error(done, rounds) for done in range(1, rounds + 1)]
    assert sum(shares) == pytest.approx(1.0)
    assert shares == sorted(shares)
