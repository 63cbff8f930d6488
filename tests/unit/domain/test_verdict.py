"""An interval says its level as it is: one of several looks is not at 100 %."""

import pytest

from agent.api.rendering import environment
from domain.interval import Interval


@pytest.mark.parametrize(
    ("level", "words"),
    [(0.95, "95 %"), (0.995, "99.5 %"), (1 - 0.01 / 6, "99.83 %")],
)
def test_a_level_is_never_rounded_to_certainty(level: float, words: str) -> None:
    found = Interval(low=0.0, high=1.0, level=level, method="exact", n=4)
    assert found.percent == words
    shown = environment().from_string("{{ level | percent }}").render(level=level)
    assert shown != "100 %"
