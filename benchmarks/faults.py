"""What clients notice of each fault, and how long it takes until all is as the store says.

``python -m benchmarks.faults`` plays the faults that the tests inject, on real gateways, real
controllers and a real Prometheus before simulated engines, under live traffic. The last line is one
JSON object; the exit code is 1 where a fault ended otherwise than it must, or an answer failed that
need not.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack

from rich.console import Console
from rich.table import Table

from benchmarks.targets import ended, held
from domain.errors import SerinusError
from tests.fakes.controller_forks import ControllerForks
from tests.fakes.fault_scenarios import INJECTED, OPENED, Injected, On
from tests.fakes.fault_stage import Stage, Told, Unavailable, played

FIGURES = ("client_errors", "requests", "recovery_s", "ended", "wrong_promotions")


class Stages:
    """Opens the stage that a fault wants, and closes the one before. Close it at the end."""

    def __init__(self) -> None:
        self._forks: ControllerForks | None = None
        self._on: On | None = None
        self._stage: Stage | None = None
        self._held = ExitStack()

    def play(self, injected: Injected) -> Told:
        """Unavailable where this machine lacks what the fault needs."""
        if self._forks is None:
            self._forks = ControllerForks()
        if self._stage is None or self._on is not injected.on:
            self.leave()
            self._stage = self._held.enter_context(OPENED[injected.on](self._forks))
            self._on = injected.on
        try:
            return played(self._stage, injected.play, injected.bad)
        except Unavailable:
            raise
        except BaseException:
            print(self._stage.serinus.said(), file=sys.stderr)
            # What a fault left behind is no stage for the next.
            self.leave()
            raise

    def leave(self) -> None:
        self._stage = None
        self._held.close()

    def close(self) -> None:
        self.leave()
        if self._forks is not None:
            self._forks.close()


def as_it_must(injected: Injected, told: Told) -> bool:
    """Whether it ended well, and no answer failed but of an engine that was broken."""
    spared = told.broken <= injected.breaks and told.client_errors <= told.requests / 4
    return told.ended in injected.ends and not told.wrong_promotions and spared


def all_told(faults: Sequence[Injected]) -> Iterator[tuple[Injected, Told | Exception]]:
    """Each fault with what became of it, or why it could not be played to its end."""
    stages = Stages()
    try:
        for injected in faults:
            try:
                yield injected, stages.play(injected)
            except (Unavailable, AssertionError, OSError, SerinusError) as error:
                yield injected, error
    finally:
        stages.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="a part of the names of those to play")
    parser.add_argument("--on", choices=[each.value for each in On], help="one stage alone")
    arguments = parser.parse_args()
    chosen = [
        each
        for each in INJECTED
        if arguments.only in each.name and arguments.on in (None, each.on.value)
    ]
    table = Table(*("fault", *FIGURES))
    found: dict[str, dict[str, object] | str] = {}
    targets: dict[str, bool] = {}
    for injected, told in all_told(chosen):
        if isinstance(told, Unavailable):
            found[injected.name] = f"skipped: {told}"
            continue
        if isinstance(told, Exception):
            found[injected.name] = f"failed: {told}"[:200]
            print(injected.name, found[injected.name], file=sys.stderr, flush=True)
            targets[injected.name] = False
            continue
        figures = {name: getattr(told, name) for name in FIGURES}
        print(injected.name, figures, file=sys.stderr, flush=True)
        table.add_row(injected.name, *map(str, figures.values()))
        found[injected.name] = figures
        targets[injected.name] = as_it_must(injected, told)
    Console(width=120).print(table)
    sys.exit(ended(held({"faults": found}, targets)))


if __name__ == "__main__":
    main()
