"""The log of a vLLM engine read as text: who wrote a line, how loud, and which error ended it all.

vLLM logs one failure several times: in the process in which it happened (a worker or the engine
core), and then in each that waited for that one, up to the API server, whose own traceback comes
last and says nothing. Healthy engines log tracebacks too, of requests that they refused. What is
here tells the one error from the others and knows nothing of what its words mean; that is
``serving.failures``' business. Pure: log text is data, matched and quoted and never obeyed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

_API_SERVER = "APIServer"

_LINE = re.compile(
    r"(?:\((?P<process>[A-Za-z]\w*)(?: [^)]*)?\) ?)*"
    r"(?:(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL):? +"
    r"(?:\d\d-\d\d \d\d:\d\d:\d\d )?(?:\[[\w./-]+(?::\d+)?\] ?)?)?"
    r"(?:\[rank\d+\]: ?)?"
    r"(?P<text>.*)"
)
_ERROR = re.compile(
    r"(?:\w+\.)*\w*(?:Error|Exception|OutOfResources)(?:: |$)"
    r"|terminate called after throwing an instance of |Fatal Python error: "
    r"|\S*\bvllm(?: \w+)?: error: "
)
# Its text goes on in the next line.
_CONTINUED = re.compile(r"validation errors? for \S+$|instance of '\S+'$")
# Said by a process of another one's error.
_SECOND_HAND = re.compile(
    r"EngineDeadError|Engine core initialization failed|(?:[Ss]ee|check the) (?:the )?stack ?trace"
    r"|[Ss]ee root cause above|RuntimeError: cancelled$|CancelledError|died unexpectedly"
)
# Beyond it the engine is gone: no engine that serves on has logged any of these.
_END = re.compile(
    r"EngineCore (?:failed to start|encountered a fatal error|hit an exception)"
    r"|Worker(?:Proc)? failed to start|proc \S+ died unexpectedly"
    r"|Engine core initialization failed|engine core exited unexpectedly"
)
_ANSWERED = re.compile(r'HTTP/\d\.\d" \d{3}')


class Line(NamedTuple):
    """``process`` and ``level`` are empty where vLLM's prefix is missing; ``text`` is the rest."""

    raw: str
    process: str
    level: str
    text: str

    @property
    def says_an_error(self) -> bool:
        return self.level in ("", "ERROR", "CRITICAL") and _ERROR.match(self.text) is not None

    @property
    def of_engine(self) -> bool:
        """Whether the engine core or a worker wrote it, and not the API server before them."""
        return self.process not in ("", _API_SERVER) or (not self.process and self.level == "ERROR")


class Log(NamedTuple):
    """``errors`` are the places of the lines that may name the cause, the likeliest first.

    ``end`` is the place of the line with which the engine gave up; ``None`` where there is none.
    """

    lines: tuple[Line, ...]
    errors: tuple[int, ...]
    end: int | None

    @property
    def end_text(self) -> str:
        return "" if self.end is None else self.lines[self.end].text

    def span(self, place: int) -> range:
        """The places of the one or two lines of the error that begins at ``place``."""
        continued = _CONTINUED.search(self.lines[place].text) is not None
        return range(place, min(place + 1 + continued, len(self.lines)))

    def quoted(self, place: int) -> str:
        """The error that begins at ``place``, in one line."""
        return ": ".join(self.lines[i].text.strip() for i in self.span(place))


def read(text: str) -> Log:
    """Read cleaned log text; any text is a log."""
    lines = tuple(_line(raw) for raw in text.splitlines())
    end = next((i for i, line in enumerate(lines) if _ends(line)), None)
    errors = [
        i
        for i, line in enumerate(lines)
        if line.says_an_error and not _SECOND_HAND.search(line.text)
    ]
    return Log(lines, _likeliest(lines, errors, len(lines) if end is None else end), end)


def _line(raw: str) -> Line:
    found = _LINE.fullmatch(raw)
    if found is None:
        return Line(raw, "", "", raw)
    return Line(raw, found["process"] or "", found["level"] or "", found["text"])


def _ends(line: Line) -> bool:
    return line.level not in ("DEBUG", "INFO") and _END.search(line.text) is not None


def _likeliest(lines: Sequence[Line], errors: Sequence[int], end: int) -> tuple[int, ...]:
    """The engine's own errors from ``end`` on; where it only passes on another process's, the last
    before; else bare ones, the last before ``end`` first: the API server's own.

    An error with an answered request between it and ``end`` was that request's, unless the engine
    itself gave up.
    """
    answered = max((i for i in range(end) if _ANSWERED.search(lines[i].text)), default=-1)
    gave_up = end < len(lines) and lines[end].of_engine
    ours = [i for i in errors if lines[i].of_engine]
    if after := [i for i in ours if i >= end]:
        return tuple(after)
    if end < len(lines) and (before := [i for i in ours if i > answered or gave_up]):
        return (before[-1],)
    bare = [i for i in errors if not lines[i].level and i > answered]
    return (*reversed([i for i in bare if i < end]), *[i for i in bare if i > end])
