"""A load that is given, not measured in production: its shape, a study of it, and that study's log.

What benchmarks and tests with engines of their own begin from. Nothing here starts an engine.
"""

from __future__ import annotations

from domain.engine import EngineConfig
from domain.slo import SLO
from domain.study import Objective, Study, Trial, Trigger
from domain.traffic import Distribution, Latencies, TrafficShape

# Met by every request that is answered at all: what counts is throughput.
ANY_SLO = SLO(e2el_ms=600_000.0)


class TrialList:
    """The graph's TrialLog in memory, of one study."""

    def __init__(self) -> None:
        self.rows: dict[str, Trial] = {}

    def trials(self, study_id: str) -> tuple[Trial, ...]:
        return tuple(self.rows.values())

    def add(self, trial: Trial) -> None:
        self.rows[trial.id] = trial

    def save(self, trial: Trial) -> None:
        self.rows[trial.id] = trial


def exactly(tokens: int) -> Distribution:
    """Prompts, or answers, of one length."""
    return Distribution.of_values([float(tokens)] * 1000, (tokens - 1.0, float(tokens)))


def given_shape(
    model: str, *, streams: int, isl: Distribution, osl: Distribution, hit_rate: float = 0.0
) -> TrafficShape:
    """So many streams of these lengths, without what only production could tell."""
    return TrafficShape(
        model=model,
        end_s=0.0,
        window_s=600.0,
        requests=0.0,  # no production was measured
        rate_rps=0.0,
        running=float(streams),
        waiting=0.0,
        isl=isl,
        osl=osl,
        latencies=Latencies(),
        prefix_hit_rate=hit_rate,
    )


def given_study(name: str, shape: TrafficShape, *, reason: str, trials: int, seed: int) -> Study:
    """A study of the shape for throughput, from vLLM's defaults."""
    return Study(
        id=name,
        created_s=0.0,
        trigger=Trigger.MANUAL,
        reason=reason,
        shape=shape,
        slo=ANY_SLO,
        objective=Objective.THROUGHPUT,
        baseline=EngineConfig(),
        trial_budget=trials,
        seed=seed,
    )
