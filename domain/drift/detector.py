"""When the live shape has left the one that production was tuned for: limits and hysteresis.

A window is *beyond* in a component whose distance from the tuned shape reaches the limit: the
largest of a floor (nearer than this no config minds), the noise of this traffic's own windows and
the error of counting so few requests. Drift is declared after a run of windows beyond in the same
component, one after another without overlap. There are two runs: a short one for large changes and
one ``LONGER`` times as long, whose limits are lower, for smaller ones. The short run's floor is
higher by the root of that, as evidence grows with the root of time. Drift is over after a short run
below ``RELEASE`` of every lower limit. Missing windows count neither for nor against.

All memory is ``DriftState``, a value that the caller stores.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from domain.drift.distance import Component, Window, apart
from domain.drift.noise import WEEK_S, from_centres, noise_limit, sampling_limit
from domain.traffic import TrafficShape

LONGER: Final = 2
ENOUGH: Final = 48
"""From so many windows without change on their noise is believed."""
MOST: Final = 288
"""So many of the latest windows without change are kept."""
UNLEARNED: Final = 1.5
"""Until there are enough windows, the floors are this much higher."""
RELEASE: Final = 0.75
_WAYS: Final = 2 * len(Component)
"""Ways in which a false alarm can come: two runs in each component."""

Stretches: TypeAlias = tuple[tuple[Window, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftRules:
    """``least`` is the distance below which nothing is drift, ``run`` the windows of a short run.

    Both are above zero.
    """

    least: float
    run: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """What moved: the component, how far the ``window`` lies in it, and past which limit.

    ``noise`` is what the ``calm`` windows without change reach by themselves, ``None`` where there
    are too few; ``run`` is how many windows in a row lay beyond.
    """

    component: Component
    distance: float
    limit: float
    noise: float | None
    calm: int
    run: int
    window: Window


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftState:
    """What is remembered of the traffic since the shape of ``reference`` was learned, and before.

    ``calm`` are the latest windows without change, a stretch for each shape that they were compared
    with, the last for this one. ``pending`` are those of a run that is not decided: beyond where
    there is no drift, back again where there is. ``judged_s`` is the end of the last window that
    counted, ``drift`` what is declared.
    """

    reference: Window
    judged_s: float
    calm: Stretches = ((),)
    pending: tuple[Window, ...] = ()
    drift: Drift | None = None


def advance(
    state: DriftState | None, tuned_for: TrafficShape, live: TrafficShape, rules: DriftRules
) -> DriftState:
    """The state after one more window; the same state where ``live`` overlaps the last one.

    ``state`` is what was stored last. Where production was tuned for another shape since, the watch
    begins anew and only the noise is still believed. The caller leaves out windows with too few
    requests.
    """
    if state is None or not _same(state, tuned_for):
        known = tuple(each for each in state.calm if each) if state is not None else ()
        state = DriftState(
            reference=Window.of(tuned_for), judged_s=tuned_for.end_s, calm=(*known, ())
        )
    if _overlaps(state, live):
        return state
    state = replace(state, judged_s=live.end_s)
    look = _Look(state, rules, WEEK_S / live.window_s)
    window = Window.of(live)
    if state.drift is None:
        return _undrifted(state, window, look)
    return _drifted(state, state.drift, window, look)


def counts(state: DriftState | None, tuned_for: TrafficShape, live: TrafficShape) -> bool:
    """Whether ``advance`` would change anything; it asks nothing of the windows without change."""
    return state is None or not _same(state, tuned_for) or not _overlaps(state, live)


def _same(state: DriftState, tuned_for: TrafficShape) -> bool:
    # A window is told from every other by its end.
    return state.reference.end_s == tuned_for.end_s


def _overlaps(state: DriftState, live: TrafficShape) -> bool:
    # An end before the last one means that the clock was set back: wait for nothing then.
    return state.judged_s <= live.end_s < state.judged_s + live.window_s


def _undrifted(state: DriftState, window: Window, look: _Look) -> DriftState:
    if not look.beyond(window, look.long):
        return replace(state, calm=_kept(state.calm, (*state.pending, window)), pending=())
    pending = (*state.pending, window)
    for run in (look.short, look.long):
        if len(pending) >= run:
            beyond = [look.beyond(each, run) for each in pending[-run:]]
            if moved := set.intersection(*beyond):
                return replace(state, pending=(), drift=look.drift(window, moved, run))
    # What is too old to be in a run with the next window turned out to be noise.
    old = max(len(pending) - look.long + 1, 0)
    return replace(state, calm=_kept(state.calm, pending[:old]), pending=pending[old:])


def _drifted(state: DriftState, declared: Drift, window: Window, look: _Look) -> DriftState:
    if look.beyond(window, look.long, RELEASE):
        # What is told is the latest window, as long as it is beyond like those of the run.
        if declared.component in look.beyond(window, declared.run):
            declared = look.drift(window, {declared.component}, declared.run)
        return replace(state, pending=(), drift=declared)
    pending = (*state.pending, window)
    if len(pending) < look.short:
        return replace(state, pending=pending)
    return replace(state, calm=_kept(state.calm, pending), pending=(), drift=None)


def _kept(calm: Stretches, more: Sequence[Window]) -> Stretches:
    """``more`` added to the last stretch; the oldest windows beyond ``MOST`` are forgotten."""
    *others, last = calm
    kept, room = [(*last, *more)[-MOST:]], MOST - len(last) - len(more)
    for stretch in reversed(others):
        if room > 0:
            kept.insert(0, stretch[-room:])
            room -= len(stretch)
    return tuple(kept)


class _Look:
    """Limits at one moment. Noise is worked out only where a distance asks for it."""

    def __init__(self, state: DriftState, rules: DriftRules, looks: float) -> None:
        self._reference = state.reference
        self._calm = state.calm
        self._windows = sum(map(len, state.calm))
        self._least = rules.least
        self._looks = looks
        self._pieces: dict[Component, list[list[float]]] = {}
        self.short = rules.run
        self.long = LONGER * rules.run

    def beyond(self, window: Window, run: int, share: float = 1.0) -> set[Component]:
        """The components in which the window reaches this share of the run's limit."""
        return {
            component
            for component in Component
            if (distance := apart(component, window, self._reference)) is not None
            # Most windows lie below the floor and need no limit worked out.
            and distance >= share * self._floor(run)
            and distance >= share * self.limit(component, window, run)
        }

    def drift(self, window: Window, moved: set[Component], run: int) -> Drift:
        """Of the components that moved, the one that did most for its limit."""
        found = [
            Drift(
                component=component,
                distance=apart(component, window, self._reference) or 0.0,
                limit=self.limit(component, window, run),
                noise=self.noise(component, run),
                calm=self._windows,
                run=run,
                window=window,
            )
            for component in Component
            if component in moved
        ]
        return max(found, key=lambda drift: drift.distance / drift.limit)

    def limit(self, component: Component, window: Window, run: int) -> float:
        noise = self.noise(component, run)
        floor = self._floor(run) * (UNLEARNED if noise is None else 1.0)
        sampling = sampling_limit(
            component, window, self._reference, run=run, blocks=self._looks / run, ways=_WAYS
        )
        return max(floor, noise or 0.0, sampling)

    def noise(self, component: Component, run: int) -> float | None:
        """What the windows without change show; ``None`` where there are too few."""
        if self._windows < ENOUGH:
            return None
        if component not in self._pieces:
            self._pieces[component] = from_centres(component, self._calm)
        return noise_limit(self._pieces[component], run=run, blocks=self._looks / run, ways=_WAYS)

    def _floor(self, run: int) -> float:
        return self._least * math.sqrt(self.long / run)
