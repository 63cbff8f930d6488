"""Why an engine ended, read from its exit code and the last part of its log; a pure decision.

A failure is something to learn from, so each cause has a kind of its own, is named in one sentence
and proved by the lines that are kept. Log text is data: it is matched and quoted, never obeyed, and
what looks like a secret is masked before anybody sees it. Which of a log's lines may name the cause
is told by ``serving.engine_log``. Nothing here opens a file or looks at a process.
"""

from __future__ import annotations

import re
import signal
from typing import NamedTuple

from domain.study import Failure, FailureKind
from serving import engine_log

MAX_LINES = 40
MAX_CHARS = 4000
MAX_LINE_CHARS = 400
_KEPT_ERRORS = 8


class _Cause(NamedTuple):
    """Text that tells a cause. The kinds are for an engine that was never warm, and for one that
    served before; ``None`` where the text does not tell it then."""

    pattern: re.Pattern[str]
    at_start: FailureKind
    under_load: FailureKind | None
    sentence: str

    def kind(self, warm: bool) -> FailureKind | None:
        return self.under_load if warm else self.at_start


class _Found(NamedTuple):
    kind: FailureKind
    words: str
    error: str


# In order: the first that fits any of the errors is the cause.
_CAUSES = (
    _Cause(
        re.compile(
            r"[Oo]ut of memory|OutOfMemoryError|[Cc]an(?:not|'t) allocate memory"
            r"|[Nn]ot enough memory|^MemoryError|bad_alloc|CUBLAS_STATUS_ALLOC_FAILED"
            r"|No available memory for the cache blocks"
            r"|less than desired \w+ memory utilization"
            r"|larger than the (?:maximum number of tokens|available KV cache memory)"
            r"|KV cache is needed, which is larger than"
        ),
        FailureKind.OUT_OF_MEMORY,
        FailureKind.OUT_OF_MEMORY_UNDER_LOAD,
        "The engine ran out of memory",
    ),
    _Cause(
        re.compile(
            r"No space left on device|\[Errno 28\]|Error in memory profiling"
            r"|HfHubHTTPError|(?:ConnectionError|ConnectTimeout|ReadTimeout|MaxRetryError)\b"
            r"|Temporary failure in name resolution"
        ),
        FailureKind.HOST,
        FailureKind.HOST,
        "The machine or the network failed the engine",
    ),
    _Cause(
        re.compile(r"[Aa]ddress already in use|\[Errno 98\]"),
        FailureKind.PORT,
        FailureKind.PORT,
        "The engine could not open its port",
    ),
    _Cause(
        re.compile(
            r"is not a local folder and is not a valid model identifier|Repo id must be"
            r"|(?:find|locate|load) the requested files|couldn't connect to|offline mode"
            r"|(?:RepositoryNotFound|GatedRepo|LocalEntryNotFound|EntryNotFound|HFValidation)Error"
            r"|gated repo|[Ii]nvalid repository ID or local directory"
            r"|does not appear to have a file named config\.json|o config\.json|have a config\.json"
            r"|Unrecognized model in"
        ),
        FailureKind.MODEL_NOT_FOUND,
        FailureKind.MODEL_NOT_FOUND,
        "The engine did not find its model",
    ),
    _Cause(
        re.compile(
            r"no kernel image is available|'function' object is not subscriptable"
            r"|ModuleNotFoundError|ImportError|cannot open shared object file"
            r"|'_OpNamespace' '\w+' object has no attribute|Could not run '\S+' with arguments from"
            r"|\" not implemented for '|OutOfResources|ptxas fatal|PTXASError"
        ),
        FailureKind.MISSING_KERNEL,
        FailureKind.MISSING_KERNEL,
        "The engine has no code that does this here",
    ),
    _Cause(
        re.compile(r"vllm(?: \w+)?: error: "),
        FailureKind.UNSUPPORTED,
        FailureKind.UNSUPPORTED,
        "The engine refused its command line",
    ),
    _Cause(
        re.compile(r"[Nn]ot supported|[Uu]nsupported|NotImplementedError"),
        FailureKind.UNSUPPORTED,
        FailureKind.UNSUPPORTED,
        "The engine cannot do what its configuration asks for",
    ),
    _Cause(
        re.compile(r"(?:^|\.)(?:ValueError|ValidationError|AssertionError)\b"),
        FailureKind.UNSUPPORTED,
        None,
        "The engine cannot do what its configuration asks for",
    ),
    _Cause(
        re.compile(r"NCCL"),
        FailureKind.START,
        FailureKind.DIED,
        "The engine's GPUs could not be joined",
    ),
    _Cause(re.compile(""), FailureKind.START, FailureKind.DIED, "The engine failed"),
)

