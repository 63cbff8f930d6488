"""How a benchmark ends: its figures beside its limits, as the last line and as the exit code.

0 is that every target was met, 1 that one was not, 2 that nothing was measured. Limits themselves
are constants of the benchmark that they belong to.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

MET, MISSED, SKIPPED = 0, 1, 2


def held(found: Mapping[str, object], targets: Mapping[str, bool]) -> dict[str, object]:
    """The figures, each target by whether it was met, and whether all were."""
    return {**found, "targets": dict(targets), "targets_met": all(targets.values())}


def ended(found: Mapping[str, object]) -> int:
    """Print the figures as the last line; the exit code."""
    print(json.dumps(found), flush=True)
    return MET if found["targets_met"] else MISSED


def skipped(reason: str) -> int:
    """Say as the last line that nothing was measured, and why; the exit code."""
    print(json.dumps({"skipped": reason}), flush=True)
    return SKIPPED
