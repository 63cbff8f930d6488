"""In which order a candidate and the baseline have their fresh runs, and when they are judged.

A round is four runs, A B B A, and the next one B A A B: so a host that drifts, in a straight line
or bending, weighs on both arms alike. After each round the arms are judged; that they may be
judged again is paid for: the looks share the error that one alone would have.
"""

from __future__ import annotations

ROUND = 4
"""Runs of a round, two of each arm."""


def candidates_turn(run: int) -> bool:
    """Whether the run of this number, from 0, is the candidate's: the Thue-Morse sequence."""
    return run.bit_count() % 2 == 0


def share_of_error(done: int, rounds: int) -> float:
    """What the look after ``done`` rounds of at most ``rounds`` may spend of the whole error (0–1).

    Later looks may spend more, in proportion to their runs: the first decides what is plain, the
    last what is small. All shares add up to 1, so the whole is kept however often one looks.
    """
    return 2 * done / (rounds * (rounds + 1))