# What the system and a shell call the exit of a process that was killed.
_KILLED_CODES = (-signal.SIGKILL, 128 + signal.SIGKILL)
# The engine core's end without a word of its own, as the API server or the executor tells it.
_CORE_KILLED = re.compile(
    r"Failed core proc\(s\): \{[^}]*: -9\b|exit code: -9\b|exited unexpectedly"
    r"|died unexpectedly, shutting down client"
)
_KILLED = "The engine was killed (often the system's own answer to too little memory)"

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_SECRETS = (
    (re.compile(r"(--(?:api-key|hf-token|token)['\",\s=]+)[^\s'\",\]]+"), r"\1***"),
    (re.compile(r"(Bearer\s+)[^\s'\"]+", re.IGNORECASE), r"\1***"),
    (re.compile(r"\b(sk-[A-Za-z0-9_-]{6,}|hf_[A-Za-z0-9]{16,})"), "***"),
    (re.compile(r"(://)[^/\s:@]+:[^/\s@]+@"), r"\1***@"),
    (
        re.compile(
            r"((?:api[_-]?key|(?<!bos_)(?<!eos_)(?<!pad_)(?<!unk_)token|secret|password)"
            r"['\"]?\s*[:=][\s\[('\"]*)[^\s'\",\])]+",
            re.IGNORECASE,
        ),
        r"\1***",
    ),
)


def classify(*, exit_code: int | None, warm: bool, log: str) -> Failure:
    """Why an engine is gone.

    ``exit_code`` is as the system tells it, negative for a signal and ``None`` where it is not
    known (the engine was not a child of this process); it proves little, for a server whose engine
    core broke ends with 0. ``warm`` says whether it ever completed an inference. ``log`` is the
    last part of its log.
    """
    stage = "after it had served" if warm else "before it was ready"
    read = engine_log.read(cleaned(log))
    killed = exit_code in _KILLED_CODES
    # One that was killed did not end by an error; unless its core had, before that.
    if (not killed or read.end is not None) and (found := _found(read, warm)):
        kind, words, error = found
        sentence = f"{words} {stage}: {error[:MAX_LINE_CHARS]}"
    elif killed or _CORE_KILLED.search(read.end_text):
        kind = FailureKind.KILLED
        last = read.end_text[:MAX_LINE_CHARS]
        sentence = f"{_KILLED} {stage}" + (f": {last}" if last else ".")
    else:
        kind = FailureKind.DIED if warm else FailureKind.START
        sentence = f"{_ended(exit_code)} {stage}."
    return Failure(kind=kind, sentence=sentence, log_tail=_tail(read))


def decisive(log: str) -> str:
    """The last lines, and before them those that tell a cause; bounded, masked, printable.

    At most 40 lines and 4,000 characters.
    """
    return _tail(engine_log.read(cleaned(log)))


def cleaned(text: str) -> str:
    """``text`` without terminal colours, control characters and what looks like a secret."""
    text = _UNPRINTABLE.sub("", _ANSI.sub("", text.replace("\r\n", "\n").replace("\r", "\n")))
    for pattern, replacement in _SECRETS:
        text = pattern.sub(replacement, text)
    return text


def _found(read: engine_log.Log, warm: bool) -> _Found | None:
    """The first cause that fits an error of the log."""
    errors = [read.quoted(place) for place in read.errors]
    for cause in _CAUSES:
        if (kind := cause.kind(warm)) is None:
            continue
        for error in errors:
            if cause.pattern.search(error):
                return _Found(kind, cause.sentence, error)
    return None


def _tail(read: engine_log.Log) -> str:
    lines = {i: line.raw[:MAX_LINE_CHARS] for i, line in enumerate(read.lines) if line.raw.strip()}
    proof = [place for error in read.errors[:_KEPT_ERRORS] for place in read.span(error)]
    if read.end is not None:
        proof.append(read.end)
    last = reversed(lines)
    chosen: set[int] = set()
    room = MAX_CHARS
    for place in dict.fromkeys([place for place in (*proof, *last) if place in lines]):
        room -= len(lines[place]) + 1
        if room < 0 or len(chosen) == MAX_LINES:
            break
        chosen.add(place)
    return "\n".join(lines[place] for place in sorted(chosen))


def _ended(exit_code: int | None) -> str:
    if exit_code is None:
        return "The engine's process is gone, with no cause in its log,"
    if exit_code >= 0:
        return f"The engine ended with exit code {exit_code}"
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:
        name = f"signal {-exit_code}"
    return f"The engine was ended by {name}"
