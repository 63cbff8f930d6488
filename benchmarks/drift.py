"""Whether drift fires on changes and not on noise: ``python -m benchmarks.drift``.

Two weeks of a large service's real arrival rates (one figure each 600 s) go through the detector
window by window, as they are and as stationary resamples. What is real: the rates, their noise and
their changes. What is simulated: counts are Poisson at ``SHARE`` of the real rate, one fleet's part
of the service; prompt and answer lengths, hits of the prefix cache and accepted drafts are drawn
from fixed distributions; requests in the engine follow from the rate (Little). After an alarm the
shape is learned at once from the last window; studies, cooldown and budgets are left out.

Beside it stands the rule of one limit: drift as soon as one window lies ``OLD_LIMIT`` away.

Noise is what is left of the log rate beside its running median over ``SMOOTH`` windows on both
sides. The last line printed is one JSON object. The exit code is 1 where stationary weeks may hold
more false alarms than ``MOST_FALSE_A_WEEK``, and 2 where the rates are not there.
"""

from __future__ import annotations

import csv
import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from agent.settings import Settings
from benchmarks.targets import ended, held, skipped
from canary.traces.shape import BOUNDS
from domain.drift import Drift, DriftRules, DriftState, advance, distance
from domain.traffic import Distribution, Latencies, TrafficShape

Floats: TypeAlias = NDArray[np.float64]

RATES: Final = Path("../shared/data/traces/servegen-m-large-rate-2weeks.csv")
SEED: Final = 20_240_611
WINDOW_S: Final = 600.0
WEEK: Final = 1008
SHARE: Final = 0.01
SMOOTH: Final = 18
OTHER_SMOOTH: Final = (9, 36)
BLOCK: Final = 24
RESAMPLES: Final = 200
POWER_RESAMPLES: Final = 60
REAL_SEEDS: Final = 8
FEWER_RESAMPLES: Final = 40
STEP_AT: Final = 432
FOUND_WITHIN: Final = 36
OLD_LIMIT: Final = 1.0
# Held against the upper end of the 95 % interval.
MOST_FALSE_A_WEEK: Final = 1.0

ISL_LOG: Final = (math.log(700), 0.9)
OSL_LOG: Final = (math.log(180), 0.7)
HIT_RATE: Final = 0.6
ACCEPTANCE: Final = 0.7
SERVED_S: Final = 12.0


class Change(NamedTuple):
    """What an injected step does: factors of rate and prompt lengths, and points of the hit rate"""

    rate: float = 1.0
    isl: float = 1.0
    hits: float = 0.0


