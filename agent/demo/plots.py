"""Line plots as SVG text, small enough to stand inside a report that needs no network (pure)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 860, 190
LEFT, RIGHT, TOP, BOTTOM = 56, 12, 26, 24
LETTER = 7
TICKS_S = (30, 60, 120, 300)
MOST_TICKS = 15


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Points in data units; ``None`` breaks the line. ``style`` is a class of the page's CSS."""

    label: str
    style: str
    points: tuple[tuple[float, float | None], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """A shaded span of time with a word in it."""

    label: str
    style: str
    start_s: float
    end_s: float


def plot(title: str, unit: str, end_s: float, lines: Sequence[Line], bands: Sequence[Band]) -> str:
    """One plot over time from 0 to ``end_s`` seconds; all text is escaped."""
    values = [y for line in lines for _, y in line.points if y is not None]
    top = _round_up(max(values, default=1.0))

    def x(seconds: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * seconds / max(end_s, 1.0)

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / top

    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">',
        f'<text class="title" x="{LEFT}" y="14">{escape(title)}</text>',
    ]
    for band in bands:
        start, width = x(band.start_s), x(band.end_s) - x(band.start_s)
        parts.append(
            f'<rect class="band {band.style}" x="{start:.1f}" y="{TOP}" width="{width:.1f}" '
            f'height="{HEIGHT - TOP - BOTTOM}"/>'
        )
        if width > LETTER * len(band.label):
            parts.append(
                f'<text class="band-label" x="{start + 3:.1f}" y="{TOP + 11}">'
                f"{escape(band.label)}</text>"
            )
    for share in (0.0, 0.5, 1.0):
        at = y(top * share)
        parts.append(
            f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>'
            f'<text class="tick" x="{LEFT - 6}" y="{at + 4:.1f}">{top * share:g}</text>'
        )
    parts += [
        f'<text class="time" x="{x(seconds):.1f}" y="{HEIGHT - 8}">{seconds} s</text>'
        for seconds in range(0, int(end_s) + 1, _tick_s(end_s))
    ]
    parts.append(f'<text class="unit" x="{WIDTH - RIGHT}" y="14">{escape(unit)}</text>')
    for index, line in enumerate(lines):
        parts.append(f'<path class="line {line.style}" d="{_path(line, x, y)}"/>')
        if len(lines) > 1:
            place = LEFT + 240 + 150 * index
            parts.append(
                f'<text class="key {line.style}" x="{place}" y="14">{escape(line.label)}</text>'
            )
    return "".join([*parts, "</svg>"])


def _tick_s(end_s: float) -> int:
    """Seconds between two times on the axis, so that their labels do not touch."""
    return next((step for step in TICKS_S if end_s <= step * MOST_TICKS), TICKS_S[-1])


def _path(line: Line, x: Callable[[float], float], y: Callable[[float], float]) -> str:
    pen, path = "M", []
    for seconds, value in line.points:
        if value is None:
            pen = "M"
            continue
        path.append(f"{pen}{x(seconds):.1f} {y(value):.1f}")
        pen = "L"
    return "".join(path)


def _round_up(value: float) -> float:
    """The least of 1, 2, 2.5, 5 times a power of ten that is not below ``value``."""
    step = 1.0
    while step * 10 < value:
        step *= 10
    return next((step * f for f in (1, 2, 2.5, 5, 10) if step * f >= value), step * 10)
