"""One search for one traffic shape, the configs tried in it, and what came of each."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from domain.engine import Change, EngineConfig
from domain.fidelity import Fidelity
from domain.slo import SLO
from domain.traffic import TrafficShape
from domain.verdict import Verdict


class Trigger(Enum):
    """Why a study was wanted."""

    FIRST = "first"
    DRIFT = "drift"
    SLO_BREACH = "slo_breach"
    SCHEDULE = "schedule"
    MANUAL = "manual"


class Objective(Enum):
    """What "better" means: goodput under the SLO, output tokens a second regardless of it, the
    lowest latency, all at the live load; or the lowest cost per token under the SLO, at the load
    that an engine serves at the lowest."""

    GOODPUT = "goodput"
    THROUGHPUT = "throughput"
    LATENCY = "latency"
    COST = "cost"

    @property
    def weighs_heavier(self) -> bool:
        """Whether heavier loads than the live one are judged by."""
        return self is Objective.COST


class StudyState(Enum):
    RUNNING = "running"
    RECOMMENDED = "recommended"
    NOTHING_BETTER = "nothing_better"
    FAILED = "failed"

    @property
    def ended(self) -> bool:
        return self is not StudyState.RUNNING


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What is taken of the canary lane: engine starts, and seconds that it is held."""

    starts: int
    seconds: float

    def __str__(self) -> str:
        starts = f"{self.starts} engine start{'' if self.starts == 1 else 's'}"
        return f"{starts}, {lane_time(self.seconds)}"


def lane_time(seconds: float) -> str:
    """Minutes, as a person plans with them; seconds below one."""
    return f"{seconds:.0f} s" if seconds < 59.5 else f"{seconds / 60:.0f} min"


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneBudget:
    """The ``most`` that a study may cost, fixed when it begins; ``bounded`` where that is a limit
    and not only its worst case. ``run_s`` is the longest that one of its runs may take."""

    most: Cost
    run_s: float
    bounded: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """A search: for which shape, against which baseline, under which SLO and budget.

    ``shape`` is that of all production, of so many ``replicas``: studies of the time when there was
    always one do not name it. ``lane`` is ``None`` where nobody reckoned what it may cost.
    ``engine`` is what configs run on, vLLM's version and the hardware, in words; empty where nobody
    said. ``load_levels`` are the loads of a trial, as so many times a replica's live one, which is
    the first; the same for every trial, so that they can be compared.
    """

    id: str
    created_s: float
    trigger: Trigger
    reason: str
    shape: TrafficShape
    slo: SLO
    objective: Objective
    baseline: EngineConfig
    trial_budget: int
    seed: int
    lane: LaneBudget | None = None
    engine: str = ""
    load_levels: tuple[float, ...] = (1.0,)
    replicas: int = 1
    state: StudyState = StudyState.RUNNING
    conclusion: str = ""

    @property
    def part(self) -> TrafficShape:
        """The shape of what one replica gets, which is what a trial rehearses."""
        return self.shape.part(self.replicas)

    def levels_of(self, purpose: TrialPurpose) -> tuple[float, ...]:
        """The loads of a trial: the heavier ones where they are judged by, and otherwise where it
        explores."""
        heavier = purpose.explores or self.objective.weighs_heavier
        return self.load_levels if heavier else self.load_levels[:1]


class FailureKind(Enum):
    """Why a trial has no measurement: a constraint to learn from, never a score.

    REFUSED was turned down by vLLM's own check before an engine was started. OUT_OF_MEMORY is one
    at the start. UNSUPPORTED is a value or a combination that the model or the hardware cannot do,
    MISSING_KERNEL code that is not there for this hardware, HOST a disk, a network or another
    process that stood in the way. START and DIED are for what has no other name, before and after
    the first answer. WARM_CACHE is a prefix cache that held more than this load can have put there.
    """

    REFUSED = "refused"
    START = "start"
    OUT_OF_MEMORY = "out_of_memory"
    OUT_OF_MEMORY_UNDER_LOAD = "out_of_memory_under_load"
    UNSUPPORTED = "unsupported"
    MISSING_KERNEL = "missing_kernel"
    MODEL_NOT_FOUND = "model_not_found"
    PORT = "port"
    HOST = "host"
    START_TIMEOUT = "start_timeout"
    KILLED = "killed"
    DIED = "died"
    HUNG = "hung"
    REQUEST_ERRORS = "request_errors"
    OVER_SATURATED = "over_saturated"
    CLIENT_UNFIT = "client_unfit"
    WARM_CACHE = "warm_cache"
    QUALITY = "quality"
    INTERRUPTED = "interrupted"

    @property
    def blames_config(self) -> bool:
        """Whether another try of the same config would probably end the same way."""
        return self not in _NOT_THE_CONFIGS_FAULT


