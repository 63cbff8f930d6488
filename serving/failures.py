"""Why an engine ended, read from its exit code and the last part of its log; a pure decision.

A failed start is something to learn from, so the cause is named in one sentence and the lines that
prove it are kept. Log text is data: it is matched and quoted, never obeyed, and what looks like a
secret is masked before anybody sees it. Nothing here opens a file or looks at a process.
"""

from __future__ import annotations

import re
import signal
from typing import NamedTuple

from domain.study import Failure, FailureKind

MAX_LINES = 40
MAX_CHARS = 4000
MAX_LINE_CHARS = 400
_KEPT_CAUSES = 8


class _Cause(NamedTuple):
    """Text that tells a cause. ``kind`` is ``None`` where it depends on whether the engine served:
    START before its first answer, DIED after it."""

    pattern: re.Pattern[str]
    kind: FailureKind | None
    sentence: str


# In order: the first that matches anywhere in the log is the cause.
_CAUSES = (
    _Cause(
        re.compile(
            r"out of memory|OutOfMemoryError|Cannot allocate memory|^MemoryError"
            r"|No available memory for the cache blocks"
            r"|less than desired GPU memory utilization"
            r"|larger than the (maximum number of tokens|available KV cache memory)"
            r"|KV cache is needed, which is larger than",
            re.MULTILINE,
        ),
        FailureKind.OUT_OF_MEMORY,
        "The engine ran out of memory",
    ),
    _Cause(
        re.compile(r"address already in use|\[Errno 98\]|EADDRINUSE", re.IGNORECASE),
        None,
        "The engine could not open its port",
    ),
    _Cause(
        re.compile(r"error: (unrecognized arguments|argument |the following arguments)"),
        None,
        "The engine refused its command line",
    ),
    _Cause(
        re.compile(r"ModuleNotFoundError|ImportError|cannot open shared object file"),
        None,
        "The engine's installation is incomplete",
    ),
    _Cause(
        re.compile(r"ValidationError|NotImplementedError|ValueError: |AssertionError|KeyError: "),
        None,
        "The engine refused its configuration",
    ),
    _Cause(
        re.compile(r"EngineDeadError|Engine core initialization failed|^\S*(?:Error|Exception): ",
                   re.MULTILINE),
        None,
        "The engine failed by itself",
    ),
)  # fmt: skip

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_SECRETS = (
    (re.compile(r"(--(?:api-key|hf-token|token)['\",\s=]+)[^\s'\",\]]+"), r"\1***"),
    (re.compile(r"(Bearer\s+)[^\s'\"]+", re.IGNORECASE), r"\1***"),
    (re.compile(r"\b(sk-|hf_)[A-Za-z0-9_-]{6,}"), r"\1***"),
    (re.compile(r"(://)[^/\s:@]+:[^/\s@]+@"), r"\1***@"),
    (
        re.compile(
            r"((?:api[_-]?key|token|secret|password)['\"]?\s*[:=][\s\[('\"]*)[^\s'\",\])]+",
            re.IGNORECASE,
        ),
        r"\1***",
    ),
)


def classify(*, exit_code: int | None, warm: bool, log: str) -> Failure:
    """Why an engine is gone.

    ``exit_code`` is as the system tells it, negative for a signal and ``None`` where it is not
    known (the engine was not a child of this process). ``warm`` says whether it ever completed an
    inference. ``log`` is the last part of its log.
    """
    by_stage = FailureKind.DIED if warm else FailureKind.START
    stage = "after it had served" if warm else "before it was ready"
    text = cleaned(log)
    for cause in _CAUSES:
        if matches := list(cause.pattern.finditer(text)):
            line = _line_at(text, matches[-1].start())
            return Failure(
                kind=cause.kind or by_stage,
                sentence=f"{cause.sentence} {stage}: {line}",
                log_tail=decisive(log),
            )
    return Failure(kind=by_stage, sentence=f"{_ended(exit_code)} {stage}.", log_tail=decisive(log))


def decisive(log: str) -> str:
    """The last lines, and before them those that tell a cause; bounded, masked, printable.

    At most 40 lines and 4,000 characters.
    """
    lines = [line[:MAX_LINE_CHARS] for line in cleaned(log).splitlines() if line.strip()]
    causes = [i for i, line in enumerate(lines) if any(c.pattern.search(line) for c in _CAUSES)]
    kept_causes = causes[-_KEPT_CAUSES:]
    plain = [i for i in range(len(lines)) if i not in kept_causes]
    chosen: set[int] = set()
    room = MAX_CHARS
    for i in (*reversed(kept_causes), *reversed(plain)):
        room -= len(lines[i]) + 1
        if room < 0 or len(chosen) == MAX_LINES:
            break
        chosen.add(i)
    return "\n".join(lines[i] for i in sorted(chosen))


def cleaned(text: str) -> str:
    """``text`` without terminal colours, control characters and what looks like a secret."""
    text = _UNPRINTABLE.sub("", _ANSI.sub("", text.replace("\r\n", "\n").replace("\r", "\n")))
    for pattern, replacement in _SECRETS:
        text = pattern.sub(replacement, text)
    return text


def detail(failure: Failure) -> str:
    """A replica's ``detail`` for this failure: the kind's value, a colon, the sentence."""
    return f"{failure.kind.value}: {failure.sentence}"


def _line_at(text: str, position: int) -> str:
    start = text.rfind("\n", 0, position) + 1
    end = text.find("\n", position)
    return text[start : end if end >= 0 else len(text)].strip()[:MAX_LINE_CHARS]


def _ended(exit_code: int | None) -> str:
    if exit_code is None:
        return "The engine's process is gone, with no cause in its log,"
    if exit_code >= 0:
        return f"The engine ended with exit code {exit_code}"
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:
        name = f"signal {-exit_code}"
    hint = " (often the system's own answer to too little memory)" if name == "SIGKILL" else ""
    return f"The engine was ended by {name}{hint}"
