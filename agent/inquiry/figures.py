"""Figures by name, texts that ask for them, and numbers in a text that nobody read. Pure.

A text asks for a figure as ``{ttft_p95_now}``. A number that stands in it in digits must be one
that was read, or was said in what the writer was given.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple, TypeAlias

from agent.inquiry.seen import Seen, Side
from domain.figure import Figure, Unit
from domain.traffic import TrafficShape
from tools.catalog.traffic import figures_of, told
from tools.means import mean_queries
from tools.queries import PROMPT_TOKENS

Figures: TypeAlias = Mapping[str, Figure]

_PLACE: Final = re.compile(r"\{\s*([^{}]*?)\s*\}")
_NUMBER: Final = re.compile(
    r"(?P<word>[^\W\d_]*)(?P<number>\d[\d,]*(?:\.\d+)?)"
    r"\s*(?P<unit>ms|milliseconds?|seconds?|secs?|s|%|percent|×|x|times|-?fold)?(?![^\W\d_])",
    re.IGNORECASE,
)
_TOKEN: Final = re.compile(r"[^\W_]*\d[\w.:,/-]*")
_TIME: Final = re.compile(r"\d{1,2}:\d{2}(:\d{2})?|\d{4}-\d{2}-\d{2}")
_SPELT: Final = re.compile(
    r"\b(?:twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety|hundreds?|thousands?|millions?)\b",
    re.IGNORECASE,
)
_CLOSE: Final = 0.025
"""How far a rounded number may lie from the one that was read, as a share of it."""

_SCALES: Final[Mapping[str, Mapping[Unit, float]]] = {
    "ms": {Unit.MILLISECONDS: 1.0, Unit.SECONDS: 1000.0},
    "s": {Unit.SECONDS: 1.0, Unit.MILLISECONDS: 0.001},
    "%": {Unit.SHARE: 100.0},
    "x": {Unit.TIMES: 1.0},
}
_UNITS: Final[Mapping[str, str]] = {
    "ms": "ms", "millisecond": "ms", "milliseconds": "ms",
    "s": "s", "sec": "s", "secs": "s", "second": "s", "seconds": "s",
    "%": "%", "percent": "%",
    "×": "x", "x": "x", "times": "x", "fold": "x", "-fold": "x",
}  # fmt: skip


class Unread(Exception):
    """A text asks for or states a figure that was not read; its text says which."""


class Filled(NamedTuple):
    """The text with its figures, and those that it asked for, in order, each once."""

    text: str
    used: tuple[Figure, ...]


def known(seen: Seen) -> dict[str, Figure]:
    """All figures of both windows, and what they are held against."""
    found = [*_of(seen, seen.now, "_now"), *_of(seen, seen.before, "_before")]
    named = {figure.name: figure for figure in found}
    for name, now in list(named.items()):
        stem, is_now = name.removesuffix("_now"), name.endswith("_now")
        before = named.get(f"{stem}_before")
        if is_now and before is not None and before.value > 0:
            named[f"{stem}_ratio"] = Figure(
                name=f"{stem}_ratio",
                value=now.value / before.value,
                unit=Unit.TIMES,
                source=f"{name} over {before.name}",
            )
    for limit, value in (("ttft", seen.setup.slo.ttft_ms), ("tpot", seen.setup.slo.tpot_ms)):
        if value is not None:
            named[f"{limit}_limit"] = _given(f"{limit}_limit", value, Unit.MILLISECONDS, "slo")
    if seen.setup.seats is not None:
        seats = _given("max_num_seqs", seen.setup.seats, Unit.NONE, "the config of production")
        named[seats.name] = seats
    return named


def _given(name: str, value: float, unit: Unit, where: str) -> Figure:
    return Figure(name=name, value=value, unit=unit, source=where)


def _of(seen: Seen, side: Side, suffix: str) -> Iterator[Figure]:
    model, arm, window_s = seen.setup.model, seen.setup.arm, seen.period.seconds
    if isinstance(side.shape, TrafficShape):
        yield from figures_of(side.shape, arm, suffix)
    if side.engines.known:
        engines = side.engines
        for name, count in (
            ("up", len(engines.up)),
            ("down", len(engines.down)),
            ("most", engines.most),
        ):
            yield Figure(
                name=f"engines_{name}{suffix}",
                value=count,
                unit=Unit.ENGINES,
                source=f'up{{arm="{arm}"}}' if name != "most" else f"{PROMPT_TOKENS} by engine",
            )
    asked = mean_queries(model=model, arm=arm, window_s=window_s)
    for name, signal, value in (
        ("ttft_mean", "ttft", side.means.ttft_ms),
        ("tpot_mean", "tpot", side.means.tpot_ms),
        ("e2el_mean", "e2el", side.means.e2el_ms),
        ("queued_mean", "queued", side.means.queued_ms),
        ("prefill_mean", "prefill", side.means.prefill_ms),
        ("server_mean", "ttft", side.means.server_ms),
    ):
        if value is not None:
            rest = ", less queue and prefill" if name == "server_mean" else ""
            yield Figure(
                name=f"{name}{suffix}",
                value=value,
                unit=Unit.MILLISECONDS,
                source=f"mean of {told(asked[signal])}{rest}",
            )


def filled(text: str, figures: Figures) -> Filled:
    """``text`` with each ``{name}`` replaced by its figure; Unread where there is no such."""
    used: dict[str, Figure] = {}

    def shown(match: re.Match[str]) -> str:
        figure = figures.get(match[1])
        if figure is None:
            raise Unread(f"there is no figure {{{match[1][:60]}}}")
        used[figure.name] = figure
        return str(figure)

    return Filled(_PLACE.sub(shown, text), tuple(used.values()))


def checked(text: str, figures: Figures, names: str, times: str) -> Filled:
    """The text with its figures, where each number in it is one of them; Unread names the first
    that is not.

    Numbers in a name, such as ``p95``, may be written where the word is in ``names``, and times of
    day and dates where they are in ``times``; nothing else that these say counts as read.
    ``figures`` that stand in the text in digits are used too.
    """
    text = unicodedata.normalize("NFKC", text)
    found = filled(text, figures)
    allowed = {token for token in _tokens(names) if token[0].isalpha()}
    allowed |= {token for token in _tokens(times) if _TIME.fullmatch(token)}
    used = {figure.name: figure for figure in found.used}
    bare = _PLACE.sub(" ", text)
    if spelt := _SPELT.search(bare):
        raise Unread(f"{spelt[0]!r} is a number in words; write figures by their names")
    for match in _NUMBER.finditer(bare):
        token = _around(bare, match)
        if token in allowed:
            continue
        figure = next(_meant(match, figures.values()), None)
        if match["word"] or figure is None:
            raise Unread(f"the number {token[:40]!r} was not read")
        used[figure.name] = figure
    return Filled(found.text, tuple(used.values()))


def _tokens(text: str) -> Iterator[str]:
    return (_trimmed(token) for token in _TOKEN.findall(text))


def _trimmed(token: str) -> str:
    return token.rstrip(".,:;-/").lower()


def _around(text: str, match: re.Match[str]) -> str:
    """The whole word that the number stands in, such as ``p95`` or ``14:00``."""
    for token in _TOKEN.finditer(text):
        if token.start() <= match.start("number") < token.end():
            return _trimmed(token[0])
    return match[0].lower()


def _meant(match: re.Match[str], figures: Iterable[Figure]) -> Iterator[Figure]:
    """The figures that the number can be, in the unit that stands behind it."""
    value = float(match["number"].replace(",", ""))
    unit = _UNITS.get((match["unit"] or "").lower(), "")
    for figure in figures:
        scale = _SCALES[unit].get(figure.unit) if unit else _bare_scale(figure.unit)
        if scale is not None and _is(value, match["number"], scale * figure.value):
            yield figure


def _bare_scale(unit: Unit) -> float | None:
    """Of times and shares a number without its unit says nothing."""
    return None if unit in (Unit.MILLISECONDS, Unit.SECONDS, Unit.SHARE) else 1.0


def _is(value: float, written: str, read: float) -> bool:
    """Whether the number as written is the one that was read, rounded."""
    decimals = len(written.partition(".")[2])
    return value == round(read, decimals) and abs(value - read) <= max(_CLOSE * abs(read), 1e-9)
