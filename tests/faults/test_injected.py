"""Faults of all around the controller, injected into a fleet under live traffic.

Each must end as it should, without a wrong promotion, with the split as the store says, and with no
failed answer but of an engine that was broken.
"""

from collections.abc import Iterator

import pytest

from benchmarks.faults import Stages, as_it_must
from tests.fakes.fault_scenarios import INJECTED, Injected
from tests.fakes.fault_stage import Unavailable


@pytest.fixture(scope="module")
def stages() -> Iterator[Stages]:
    opened = Stages()
    try:
        yield opened
    finally:
        opened.close()


@pytest.mark.parametrize("injected", INJECTED, ids=lambda injected: injected.name)
def test_a_fault_ends_as_it_must_and_harms_nobody(stages: Stages, injected: Injected) -> None:
    try:
        told = stages.play(injected)
    except Unavailable as lacking:
        pytest.skip(str(lacking))
    assert told.requests > 10
    assert as_it_must(injected, told), told
