"""What a measurement is worth under an objective: the one definition for search and judge.

Goodput is taken as output tokens a second times the share of ended requests that met the SLO.
Counting the good requests by the moment they end would be simpler and worse: streams of like
length end in waves, and one wave more or less in the window is a tenth of the goodput.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

from canary.intervals import Blocks, Share
from domain.study import Measurement, Objective

LEAST_COUNT = 3
"""Requests that a rate is taken to stand for at least: with none seen, up to three may be expected
at 95 %."""


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


def tokens_a_request(runs: Sequence[Measurement]) -> float:
    """Output tokens of a request, on average over all runs."""
    made = sum(block.output_tokens for run in runs for block in run.blocks)
    return made / max(sum(run.requests for run in runs), 1)


def least_rate(runs: Sequence[Measurement]) -> float:
    """The output tokens a second that a ``value`` of these runs is taken to be at least, so that
    none is divided by."""
    return LEAST_COUNT * tokens_a_request(runs) / min(run.seconds for run in runs)
