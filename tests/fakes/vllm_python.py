"""A Python of vLLM that speaks the protocol of ``serving/vllm_side.py`` without vLLM.

It is a script, so a test gives it to what would start the real one. Each start and each question is
noted in a file beside it; how it behaves is one of ``Manner``.
"""

import json
import sys
from enum import Enum
from pathlib import Path


class Manner(Enum):
    """What it does with a question; the code sees ``request`` and gives ``reply``, a text."""

    RESOLVE = "reply = json.dumps({'resolved': TOLD})"
    TELL = "reply = json.dumps(TOLD)"
    UNKNOWN = "reply = json.dumps({'unknown': 'the hub is away'})"
    DIE_EVERY_OTHER = (
        "asked = sum(json.loads(line)[0] == 'request' for line in open(NOTES))\n"
        "    if asked % 2 == 0: sys.exit('out of memory')\n"
        "    reply = json.dumps({'resolved': TOLD})"
    )
    REFUSE = "reply = json.dumps({'refused': ' '.join(request['argv'])})"
    DIE = "sys.exit('cannot import vllm')"
    DIE_ONCE = (
        "if starts() == 1: sys.exit('cannot import vllm')\n"
        "    reply = json.dumps({'resolved': TOLD})"
    )
    GARBAGE = "reply = 'Traceback (most recent call last):'"
    OTHER_JSON = "reply = json.dumps(['what?'])"
    SILENT = "time.sleep(600)"
    SILENT_WITH_A_CHILD = (
        "child = subprocess.Popen(['sleep', '600'])\n"
        "    note('child', child.pid)\n"
        "    time.sleep(600)"
    )


SCRIPT = """#!{python}
import json, os, subprocess, sys, time
NOTES = {notes!r}
TOLD = json.loads({told!r})
def note(what, value):
    with open(NOTES, 'a') as notes:
        print(json.dumps([what, value]), file=notes)
def starts():
    return sum(json.loads(line)[0] == 'start' for line in open(NOTES).read().splitlines())
note('start', [sys.argv[2], os.getpid(), sorted(os.environ), sorted(os.listdir('/proc/self/fd'))])
for line in sys.stdin if sys.argv[2] == 'resolve' else ['{{}}']:
    request = json.loads(line)
    note('request', request)
    {code}
    print(reply, flush=True)
"""


class VllmPython:
    """The script and what it noted."""

    def __init__(self, folder: Path, manner: Manner, **told: object) -> None:
        self._notes = folder / "notes"
        self._notes.touch()
        self.path = folder / "python"
        self.path.write_text(
            SCRIPT.format(
                python=sys.executable,
                notes=str(self._notes),
                told=json.dumps(told.get("told", {})),
                code=manner.value,
            ),
            encoding="utf-8",
        )
        self.path.chmod(0o700)

    def noted(self, what: str) -> list:
        """Every value noted under a name, in order."""
        lines = self._notes.read_text(encoding="utf-8").splitlines()
        return [value for name, value in map(json.loads, lines) if name == what]