NO_CHANGE: Final = Change()
STEPS: Final = {
    "rate x2": Change(rate=2.0),
    "rate x3": Change(rate=3.0),
    "ISL x2": Change(isl=2.0),
    "hit rate -0.4": Change(hits=-0.4),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """Drift declared in the window ``at``; the shape before it was learned in ``since``."""

    at: int
    since: int
    drift: Drift


class Lognormal:
    """Lengths of many requests at once, as the counts of a histogram."""

    def __init__(self, log: tuple[float, float], factor: float = 1.0) -> None:
        mu, sigma = log[0] + math.log(factor), log[1]
        edges = [0.5 * (1 + math.erf((math.log(b) - mu) / sigma / math.sqrt(2))) for b in BOUNDS]
        self._shares = np.diff(np.array([0.0, *edges, 1.0]))
        self._mean = math.exp(mu + sigma**2 / 2)
        self._sd = self._mean * math.sqrt(math.exp(sigma**2) - 1)

    def draw(self, n: int, rng: np.random.Generator) -> Distribution:
        """``n`` lengths; their sum is drawn from its normal limit."""
        counts = rng.multinomial(n, self._shares)
        total = max(n * self._mean + math.sqrt(n) * self._sd * rng.standard_normal(), float(n))
        return Distribution(
            bounds=(*BOUNDS, math.inf), counts=tuple(counts.astype(float).tolist()), total=total
        )


def shapes(
    rates: Floats, rng: np.random.Generator, change: Change = NO_CHANGE, since: int = 0
) -> Iterator[TrafficShape]:
    """A shape for each rate (requests/s); ``change`` holds from the window ``since`` on."""
    isl, osl = Lognormal(ISL_LOG), Lognormal(OSL_LOG)
    longer = Lognormal(ISL_LOG, change.isl)
    for number, rate in enumerate(rates.tolist()):
        changed = number >= since
        if changed:
            rate *= change.rate
        n = int(rng.poisson(rate * WINDOW_S))
        hits = HIT_RATE + (change.hits if changed else 0.0)
        yield TrafficShape(
            model="m",
            end_s=(number + 1) * WINDOW_S,
            window_s=WINDOW_S,
            requests=float(n),
            rate_rps=n / WINDOW_S,
            running=n / WINDOW_S * SERVED_S,
            waiting=0.0,
            isl=(longer if changed else isl).draw(n, rng),
            osl=osl.draw(n, rng),
            latencies=Latencies(),
            prefix_hit_rate=rng.binomial(n, hits) / max(n, 1),
            draft_acceptance=rng.binomial(n, ACCEPTANCE) / max(n, 1),
        )


def watch(seen: Iterator[TrafficShape], rules: DriftRules, min_requests: int) -> list[Alarm]:
    """All alarms; the first window is the tuned shape, and after an alarm the last one is."""
    tuned_for, since = next(seen), 0
    state: DriftState | None = None
    alarms: list[Alarm] = []
    for number, live in enumerate(seen, 1):
        if live.requests < min_requests:
            continue
        state = advance(state, tuned_for, live, rules)
        if state.drift is not None:
            alarms.append(Alarm(at=number, since=since, drift=state.drift))
            tuned_for, since = live, number
    return alarms


def watch_by_fixed_limit(seen: Iterator[TrafficShape]) -> int:
    """Alarms of one limit for all traffic, passed by a single window."""
    tuned_for, alarms = next(seen), 0
    for live in seen:
        if distance(live, tuned_for).value >= OLD_LIMIT:
            tuned_for, alarms = live, alarms + 1
    return alarms


def smoothed(values: Floats, half: int = SMOOTH) -> Floats:
    """The running median over ``half`` windows on both sides."""
    padded = np.pad(values, half, mode="edge")
    windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * half + 1)
    return np.asarray(np.median(windows, axis=1), dtype=float)


def resampled(noise: Floats, windows: int, rng: np.random.Generator) -> Floats:
    """A stationary block bootstrap: blocks of geometric length, ``BLOCK`` windows on average."""
    fresh = rng.random(windows) < 1 / BLOCK
    starts = rng.integers(len(noise), size=windows)
    places = np.empty(windows, dtype=int)
    place = int(starts[0])
    for number in range(windows):
        place = int(starts[number]) if fresh[number] else (place + 1) % len(noise)
        places[number] = place
    return noise[places]


class Stationary(NamedTuple):
    """A week around a constant level with real noise, by its number."""

    noise: Floats
    level_rps: float

    def rates(self, number: int) -> Floats:
        rng = np.random.default_rng([SEED, number])
        return self.level_rps * np.exp2(resampled(self.noise, WEEK, rng))

    def week(self, number: int, change: Change = NO_CHANGE) -> Iterator[TrafficShape]:
        rng = np.random.default_rng([SEED, number, 1])
        return shapes(self.rates(number), rng, change, STEP_AT)


class Ends(NamedTuple):
    """The ends of a 95 % interval."""

    low: float
    high: float


def interval(counts: Sequence[int]) -> Ends:
    """Mean ± 1.96 standard errors of independent weeks."""
    half = 1.96 * float(np.std(counts, ddof=1)) / math.sqrt(len(counts))
    mean = float(np.mean(counts))
    return Ends(round(mean - half, 3), round(mean + half, 3))


class Span(NamedTuple):
    """Windows from ``start`` up to, not with, ``end``."""

    start: int
    end: int


