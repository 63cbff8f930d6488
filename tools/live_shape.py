"""The shape of one arm's traffic for a reader who looks far more often than a window lasts.

All figures are of the window that is asked for but one: arrivals, for which every scrape of the
window has to be read. Nothing is decided here.
"""

from __future__ import annotations

from dataclasses import replace

from domain.ports import MetricSource
from domain.traffic import TrafficShape
from tools.profiler import Missing, read_shape


class LiveShape:
    """Counts arrivals once a window: the burstiness of a shape may be that of an earlier window
    which overlaps with its own.

    One caller at a time. ``model``, ``arm`` and ``scrape_s`` are those of ``read_shape``.
    """

    def __init__(
        self, source: MetricSource, *, model: str, arm: str | None, scrape_s: float
    ) -> None:
        self._source = source
        self._model = model
        self._arm = arm
        self._scrape_s = scrape_s
        self._counted: TrafficShape | None = None

    async def read(self, end_s: float, window_s: float) -> TrafficShape | Missing:
        """The shape of the ``window_s`` seconds before ``end_s`` (Unix seconds)."""
        counted = self._counted
        # An end before the last one means that the clock was set back: all is read anew then.
        if counted is not None and not 0 <= end_s - counted.end_s < window_s:
            counted = None
        shape = await read_shape(
            self._source,
            model=self._model,
            arm=self._arm,
            end_s=end_s,
            window_s=window_s,
            scrape_s=self._scrape_s,
            with_arrivals=counted is None,
        )
        if isinstance(shape, Missing):
            return shape
        if counted is not None:
            return replace(shape, burstiness=counted.burstiness, covered=counted.covered)
        # Where too few scrapes told anything, the next look tries again.
        self._counted = None if shape.covered is None else shape
        return shape
