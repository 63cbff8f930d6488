"""Controllers that are killed at random points of rollouts, under live traffic: what is lost.

``python -m benchmarks.kills`` runs fleets of a real HAProxy, a real controller, simulated engines
and coding agents. Rollouts follow one another; half of the candidates are good, the others do not
start, turn slow at a step or are sent back by a person. A controller is killed by SIGKILL, some at
a time drawn over the whole of a rollout and some at an effect drawn from all that it has on files,
processes and the gateway, just before it or within some hundredths of a second after it. Then the
next one comes, as soon as the lease has run out. The last line is one JSON object; the exit code is
1 where a rollout did not end, the split is not as stored, a step was done twice, anything was left
behind, or a request failed.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from pathlib import Path
from typing import Any

from agent.demo.traffic import Agents
from benchmarks.targets import ended, held
from domain.approval import CommandKind
from domain.engine import EngineConfig
from domain.rollout import Phase, Rollout
from serving import flags
from tests.fakes.controller_forks import ControllerForks, Death
from tests.fakes.done_twice import done_twice
from tests.fakes.running_serinus import LEASE_S, RunningSerinus, until

KILLS, FLEETS = 200, 4
ROLLOUT_S = 14.0
"""About what a rollout takes that nobody disturbs; times of kills are drawn from it."""
EFFECTS = 90
"""About as many effects as such a rollout has; those of kills are drawn from them."""
AFTER_S = 0.03
MOST_KILLS = 5
ROLLOUTS_A_FLEET = 6
ENDS_S = 300.0
LONGEST_S = 900.0
AGENTS = Agents(
    streams=8, think_s=0.4, system_tokens=64, message_tokens=40.0, osl=16.0, most_rps=16.0
)
GOOD = (EngineConfig(), EngineConfig.of({"async_scheduling": True}))
NOT_STARTING = EngineConfig.of({"max_num_seqs": 64, "max_num_batched_tokens": 32})
SETTINGS = {
    "slo": "ttft<=500ms, tpot<=60ms, share>=90%",
    "autonomy": "approve",
    "min_requests": 8,
    "scrape_interval_s": 1.0,
}
NEVER = (
    "wrongly_promoted",
    "wrong_split",
    "wrong_config",
    "double_steps",
    "orphans",
    "unfinished_actions",
    "unended",
    "failed_requests",
)


class Kind(Enum):
    """What becomes of a rollout by itself."""

    GOOD = "good"
    ORDERED_BACK = "ordered back"
    SLOW = "slow"
    NOT_STARTING = "not starting"


KINDS = (Kind.GOOD, Kind.ORDERED_BACK, Kind.GOOD, Kind.SLOW, Kind.GOOD, Kind.NOT_STARTING)


class Count:
    """What was seen so far, and how many kills are still wanted. Shared between threads."""

    def __init__(self, kills: int) -> None:
        self._lock = threading.Lock()
        self._seen: Counter[str] = Counter()
        self._kills = kills

    def add(self, name: str, number: int = 1) -> None:
        with self._lock:
            self._seen[name] += number

    def __getitem__(self, name: str) -> int:
        with self._lock:
            return self._seen[name]

    @property
    def over(self) -> bool:
        return self["kills"] >= self._kills


class OneRollout:
    """One rollout in a fleet that serves, without a controller at its begin and at its end."""

    def __init__(
        self, serinus: RunningSerinus, count: Count, draw: random.Random, name: str, kind: Kind
    ) -> None:
        self._serinus = serinus
        self._count = count
        self._draw = draw
        self._name = name
        self._kind = kind
        self._began_s = time.time()
        self._kills: list[float] = []
        self._disturb_s = self._began_s + draw.uniform(0.0, ROLLOUT_S)
        self._disturbed = kind in (Kind.GOOD, Kind.NOT_STARTING)

    def run(self, active: EngineConfig) -> EngineConfig:
        """What production should run after it."""
        other = next(config for config in GOOD if config != active)
        candidate = NOT_STARTING if self._kind is Kind.NOT_STARTING else other
        self._serinus.begin_rollout(candidate, active, name=self._name)
        left = self._draw.randint(1, MOST_KILLS)
        for number in range(left):
            if self._count.over or not self._killed(first=number == 0):
                break
        if self._serinus.controllers[-1].poll() is not None:
            self._serinus.up()
        self._until(lambda: self._rollout().phase.ended)
        self._serinus.end()
        rollout = self._rollout()
        promoted = rollout.phase is Phase.PROMOTED
        self._count.add("rollouts")
        self._count.add("promoted" if promoted else "rolled_back")
        self._count.add("wrongly_promoted", promoted and self._kind is not Kind.GOOD)
        stays = candidate if promoted else active
        self._check(stays)
        return stays

    def _killed(self, first: bool) -> bool:
        """Run a controller until it is killed; whether that came before the rollout's end."""
        timed = self._draw.random() < 0.5
        acts_s = time.time() + (0.0 if first else LEASE_S - 1.0)
        dies_s = acts_s + self._draw.uniform(0.0, ROLLOUT_S)
        after_s = self._draw.choice((0.0, self._draw.uniform(0.0, AFTER_S)))
        effect = Death(effect=self._draw.randrange(EFFECTS), after_s=after_s)
        controller = self._serinus.up(death=None if timed else effect)

        def over() -> bool:
            due = timed and time.time() >= dies_s
            return due or controller.poll() is not None or self._rollout().phase.ended

        self._until(over)
        if self._rollout().phase.ended and controller.poll() is None:
            return False
        if controller.poll() is None:
            self._serinus.kill(controller)
        self._kills.append(time.time())
        self._count.add("kills")
        self._count.add("kills_at_an_effect", not timed)
        return True

    def _until(self, true: Callable[[], bool]) -> None:
        end_s = time.monotonic() + ENDS_S
        while not true():
            if time.monotonic() > end_s:
                raise TimeoutError(f"{self._name} ({self._kind.value}) does not end")
            if not self._disturbed:
                self._disturbed = self._disturb()
            time.sleep(0.05)

    def _disturb(self) -> bool:
        """Do what sends the rollout back, once it is time for it."""
        if self._kind is Kind.ORDERED_BACK:
            if time.time() < self._disturb_s:
                return False
            self._serinus.order(CommandKind.ROLLOUT_ROLLBACK)
            return True
        if self._rollout().baking_since_s is None:
            return False
        self._serinus.break_engine("canary", "slow")
        return True

    def _rollout(self) -> Rollout:
        with self._serinus.store.view() as uow:
            return uow.rollouts.get(self._name)

    def _check(self, stays: EngineConfig) -> None:
        """Hold what is there against what the store says."""
        split = self._serinus.split()
        admitted = {slot.slot for slot in split.slots if slot.admitted}
        wrong = (split.weight, self._serinus.weight(), admitted) != (0, 0, {"production-0"})
        self._count.add("wrong_split", wrong)
        events = [event for event in self._serinus.events() if event.at_s >= self._began_s]
        twice = done_twice(events, self._kills)
        self._count.add("double_steps", len(twice))
        expected, _ = flags.command_line(stays)
        engines = self._serinus.engines()
        serving = self._serinus.engine("production")
        ours = serving is not None and set(expected) <= set(serving.cmdline())
        left = [one for one in self._serinus.processes() if one not in engines]
        # Beside the engine there are the gateway and the traffic.
        orphans = len(engines) - 1 + len(left) - 2
        self._count.add("orphans", orphans)
        self._count.add("wrong_config", not ours)
        with self._serinus.store.view() as uow:
            unfinished = len(uow.actions.unfinished())
        self._count.add("unfinished_actions", unfinished)
        if wrong or twice or orphans or not ours or unfinished:
            found = [" ".join(one.cmdline()) for one in self._serinus.processes()]
            print(f"{self._name} ({self._kind.value}): {split}, {twice}, {unfinished} unfinished")
            print("\n".join([*found, *(event.sentence for event in events)]), file=sys.stderr)