def spans(true: NDArray[np.bool_], offset: int) -> list[Span]:
    """Where it is true without a break; ``offset`` is the number of the first window."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], true, [False])).astype(int))) + offset
    return [Span(int(a), int(b)) for a, b in zip(edges[::2], edges[1::2], strict=True)]


class RealChange(NamedTuple):
    """Where the real rate was away, how far at most (log2), and after how many windows it was
    found; ``None`` where it was not."""

    span: Span
    size: float
    delay: int | None


class Labelled(NamedTuple):
    """Real changes, and alarms without one."""

    changes: list[RealChange]
    false: list[Alarm]


def labelled(alarms: Sequence[Alarm], level: Floats, rules: DriftRules) -> Labelled:
    """Alarms held against true changes.

    A true change is a span of at least the longer run in which the smoothed log rate lies the floor
    or more from where it was when the last shape was learned; an alarm ends it and finds it. An
    alarm in whose run the smoothed rate never lay so far is false.
    """
    long = 2 * rules.run
    changes, false, since = [], [], 0
    for alarm in [*alarms, None]:
        end = alarm.at + 1 if alarm is not None else len(level)
        away = np.abs(level[since:end] - level[since])
        found = alarm is None
        for span in spans(away >= rules.least, since):
            size = float(away[span.start - since : span.end - since].max())
            if alarm is not None and span.end > alarm.at - long:
                changes.append(RealChange(span, size, alarm.at - span.start + 1))
                found = True
                break
            if span.end - span.start >= long:
                changes.append(RealChange(span, size, None))
        if alarm is not None:
            since = alarm.at
            false += [] if found else [alarm]
    return Labelled(changes, false)


def recall(changes: Sequence[RealChange], size: float) -> float | None:
    """The share found of the changes that reached this size."""
    found = [change.delay is not None for change in changes if change.size >= size]
    return round(sum(found) / len(found), 3) if found else None


def hour(window: int) -> str:
    return f"day {window // 144 + 1}, {window % 144 / 6:04.1f} h"


def real_weeks(rates: Floats, level: Floats, rules: DriftRules, least: int) -> dict[str, object]:
    """Two weeks as they were; prints each alarm of the first run with the size of the real change.

    Two weeks hold few changes, and each alarm decides what comes after it. So they are run several
    times with other counts and lengths, and the figures are of all runs.
    """
    runs = [
        list(shapes(rates * SHARE, np.random.default_rng([SEED, seed])))
        for seed in range(REAL_SEEDS)
    ]
    watched = [watch(iter(seen), rules, least) for seen in runs]
    labels = [labelled(alarms, level, rules) for alarms in watched]
    alarms, found = watched[0], labels[0]
    for alarm in alarms:
        drift = alarm.drift
        factor = 2 ** (level[alarm.at] - level[alarm.since])
        false = "  FALSE" if alarm in found.false else ""
        print(
            f"{hour(alarm.at)}: {drift.component.value} {drift.distance:.2f} from the shape of "
            f"{hour(alarm.since)}, limit {drift.limit:.2f} for {drift.run} windows; "
            f"smoothed real rate x{factor:.2f}{false}"
        )
    for change in found.changes:
        if change.delay is None:
            span = change.span
            print(f"missed: {hour(span.start)} to {hour(span.end)}, at most x{2**change.size:.2f}")
    changes = [change for label in labels for change in label.changes]
    delays = [change.delay for change in changes if change.delay is not None]
    every = sum(map(len, watched))
    return {
        "real_runs": REAL_SEEDS,
        "real_alarms_a_week": round(every / REAL_SEEDS / 2, 2),
        "real_alarms_each_run": [len(alarms) for alarms in watched],
        "real_changes": len(changes),
        "real_recall": recall(changes, rules.least),
        "real_recall_of_twofold": recall(changes, 1.0),
        "real_false_a_week": round(sum(len(label.false) for label in labels) / REAL_SEEDS / 2, 2),
        "real_delay_p50_windows": median(delays),
        "real_delay_max_windows": max(delays),
        "real_alarms_a_week_by_fixed_limit": watch_by_fixed_limit(iter(runs[0])) / 2,
    }


def targets(figures: Mapping[str, Any]) -> dict[str, bool]:
    """Which limits were met by the figures of the stationary weeks."""
    found: Ends = figures["false_alarms_95"]
    return {"false_alarms_a_week": found.high <= MOST_FALSE_A_WEEK}


def stationary_weeks(weeks: Stationary, rules: DriftRules, least: int) -> dict[str, object]:
    """Every alarm is false here."""
    counts, fixed = [], []
    for number in range(RESAMPLES):
        seen = list(weeks.week(number))
        counts.append(len(watch(iter(seen), rules, least)))
        if number < FEWER_RESAMPLES:
            fixed.append(watch_by_fixed_limit(iter(seen)))
    return {
        "resamples": RESAMPLES,
        "false_alarms_a_week": round(float(np.mean(counts)), 3),
        "false_alarms_95": interval(counts),
        "weeks_without": round(counts.count(0) / RESAMPLES, 3),
        "most_in_a_week": max(counts),
        "false_alarms_a_week_by_fixed_limit": round(float(np.mean(fixed)), 2),
    }


def other_noise(logs: Floats, level_rps: float, rules: DriftRules, least: int) -> dict[str, object]:
    """False alarms where another smoothing says what is noise: what lasts longer is change."""
    result: dict[str, object] = {}
    for half in OTHER_SMOOTH:
        weeks = Stationary(logs - smoothed(logs, half), level_rps)
        counts = [len(watch(weeks.week(n), rules, least)) for n in range(FEWER_RESAMPLES)]
        hours = (2 * half + 1) * WINDOW_S / 3600
        result[f"{hours:.1f} h"] = {"a_week": float(np.mean(counts)), "95": interval(counts)}
    return {"false_alarms_by_smoothing": result}


def power(weeks: Stationary, rules: DriftRules, least: int) -> dict[str, object]:
    """Of injected steps, how many were found in time, and after how many windows."""
    result: dict[str, object] = {}
    for name, change in STEPS.items():
        delays = []
        for number in range(POWER_RESAMPLES):
            seen = islice(weeks.week(RESAMPLES + number, change), STEP_AT + FOUND_WITHIN)
            after = [a.at for a in watch(seen, rules, least) if a.at >= STEP_AT]
            delays += [after[0] - STEP_AT + 1] if after else []
        result[name] = {
            "found": round(len(delays) / POWER_RESAMPLES, 3),
            "delay_p50_windows": median(delays) if delays else None,
            "delay_max_windows": max(delays, default=None),
        }
    return {"steps": result, "step_resamples": POWER_RESAMPLES}


def main(path: Path = RATES) -> int:
    if not path.exists():
        return skipped(f"The real rates are not there: {path} is missing.")
    started_s = time.monotonic()
    with path.open(encoding="utf-8") as lines:
        rates = np.array([float(row["requests_per_s"]) for row in csv.DictReader(lines)])
    settings = Settings.model_fields
    rules = DriftRules(
        least=settings["drift_distance"].default, run=settings["drift_windows"].default
    )
    least = settings["min_requests"].default
    logs = np.log2(rates)
    level = smoothed(logs)
    weeks = Stationary(logs - level, float(np.median(rates)) * SHARE)
    print(f"{len(rates)} windows of {WINDOW_S:g} s. {labelled.__doc__}")
    result: dict[str, object] = {
        "benchmark": "drift",
        "floor": rules.least,
        "windows": [rules.run, 2 * rules.run],
        "smoothed_over_h": (2 * SMOOTH + 1) * WINDOW_S / 3600,
        "noise_sd": round(float(np.std(weeks.noise)), 3),
    }
    result |= real_weeks(rates, level, rules, least)
    result |= stationary_weeks(weeks, rules, least)
    result |= other_noise(logs, weeks.level_rps, rules, least)
    result |= power(weeks, rules, least)
    result["took_s"] = round(time.monotonic() - started_s, 1)
    return ended(held(result, targets(result)))


if __name__ == "__main__":
    sys.exit(main())
