"""The benchmark of killed controllers, with few of them: nothing is lost, nothing is done twice."""

from benchmarks.kills import killed


def test_a_few_random_kills_lose_nothing() -> None:
    found = killed(kills=5, fleets=2, seed=7)
    assert found["kills"] >= 5 and found["rollouts"] >= 2
    assert found["requests"] > 100
    assert found["targets_met"], found