def fleet(forks: ControllerForks, count: Count, draw: random.Random, kinds: list[Kind]) -> None:
    """Rollouts of one fleet, one after the other, until enough were killed."""
    with tempfile.TemporaryDirectory(prefix="serinus-kills-") as folder:
        serinus = RunningSerinus(Path(folder), forks=forks, **SETTINGS)
        serves = False
        try:
            serinus.up()
            serinus.send_traffic(AGENTS, LONGEST_S)
            until(lambda: serinus.sent().records, "there is traffic", ENDS_S, serinus.said)
            serinus.end()
            serves, active = True, GOOD[0]
            for number, kind in enumerate(kinds):
                if count.over:
                    break
                active = OneRollout(serinus, count, draw, f"r{number}", kind).run(active)
            traffic = serinus.end_traffic()
            failed = [record for record in traffic.records if record.failed]
            count.add("requests", len(traffic.records))
            count.add("failed_requests", len(failed))
            for record in failed:
                print(traffic.started_s, record, file=sys.stderr)
        except (AssertionError, OSError, TimeoutError, subprocess.SubprocessError):
            # Ports of a fleet that did not come to serve may have been taken by then.
            count.add("unended" if serves else "not_begun")
            traceback.print_exc()
            print(serinus.said(), file=sys.stderr)
        finally:
            serinus.close()


def killed(kills: int, fleets: int, seed: int) -> dict[str, Any]:
    """The figures of so many kills, in so many fleets beside each other."""
    count = Count(kills)
    forks = ControllerForks()

    def work(number: int) -> None:
        draw = random.Random(seed * 1000 + number)
        turn = number
        while not count.over and count["unended"] + count["not_begun"] < fleets:
            kinds = [KINDS[(turn + n) % len(KINDS)] for n in range(ROLLOUTS_A_FLEET)]
            fleet(forks, count, draw, kinds)
            turn += 1

    try:
        with ThreadPoolExecutor(fleets) as workers:
            list(workers.map(work, range(fleets)))
    finally:
        forks.close()
    named = ("kills", "kills_at_an_effect", "rollouts", "promoted", "rolled_back")
    found = {name: count[name] for name in (*named, *NEVER, "requests")}
    return held(found, {f"no {name.replace('_', ' ')}": not count[name] for name in NEVER})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=KILLS)
    parser.add_argument("--fleets", type=int, default=FLEETS)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    sys.exit(ended(killed(arguments.kills, arguments.fleets, arguments.seed)))


if __name__ == "__main__":
    main()
