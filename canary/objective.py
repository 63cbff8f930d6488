"""What a measurement is worth under an objective: the one definition for search and judge.

Goodput is taken as output tokens a second times the share of ended requests that met the SLO.
Counting the good requests by the moment they end would be simpler and worse: streams of like
length end in waves, and one wave more or less in the window is a tenth of the goodput.
"""

from __future__ import annotations

from typing import assert_never

from canary.intervals import Blocks, Share
from domain.study import Measurement, Objective


def blocks(measured: Measurement, objective: Objective) -> Blocks:
    """The blocks of time whose rate is ``value``."""
    share = None
    match objective:
        case Objective.GOODPUT:
            share = Share(
                hits=tuple(float(block.good) for block in measured.blocks),
                tries=tuple(float(block.requests) for block in measured.blocks),
            )
        case Objective.THROUGHPUT:
            pass
        case _:
            assert_never(objective)
    return Blocks(
        amounts=tuple(block.output_tokens for block in measured.blocks),
        seconds=tuple(block.seconds for block in measured.blocks),
        share=share,
    )


def value(measured: Measurement, objective: Objective) -> float:
    """Output tokens a second: all of them, or the share of them that counts as good."""
    return blocks(measured, objective).rate