_NOT_THE_CONFIGS_FAULT = frozenset(
    {
        FailureKind.MODEL_NOT_FOUND,
        FailureKind.PORT,
        FailureKind.HOST,
        FailureKind.CLIENT_UNFIT,
        FailureKind.WARM_CACHE,
        FailureKind.INTERRUPTED,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """How a trial failed, in one sentence, with the decisive lines of the engine's log."""

    kind: FailureKind
    sentence: str
    log_tail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Counts of one slice of the measured time, the unit that the block bootstrap resamples.

    A request counts in the block in which it ended, its tokens spread over the blocks in which
    they were generated. ``waited_s`` are the seconds that users waited for those requests, see
    ``canary.waiting``; ``None`` in rows of versions that did not count them.
    """

    seconds: float
    requests: int
    good: int
    failed: int
    output_tokens: float
    waited_s: float | None = None

    @property
    def completed(self) -> int:
        return self.requests - self.failed


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What one load level gave on one engine, with all that a verdict needs to be replayed.

    Latencies are the single requests' own, in milliseconds, in order of their end, from sending.
    In an open plan ``scheduled_ttft_ms`` has them from when they were due as well, and requests
    are good by these, since that is how long a user waited; in a closed plan it is empty. ``isl``
    and ``osl`` are of all requests that were sent and did not fail, in tokens. ``streams`` is how
    many a closed plan kept under way, ``None`` for an open one. ``planned_hit_rate`` is what an
    unbounded prefix cache would find of the whole plan, ``possible_hit_rate`` of what was sent,
    beginning empty (0–1). ``slo_met`` is whether the SLO's share of the requests met it, ``None``
    in rows of versions that did not say. ``heavier`` is what the same engine gave at heavier loads,
    lightest first, up to the first that broke the SLO; ``None`` where none were to be tried, or
    nobody can tell. ``heavier_end`` says why a heavier load that was tried has no measurement, and
    is empty where each has one.
    """

    level: str
    seed: int
    requests: int
    failed: int
    blocks: tuple[Block, ...]
    ttft_ms: tuple[float, ...]
    tpot_ms: tuple[float, ...]
    scheduled_ttft_ms: tuple[float, ...] = ()
    prefix_hit_rate: float | None = None
    draft_acceptance: float | None = None
    preemptions: float | None = None
    isl: tuple[int, ...] = ()
    osl: tuple[int, ...] = ()
    streams: int | None = None
    planned_hit_rate: float | None = None
    possible_hit_rate: float | None = None
    slo_met: bool | None = None
    heavier: tuple[Measurement, ...] | None = None
    heavier_end: str = ""

    @property
    def levels(self) -> tuple[Measurement, ...]:
        """This one and the heavier ones."""
        return (self, *(self.heavier or ()))

    @property
    def seconds(self) -> float:
        return sum(block.seconds for block in self.blocks)

    @property
    def goodput_rps(self) -> float:
        """Requests a second that met every limit of the SLO."""
        return sum(block.good for block in self.blocks) / self.seconds

    @property
    def output_tok_s(self) -> float:
        return sum(block.output_tokens for block in self.blocks) / self.seconds

    @property
    def waited_s(self) -> float | None:
        """Seconds that users waited in all; ``None`` where a block does not know."""
        known = [block.waited_s for block in self.blocks if block.waited_s is not None]
        return sum(known) if len(known) == len(self.blocks) else None

    @property
    def stream_rps(self) -> float | None:
        """Completed requests a second of waiting, where none failed the inverse of the mean E2EL;
        ``None`` where nobody knows how long they waited, or none did."""
        waited_s = self.waited_s
        if waited_s is None or waited_s <= 0:
            return None
        return sum(block.completed for block in self.blocks) / waited_s


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCounters:
    """An engine's own counters at one moment, since its start; ``None`` where it has no such."""

    requests: float
    prompt_tokens: float
    generation_tokens: float
    prefix_queries: float | None = None
    prefix_hits: float | None = None
    draft_tokens: float | None = None
    accepted_tokens: float | None = None
    preemptions: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityScore:
    """Answers right out of all asked in the evaluation set."""

    right: int
    asked: int


class TrialPurpose(Enum):
    """BASELINE and SEARCH explore; CONFIRM and CONFIRM_BASELINE are the fresh runs judged last."""

    BASELINE = "baseline"
    SEARCH = "search"
    CONFIRM = "confirm"
    CONFIRM_BASELINE = "confirm_baseline"

    @property
    def explores(self) -> bool:
        return self in (TrialPurpose.BASELINE, TrialPurpose.SEARCH)


class TrialState(Enum):
    RUNNING = "running"
    MEASURED = "measured"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """What ``author`` expected of a config that it proposed: ``metric`` becomes ``times`` what the
    config with the digest ``over`` has."""

    author: str
    metric: str
    times: float
    over: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One config measured in a study. ``hypothesis`` says who proposed it and why, ``diagnosis``
    what limited the traffic when it was chosen; the latter is empty where that did not matter.
    ``expected`` is what was expected of it, ``None`` where nobody said.

    ``overridden`` is what the engine silently makes of ``config``: asked for and not in force.
    ``fidelity`` is the measured baseline's: how far the study's rehearsals can be trusted. ``lane``
    is the slot that it ran in, empty in rows of versions that had one alone.
    ``cut_short`` says why a measurement was ended before its time, and is empty where it was not.
    """

    id: str
    study_id: str
    number: int
    purpose: TrialPurpose
    config: EngineConfig
    hypothesis: str
    overridden: tuple[Change, ...] = ()
    state: TrialState = TrialState.RUNNING
    started_s: float = 0.0
    ended_s: float | None = None
    measurement: Measurement | None = None
    quality: QualityScore | None = None
    failure: Failure | None = None
    fidelity: Fidelity | None = None
    cut_short: str = ""
    lane: str = ""
    diagnosis: str = ""
    expected: Expectation | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """The config a study recommends and the verdict of its confirmation against the baseline."""

    study_id: str
    config: EngineConfig
    verdict: Verdict
    rationale: str
