"""How soon a candidate that fails under live traffic has a weight of 0.

``python -m benchmarks.detection`` runs fleets of a real HAProxy, a real controller with the shipped
``cycle_s`` and ``scrape_interval_s``, simulated engines and coding agents. A rollout bakes at its
first step when the candidate's process is killed by SIGKILL, answers 500 to all, or hangs in the
middle of its streams while it calls itself healthy. The time is from then until HAProxy itself
says that the weight is 0. An engine that hangs cannot be told from one at work on a long prompt
before ``stuck_s`` is over, so its time is told beyond that, with a ``stuck_s`` of two scrape
intervals. The last line is one JSON object; the exit code is 1 where a time was longer than two
scrape intervals and a second.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

from agent.demo.traffic import Agents
from agent.settings import Settings
from agent.store import UnitOfWork
from benchmarks.targets import ended, held
from domain.engine import EngineConfig
from tests.fakes.controller_forks import ControllerForks
from tests.fakes.running_serinus import RunningSerinus, until

RUNS, FLEETS = 20, 3
CYCLE_S = float(Settings.model_fields["cycle_s"].default)
SCRAPE_S = float(Settings.model_fields["scrape_interval_s"].default)
MOST_S = 2 * SCRAPE_S + 1.0
STUCK_S = 2 * SCRAPE_S
SEEN_S = 4 * SCRAPE_S
"""How long the candidate bakes before it fails, so that there is something to judge it by."""
AGENTS = Agents(
    streams=16, think_s=0.3, system_tokens=64, message_tokens=40.0, osl=24.0, most_rps=30.0
)
CANDIDATE = EngineConfig.of({"async_scheduling": True})


def _kill(serinus: RunningSerinus) -> None:
    engine = serinus.engine("canary")
    assert engine is not None
    engine.kill()


FAULTS: Mapping[str, Callable[[RunningSerinus], None]] = {
    "killed": _kill,
    "answers 500": lambda serinus: serinus.break_engine("canary", "http_500"),
    "hung": lambda serinus: serinus.break_engine("canary", "hang_mid_stream"),
}


def baked(uow: UnitOfWork) -> bool:
    since_s = uow.rollouts.latest(1)[0].baking_since_s
    return since_s is not None and time.time() - since_s >= SEEN_S


def detected(serinus: RunningSerinus, fault: str, name: str, draw: random.Random) -> float:
    """Seconds from the fault to a weight of 0; the rollout is over when this returns.

    The fault comes at any time of a cycle.
    """
    serinus.begin_rollout(CANDIDATE, name=name, bake_s=600.0)
    serinus.until(baked, "the first step bakes", 90)
    time.sleep(draw.uniform(0.0, CYCLE_S))
    assert serinus.split().weight > 0, "the candidate has a share of the traffic"
    began_s = time.monotonic()
    FAULTS[fault](serinus)
    until(lambda: serinus.split().weight == 0, "the weight is 0", 120, serinus.said)
    took_s = time.monotonic() - began_s
    serinus.until(lambda uow: uow.rollouts.latest(1)[0].phase.ended, "the rollout ends", 90)
    return took_s


def fleet(forks: ControllerForks, fault: str, runs: int) -> list[float]:
    """The times of so many runs, one after the other, in one fleet."""
    with tempfile.TemporaryDirectory(prefix="serinus-detection-") as folder:
        serinus = RunningSerinus(
            Path(folder),
            forks=forks,
            cycle_s=CYCLE_S,
            scrape_interval_s=SCRAPE_S,
            window_s=10 * SCRAPE_S,
            autonomy="approve",
            min_requests=8,
            stuck_s=STUCK_S,
        )
        try:
            serinus.up()
            serinus.send_traffic(AGENTS, 60.0 * runs + 120.0)
            draw = random.Random(fault)
            return [detected(serinus, fault, f"r{number}", draw) for number in range(runs)]
        finally:
            serinus.close()


def told(times: list[float], beyond_s: float) -> dict[str, Any]:
    beyond = [took_s - beyond_s for took_s in times]
    return {
        "n": len(times),
        "median_s": round(median(beyond), 2),
        "most_s": round(max(beyond), 2),
        "beyond_s": beyond_s,
    }


def measured(runs: int) -> dict[str, Any]:
    forks = ControllerForks()
    try:
        with ThreadPoolExecutor(FLEETS) as workers:
            times = list(workers.map(lambda fault: fleet(forks, fault, runs), FAULTS))
    finally:
        forks.close()
    found = {
        fault: told(took, STUCK_S if fault == "hung" else 0.0)
        for fault, took in zip(FAULTS, times, strict=True)
    }
    targets = {
        f"{fault} within {MOST_S:g} s": one["most_s"] <= MOST_S for fault, one in found.items()
    }
    return held({"cycle_s": CYCLE_S, "scrape_interval_s": SCRAPE_S, "faults": found}, targets)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=RUNS)
    arguments = parser.parse_args()
    sys.exit(ended(measured(arguments.runs)))


if __name__ == "__main__":
    main()
