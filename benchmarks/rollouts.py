"""How often a rollout ends wrongly, on simulated traffic in virtual time.

``python -m benchmarks.rollouts`` runs whole rollouts by the product's own state machine and its
own judge of live traffic, at the product's own steps and times. What is simulated is the world:
requests of agents that stay on their arm for as long as their session lasts, with prompts of unlike
lengths, arriving in waves, on two engines whose speed wanders, together and each for itself. Half
of the candidates are as good as the baseline or better; the others harm, each in one way, by more
than the stated margins and beyond the SLO. No engine is started. The exit code is 1 where a target
was missed.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import reduce
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from agent.evidence import WARMING, WINDOWS
from agent.settings import Settings
from benchmarks.decisions import proportion
from benchmarks.targets import ended
from canary.live import judge_live
from canary.rollout import Observed, advance
from canary.variation import variation_of
from domain.engine import EngineConfig
from domain.fleet import Replica, ReplicaState, Role, Slot, SlotTraffic, Split
from domain.live import Compared, LiveArm, LiveTerms
from domain.rollout import AdmitSlot, Phase, Rollout, RolloutPlan, SetWeight, StallAction, Step
from domain.slo import SLO
from domain.traffic import Distribution
from domain.verdict import Verdict

LOOK_S = 6.0
"""Between two looks at the metrics: three cycles of the controller."""

LONGEST_S = 2 * 3600.0
EARLIER = 600
"""Looks at the baseline before the rollout: an hour."""

CUT, ABORTED = 0.2, 0.02
"""Shares of a baseline's answers that are cut for length, and that their clients give up."""
MOST_BAD_PROMOTED = 0.005
MOST_GOOD_BACK = 0.02
SEED = 23
TTFT_BOUNDS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    *(20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
"""vLLM's own buckets, in seconds."""
TPOT_BOUNDS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    *(20.0, 40.0, 80.0),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """What is true of a candidate: its latencies as shares of the baseline's, the share of its
    requests that fail, are cut for length and are given up beside the baseline's, and for how long
    its cache is cold to a session that comes to it, with a TTFT half as long again. ``from_weight``
    is the weight at which the harm begins, in percent."""

    ttft: float = 1.0
    tpot: float = 1.0
    errors: float = 0.0
    cut: float = 0.0
    aborted: float = 0.0
    cold_s: float = 0.0
    from_weight: int = 0


GOOD = {
    "alike": Truth(),
    "alike, with a cold cache": Truth(cold_s=90.0),
    "a fifth faster": Truth(ttft=0.8, tpot=0.8),
}
BAD = {
    "twice the TTFT": Truth(ttft=2.0),
    "1.6 times the TPOT": Truth(tpot=1.6),
    "4 points more errors": Truth(errors=0.04),
    "30 points more errors": Truth(errors=0.3),
    "30 points more answers cut for length": Truth(cut=0.3),
    "20 points more given up by clients": Truth(aborted=0.2),
    "three times the TTFT once it carries half": Truth(ttft=3.0, from_weight=50),
}


class Ended(NamedTuple):
    """How one rollout ended; ``phase`` of one that still held is that of its last look."""

    truth: str
    phase: Phase
    step: int
    hours: float


@dataclass(slots=True)
class Arm:
    """What an arm served since the step began."""

    requests: int = 0
    errors: int = 0
    cut: int = 0
    aborted: int = 0
    ttft_s: list[np.ndarray] = field(default_factory=list)
    tpot_s: list[np.ndarray] = field(default_factory=list)

    def live(self) -> LiveArm:
        return LiveArm(
            requests=self.requests,
            errors=self.errors,
            cut=self.cut,
            aborted=self.aborted,
            ttft=_distribution(self.ttft_s, TTFT_BOUNDS),
            tpot=_distribution(self.tpot_s, TPOT_BOUNDS),
        )

    def add(self, other: Arm) -> None:
        self.requests += other.requests
        self.errors += other.errors
        self.cut += other.cut
        self.aborted += other.aborted
        self.ttft_s += other.ttft_s
        self.tpot_s += other.tpot_s


def _distribution(parts: Sequence[np.ndarray], bounds: Sequence[float]) -> Distribution:
    values = np.concatenate([*parts, np.zeros(0)])
    counts = np.bincount(np.searchsorted(bounds, values), minlength=len(bounds) + 1)
    return Distribution(
        bounds=(*bounds, float("inf")),
        counts=tuple(counts.astype(float)),
        total=float(values.sum()),
    )


class Traffic:
    """Requests of sessions that come and go, and two engines whose speed wanders."""

    def __init__(self, truth: Truth, generator: np.random.Generator) -> None:
        self._truth = truth
        self._random = generator
        self._rate_rps = float(np.exp(generator.uniform(np.log(2.0), np.log(30.0))))
        self._turn_s = float(generator.uniform(8.0, 30.0))
        sessions = max(4, round(self._rate_rps * self._turn_s))
        self._bucket = generator.uniform(0.0, 100.0, size=sessions)
        self._length = np.exp(0.5 * generator.normal(size=sessions))
        self._errors = float(generator.uniform(0.0, 0.005))
        self._ttft_s = float(np.exp(generator.uniform(np.log(0.1), np.log(0.8))))
        self._tpot_s = float(np.exp(generator.uniform(np.log(0.012), np.log(0.06))))
        self._together, self._apart = 0.0, {True: 0.0, False: 0.0}
        self._wave = 0.0
        self._mix, self._weight = 0.0, 0
        self._cold_s = np.zeros(sessions)

    @property
    def slo(self) -> SLO:
        """Limits that some baselines keep and some do not."""
        times = self._random.uniform(0.7, 1.3)
        requests = self._random.gamma(4, 1 / 4, size=4000)
        lengths = np.exp(0.5 * self._random.normal(size=4000))
        ttft_ms = 1000 * self._ttft_s * float(np.quantile(requests * lengths, 0.95))
        paces = self._random.gamma(20, 1 / 20, size=4000)
        tpot_ms = 1000 * self._tpot_s * float(np.quantile(paces, 0.95))
        return SLO(ttft_ms=times * ttft_ms, tpot_ms=times * tpot_ms)

    def serve(self, weight: int, seconds: float) -> dict[bool, Arm]:
        """What the candidate (True) and the baseline serve in the next seconds."""
        draw = self._random
        keep = float(np.exp(-seconds / 60.0))
        fresh, mixed = float(np.sqrt(1 - keep**2)), float(np.exp(-seconds / 600.0))
        self._together = keep * self._together + fresh * 0.15 * draw.normal()
        self._apart = {a: keep * v + fresh * 0.05 * draw.normal() for a, v in self._apart.items()}
        self._wave = keep * self._wave + fresh * 0.3 * draw.normal()
        ending = draw.random(len(self._bucket)) < seconds / 180.0
        self._bucket[ending] = draw.uniform(0.0, 100.0, size=ending.sum())
        self._length[ending] = np.exp(0.5 * draw.normal(size=ending.sum()))
        n = draw.poisson(self._rate_rps * np.exp(self._wave) * seconds)
        session = draw.integers(len(self._bucket), size=n)
        ours = self._bucket[session] < weight
        self._mix = mixed * self._mix + float(np.sqrt(1 - mixed**2)) * 0.3 * draw.normal()
        self._cold_s = np.maximum(0.0, self._cold_s - seconds)
        self._cold_s[ending] = 0.0
        came = (self._weight <= self._bucket) & (self._bucket < weight)
        self._cold_s[came], self._weight = self._truth.cold_s, weight
        return {arm: self._served(session[ours == arm], weight, ours=arm) for arm in (True, False)}

    def _served(self, session: np.ndarray, weight: int, *, ours: bool) -> Arm:
        asked = len(session)
        truth = self._truth if ours and weight >= self._truth.from_weight else Truth()
        slow = float(np.exp(self._together + self._apart[ours]))
        session = session[self._random.random(len(session)) >= ABORTED + truth.aborted]
        n, aborted = len(session), asked - len(session)
        failed = self._random.random(n) < self._errors + truth.errors
        cold = np.where(ours & (self._cold_s[session] > 0), 1.5, 1.0)
        ttft_s = self._ttft_s * slow * truth.ttft * cold * self._length[session]
        ttft_s = (ttft_s * self._random.gamma(4, 1 / 4, size=n))[~failed]
        tpot_s = self._tpot_s * slow * truth.tpot * self._random.gamma(20, 1 / 20, size=n)[~failed]
        return Arm(
            requests=n,
            errors=int(failed.sum()),
            cut=int((self._random.random(n) < CUT * np.exp(self._mix) + truth.cut).sum()),
            aborted=aborted,
            ttft_s=[ttft_s],
            tpot_s=[tpot_s],
        )


BASELINE = EngineConfig.of({"max_num_seqs": 64})
CANDIDATE = EngineConfig.of({"max_num_seqs": 128})
PRODUCTION = Slot(name="production-0", role=Role.PRODUCTION, port=8101)
LANE = Slot(name="canary-0", role=Role.CANARY, port=8201)


def plan() -> RolloutPlan:
    """The product's own, by its settings' defaults."""
    fields = Settings.model_fields
    bake_s = fields["bake_s"].default
    return RolloutPlan(
        steps=tuple(Step(weight=weight, bake_s=bake_s) for weight in fields["steps"].default),
        min_requests=fields["step_requests"].default,
        stall_s=fields["stall_s"].default,
        stall_action=StallAction.HOLD,
        start_s=fields["engine_start_s"].default,
    )


def observed(weight: int, admitted: bool) -> Observed:
    """Both engines warm."""
    replicas = {
        slot.name: Replica(slot=slot.name, config=config, state=ReplicaState.WARM, started_s=0.0)
        for slot, config in ((PRODUCTION, BASELINE), (LANE, CANDIDATE))
    }
    slots = tuple(
        SlotTraffic(
            slot=slot.name,
            role=slot.role,
            admitted=slot is PRODUCTION or admitted,
            up=True,
            in_flight=0,
            requests=0,
            errors=0,
        )
        for slot in (PRODUCTION, LANE)
    )
    split = Split(weight=weight, slots=slots)
    return Observed(production=(PRODUCTION,), canary=LANE, replicas=replicas, split=split)


def rolled_out(name: str, truth: Truth, seed: int) -> Ended:
    """One rollout, to the end of its steps or to its roll back."""
    traffic = Traffic(truth, np.random.default_rng([SEED, seed]))
    slo = traffic.slo
    earlier = [traffic.serve(0, LOOK_S)[False] for _ in range(EARLIER)]
    rollout = Rollout(
        id=f"r{seed}",
        study_id="s",
        version=1,
        created_s=0.0,
        baseline=BASELINE,
        candidate=CANDIDATE,
        plan=plan(),
        phase=Phase.STARTING,
        phase_since_s=0.0,
    )
    weight, admitted, now = 0, False, 0.0
    looks: list[dict[bool, Arm]] = []
    since_s = rollout.baking_since_s
    while rollout.phase in (Phase.STARTING, Phase.PROGRESSING) and now < LONGEST_S:
        verdict = judged(rollout, looks, earlier, slo, now)
        rollout, intent = advance(rollout, observed(weight, admitted), verdict, now)
        match intent:
            case SetWeight(weight=wanted):
                weight = wanted
            case AdmitSlot():
                admitted = True
        if rollout.baking_since_s != since_s:
            looks, since_s = [], rollout.baking_since_s
        looks.append(traffic.serve(weight, LOOK_S))
        now += LOOK_S
    return Ended(name, rollout.phase, rollout.step, now / 3600)


def judged(
    rollout: Rollout,
    looks: Sequence[dict[bool, Arm]],
    earlier: Sequence[Arm],
    slo: SLO,
    now: float,
) -> Verdict | None:
    """The verdict on the step, as ``agent.evidence`` has it: by what the arms served at these looks
    since it began; at 100 % beside the time before."""
    if rollout.phase is not Phase.PROGRESSING or not looks or rollout.baking_since_s is None:
        return None
    step = rollout.plan.steps[rollout.step]
    warming = now <= rollout.baking_since_s + WARMING * step.bake_s
    first = 0 if warming else round(WARMING * step.bake_s / LOOK_S)
    arms = {arm: pooled([look[arm] for look in looks[first:]]) for arm in (True, False)}
    windows, n = [], len(looks) - first
    apart = max(n, round(step.bake_s / LOOK_S))
    for place in range(WINDOWS if step.weight == 100 else 0):
        end = len(earlier) - place * apart
        window = earlier[max(0, end - n) : max(0, end)]
        windows += [pooled(window).live()] if len(window) == n else []
    return judge_live(
        Compared(
            candidate=arms[True].live(),
            baseline=reduce(LiveArm.with_also, windows) if windows else arms[False].live(),
            terms=LiveTerms(
                min_requests=rollout.plan.min_requests,
                slo=slo,
                seed=rollout.step,
                warming=warming,
            ),
            variation=variation_of(windows) if windows else None,
        ),
        start_s=now - n * LOOK_S,
        end_s=now,
    )


def pooled(parts: Iterable[Arm]) -> Arm:
    whole = Arm()
    for part in parts:
        whole.add(part)
    return whole


def _one(job: tuple[str, Truth, int]) -> Ended:
    return rolled_out(*job)


def rollouts(each: int) -> dict[str, Any]:
    """So many rollouts of good candidates and as many of bad ones, and which targets were met."""
    jobs = [
        (name, truth, 2 * seed + (kind is BAD))
        for kind in (GOOD, BAD)
        for seed in range(each)
        for name, truth in [list(kind.items())[seed % len(kind)]]
    ]
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        found = []
        for one in pool.map(_one, jobs, chunksize=4):
            found.append(one)
            if len(found) % 50 == 0:
                print(f"{len(found)} of {len(jobs)} rollouts", file=sys.stderr, flush=True)
    good, bad = ([e for e in found if e.truth in kind] for kind in (GOOD, BAD))
    back = sum(e.phase is Phase.ROLLING_BACK for e in good)
    promoted = sum(e.phase is Phase.CONVERTING for e in bad)
    return {
        "traffic": "simulated",
        "rollouts": len(found),
        "good_rolled_back": proportion(back, len(good)),
        "bad_promoted": proportion(promoted, len(bad)),
        "truths": {name: told(e for e in found if e.truth == name) for name in (*GOOD, *BAD)},
        "targets_met": back <= MOST_GOOD_BACK * len(good)
        and promoted <= MOST_BAD_PROMOTED * len(bad),
    }


def told(found: Iterable[Ended]) -> dict[str, Any]:
    """How the rollouts of one kind of candidate ended, at which step, and after how long."""
    hours: dict[str, list[float]] = defaultdict(list)
    steps: dict[str, Counter[int]] = defaultdict(Counter)
    words = {Phase.CONVERTING: "promoted", Phase.ROLLING_BACK: "rolled back"}
    for each in found:
        how = words.get(each.phase, "held")
        hours[how].append(each.hours)
        steps[how][each.step] += 1
    return {
        how: {
            "rollouts": len(took),
            "minutes_median": round(60 * median(took), 1),
            "at_step": dict(sorted(steps[how].items())),
        }
        for how, took in sorted(hours.items())
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rollouts", type=int, default=1000)
    arguments = parser.parse_args()
    sys.exit(ended(rollouts(arguments.rollouts // 2)))


if __name__ == "__main__":
    main()
