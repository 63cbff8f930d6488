"""How often the judge of fresh runs is wrong, and how small a gain it finds, on simulated runs.

``python -m benchmarks.decisions`` makes pairs of a candidate and a baseline whose truth is known:
alike, 5 % better, better but with a tail that is 10 % worse, and alike on a host that drifts or
with engines that age. Two starts of one engine differ by a noise of 2 to 20 %, as was seen on real
engines. Every pair has its fresh runs in the product's own order and is judged after each round by
the product's own judge, until that is sure or the rounds are used up. All of it is simulated; no
engine is started. The exit code is 1 where a target was missed.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any, NamedTuple

import numpy as np

from agent.graph import CONFIRMATIONS
from agent.settings import Settings
from benchmarks.targets import ended
from canary.intervals import proportion_interval
from canary.judge import judge, may_yet_pass
from canary.rounds import ROUND, candidates_turn, share_of_error
from domain.study import Block, Measurement, Objective
from domain.verdict import Outcome, Verdict

NOISES = (0.02, 0.05, 0.1, 0.2)
REQUESTS = 400
BLOCKS = 20
MOST_FALSE = 0.01
LEAST_FOUND = 0.95
SEED = 11


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """What is true of the candidate: its goodput and its TTFT tail, as shares of the baseline's;
    and of the host: how much slower a run is than the one before it, and than a fresh engine."""

    goodput: float = 1.0
    tail: float = 1.0
    drift: float = 0.0
    step: float = 0.0


TRUTHS = {
    "alike": Truth(),
    "alike, the host slows by 3 % a run": Truth(drift=-0.03),
    "alike, the host slows by 20 % half-way": Truth(step=-0.2),
    "5 % more goodput": Truth(goodput=1.05),
    "30 % more goodput": Truth(goodput=1.3),
    "a tail 10 % worse": Truth(tail=1.1),
    "30 % more goodput, a tail 10 % worse": Truth(goodput=1.3, tail=1.1),
}


class Decided(NamedTuple):
    verdict: Verdict
    runs: int


def run(
    truth: Truth, noise: float, turn: int, turns: int, generator: np.random.Generator
) -> Measurement:
    """One fresh run, simulated; ``turn`` of ``turns`` is its place in the order."""
    ours = candidates_turn(turn)
    host = (1 + truth.drift) ** turn * (1 + truth.step * (turn >= turns / 2))
    speed = host * np.exp(noise * generator.normal()) * (truth.goodput if ours else 1.0)
    # A queue's tail suffers more from a slow start than its rate does.
    slow = np.exp(noise * generator.normal()) / host * (truth.tail if ours else 1.0)
    tokens = 100.0 * speed * REQUESTS / BLOCKS * (1 + 0.05 * generator.normal(size=BLOCKS))
    each = REQUESTS // BLOCKS
    return Measurement(
        level="simulated",
        seed=turn,
        requests=REQUESTS,
        failed=0,
        blocks=tuple(
            Block(seconds=6.0, requests=each, good=each, failed=0, output_tokens=float(made))
            for made in tokens
        ),
        ttft_ms=tuple(400.0 * slow * generator.gamma(8, 1 / 8, size=REQUESTS)),
        tpot_ms=tuple(20.0 / speed * generator.gamma(50, 1 / 50, size=REQUESTS)),
    )


def decided(truth: Truth, noise: float, rounds: int, generator: np.random.Generator) -> Decided:
    """One pair, judged after each round until the judge is sure or the rounds are used up."""
    arms: dict[bool, list[Measurement]] = {True: [], False: []}
    for turn in range(rounds * ROUND):
        arms[candidates_turn(turn)].append(run(truth, noise, turn, rounds * ROUND, generator))
        if (turn + 1) % ROUND:
            continue
        share = share_of_error((turn + 1) // ROUND, rounds) / CONFIRMATIONS
        verdict = judge(arms[True], arms[False], Objective.GOODPUT, share=share)
        if not may_yet_pass(verdict, Objective.GOODPUT):
            break
    return Decided(verdict, turn + 1)


def proportion(hits: int, n: int) -> dict[str, Any]:
    """A share with its 95 % interval."""
    interval = proportion_interval(hits, n, level=0.95)
    return {
        "share": round(hits / n, 4),
        "interval_95": [round(interval.low, 4), round(interval.high, 4)],
    }


def tried(truth: Truth, noise: float, rounds: int, pairs: int) -> dict[str, Any]:
    generator = np.random.default_rng([SEED, round(1000 * noise), rounds])
    found = [decided(truth, noise, rounds, generator) for _ in range(pairs)]
    outcomes = Counter(each.verdict.outcome for each in found)
    return {
        "noise": noise,
        "rounds": rounds,
        "pairs": pairs,
        "pass": proportion(outcomes[Outcome.PASS], pairs),
        "fail": proportion(outcomes[Outcome.FAIL], pairs),
        "runs_mean": round(mean(each.runs for each in found), 1),
    }


class Target(NamedTuple):
    """What is wanted of one cell: ``met`` looks at the pairs' shares."""

    words: str
    met: Callable[[dict[str, Any]], bool]


def _never_different(cell: dict[str, Any]) -> bool:
    return bool(cell["pass"]["share"] + cell["fail"]["share"] <= MOST_FALSE)


TARGETS = {
    "alike": Target("declared different in at most 1 %", _never_different),
    "alike, the host slows by 3 % a run": Target("as alike", _never_different),
    "alike, the host slows by 20 % half-way": Target("as alike", _never_different),
    "5 % more goodput": Target(
        "passed in at least 95 %", lambda cell: bool(cell["pass"]["share"] >= LEAST_FOUND)
    ),
    "a tail 10 % worse": Target(
        "not passed in at least 95 %", lambda cell: bool(cell["pass"]["share"] <= 1 - LEAST_FOUND)
    ),
    "30 % more goodput, a tail 10 % worse": Target(
        "not passed in at least 95 %", lambda cell: bool(cell["pass"]["share"] <= 1 - LEAST_FOUND)
    ),
}


def decisions(pairs: int, budgets: Sequence[int]) -> dict[str, Any]:
    """Every truth at every noise and every budget of rounds; and which targets were met."""
    cells: dict[str, list[dict[str, Any]]] = {}
    missed: list[str] = []
    for name, truth in TRUTHS.items():
        cells[name] = [tried(truth, noise, n, pairs) for n in budgets for noise in NOISES]
        target = TARGETS.get(name)
        missed += [
            f"{name}, noise {cell['noise']:.0%}, {cell['rounds']} rounds"
            for cell in cells[name]
            if target and not target.met(cell)
        ]
        print(f"{name}: {len(missed)} targets missed so far", file=sys.stderr, flush=True)
    return {
        "runs": "simulated",
        "level": 0.99,
        "wanted": {name: target.words for name, target in TARGETS.items()},
        "missed": missed,
        "cells": cells,
        "targets_met": not missed,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=500)
    default = Settings.model_fields["confirm_rounds"].default
    parser.add_argument("--rounds", type=int, nargs="+", default=[default, 8])
    arguments = parser.parse_args()
    sys.exit(ended(decisions(arguments.pairs, arguments.rounds)))


if __name__ == "__main__":
    main()
