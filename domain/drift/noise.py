"""How far windows lie apart that have not changed, so that noise is not taken for drift.

Drift is declared after some windows in a row beyond a limit, so what counts is the *persistent*
distance: the smallest within a block of that many consecutive windows. Windows lean on their
neighbours, which is why whole blocks are taken (the moving blocks of a block bootstrap; there are
few enough to take every one instead of drawing some, so the result needs no seed).

With ``u`` the persistent distance from a central window near in time that a tenth of the blocks
reach, ``beta`` the mean by which those exceed it, ``v`` the median distance of single windows from
it (the tuned shape is a single window and no central one), and ``blocks`` the number of separate
blocks a week:

    limit = v + u + beta · ln(0.1 · blocks · ways / BUDGET)

``ways`` is in how many ways an alarm can come: components times lengths of runs. This is the level
of a tail that falls exponentially, which must be guessed, since a week has more windows than are
kept. It is careful where the tail falls faster, as a normal one does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist, fmean, median
from typing import Final

from domain.drift.distance import Component, Lengths, Window, apart, missed

WEEK_S: Final = 604_800.0
BUDGET: Final = 0.5
"""False alarms a week. The promise is one: an alarm on an odd window makes the shape that is
learned from it odd, and a second alarm likely."""
CENTRES: Final = 8
"""Windows tried as the central one, evenly spread: more change little and cost time."""
LOCAL: Final = 36
"""Windows that share a central one: what moves more slowly than this is change and no noise."""
_TAIL: Final = 0.1
_ODD_SHAPE: Final = 0.01


def from_centres(component: Component, stretches: Sequence[Sequence[Window]]) -> list[list[float]]:
    """Distances of windows without change from a central one near in time, piece by piece.

    Each stretch holds windows in order of time that were compared with one shape. Windows that do
    not know the component are left out.
    """
    known = (
        [window for window in stretch if apart(component, window, window) is not None]
        for stretch in stretches
    )
    return [
        _from_centre(component, stretch[start : start + LOCAL])
        for stretch in known
        for start in range(0, len(stretch), LOCAL)
    ]


def _from_centre(component: Component, windows: Sequence[Window]) -> list[float]:
    """Distances of all from that one, of some evenly spread, that lies nearest to the others."""
    some = windows[:: -(-len(windows) // CENTRES)]
    centre = min(some, key=lambda one: sum(apart(component, one, other) or 0.0 for other in some))
    return [apart(component, centre, window) or 0.0 for window in windows]


def noise_limit(
    pieces: Sequence[Sequence[float]], *, run: int, blocks: float, ways: int
) -> float | None:
    """The persistent distance that windows without change reach ``BUDGET`` times a week.

    ``pieces`` are distances as ``from_centres`` gives them; ``blocks`` is the number of separate
    runs of ``run`` windows in a week. ``None`` where there are too few.
    """
    long = [piece for piece in pieces if len(piece) >= run]
    persistent = sorted(
        min(piece[i : i + run]) for piece in long for i in range(len(piece) - run + 1)
    )
    place = math.ceil((1 - _TAIL) * len(persistent)) - 1
    if place < 0 or place + 1 >= len(persistent):
        return None
    beyond = fmean(persistent[place + 1 :]) - persistent[place]
    expected = max(_TAIL * blocks * ways / BUDGET, 1.0)
    typical = median([distance for piece in long for distance in piece])
    return typical + persistent[place] + beyond * math.log(expected)


def sampling_limit(
    component: Component, window: Window, shape: Window, *, run: int, blocks: float, ways: int
) -> float:
    """The distance that finite numbers of requests give by themselves; 0 where it is not known.

    Each of ``run`` independent windows may err so far that all of them together do it within the
    budget. The shape that they are compared with is drawn once: its own error, which one shape in
    a hundred passes, is added.
    """
    chance = min(BUDGET / (blocks * ways), 1.0) ** (1 / run)
    return _error(component, window, chance) + _error(component, shape, _ODD_SHAPE)


def _error(component: Component, window: Window, chance: float) -> float:
    """How far from the truth a window lies with this chance, on the component's scale."""
    n = max(window.requests, 1.0)
    z = NormalDist().inv_cdf(1 - chance / 2) / math.sqrt(n)
    match component:
        case Component.DEMAND:
            return z * math.sqrt(max(window.dispersion or 1.0, 1.0)) / math.log(2)
        case Component.CONCURRENCY:
            # Requests in the engine lean on one another: only the windows tell how much.
            return 0.0
        case Component.ISL:
            return _of_lengths(window.isl, n, z, chance)
        case Component.OSL:
            return _of_lengths(window.osl, n, z, chance)
        case Component.HIT_RATE:
            # As if each request hit wholly or not at all, which is the most that it can vary.
            rate = window.prefix_hit_rate or 0.0
            return z * math.sqrt(rate * (1 - rate)) / missed(rate) / math.log(2)
        case Component.ACCEPTANCE:
            rate = window.draft_acceptance or 0.0
            return 2 * z * math.sqrt(rate * (1 - rate))


def _of_lengths(lengths: Lengths | None, n: float, z: float, chance: float) -> float:
    if lengths is None:
        return 0.0
    # The inequality of Dvoretzky, Kiefer, Wolfowitz and Massart; twice, as the distance counts it.
    of_shares = 2 * math.sqrt(math.log(2 / chance) / 2 / n)
    return max(z * lengths.variation / math.log(2), of_shares)
