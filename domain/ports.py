"""What the inner rooms need from the outer world; each port has one contract suite in tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from domain.engine import EngineConfig, Refusal, Resolution, SearchSpace
from domain.events import Event
from domain.fleet import Replica, Slot, Split
from domain.language import Answer, Question
from domain.load import LoadPlan, LoadResult, RequestRecord
from domain.metrics import Query, Reading
from domain.study import Expectation, Study, Trial


class Clock(Protocol):
    """The only source of time. ``now`` is Unix seconds; ``sleep`` yields to other tasks."""

    def now(self) -> float: ...

    async def sleep(self, seconds: float) -> None: ...


class MetricSource(Protocol):
    """Answers typed queries. Safe to call concurrently; owns nothing; never raises for a missing
    metric or a server that is down: that is what NoData, Partial and Failed are for.

    ``read_range`` answers, for each of ``domain.metrics.moments``, what ``read`` would answer
    then; a range that is none raises BadInput. All times are Unix seconds.
    """

    async def read(self, query: Query, at_s: float) -> Reading: ...

    async def read_range(
        self, query: Query, start_s: float, end_s: float, step_s: float
    ) -> tuple[Reading, ...]: ...


class Launcher(Protocol):
    """Runs engines in slots. One caller a slot, while ``observe`` may be asked by several at once;
    owns every engine it ever started, also after its own process was killed and started again.

    ``start`` returns once the engine is launched, not when it is warm; it is idempotent for the
    same slot and config, and raises Conflict where the slot holds another config's engine, and
    Permanent where the executable is missing. ``stop`` asks the engine to end, waits for its
    running requests at most ``drain_s``, then kills; a slot that is empty is no error.
    ``observe`` reports every slot that holds an engine; it is what completes the warm-up
    inference, and a replica is WARM only after that. ``log_tail`` gives the decisive last lines.
    """

    async def start(self, slot: Slot, config: EngineConfig) -> None: ...

    async def stop(self, slot: Slot, drain_s: float) -> None: ...

    async def observe(self) -> tuple[Replica, ...]: ...

    def log_tail(self, slot: Slot) -> str: ...


class Resolver(Protocol):
    """Tells what an engine would make of a config, without starting one. One caller at a time.

    ``resolve`` answers ``None`` where nobody can tell, which is no reason to refuse; a config that
    does not resolve is refused in vLLM's own words. Idempotent; starts no engine and owns none.
    """

    async def resolve(self, config: EngineConfig) -> Resolution | Refusal | None: ...


class Gateway(Protocol):
    """Splits requests between the production slots and the candidate's. One caller at a time.

    Every change is persistent over a restart of the gateway and of the controller, is verified by
    reading back (GatewayUnverified otherwise), affects new requests only, and is idempotent.
    ``weight`` is the candidate's share in whole percent. ``read`` tells the split in force.
    """

    async def set_weight(self, weight: int) -> None: ...

    async def admit(self, slot: str) -> None: ...

    async def drain(self, slot: str) -> None: ...

    async def read(self) -> Split: ...


def unheard(record: RequestRecord) -> None:
    """Tells nobody of a request that ended."""


class LoadGenerator(Protocol):
    """Sends a plan to an engine. One run at a time; owns its connections and closes them.

    ``heard`` is told of each request soon after it ended, in the result's words. ``stop`` is asked
    now and then whether to end early. An engine that fails shows in the records; only a client that
    could not run at all raises.
    """

    async def run(
        self,
        plan: LoadPlan,
        url: str,
        model: str,
        stop: Callable[[], bool],
        heard: Callable[[RequestRecord], None] = unheard,
    ) -> LoadResult: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A config to try, why, and which metric it should move; ``author`` where that is another than
    of the proposals that it comes with, ``expected`` how far, where somebody says."""

    config: EngineConfig
    hypothesis: str
    metric: str
    author: str = ""
    expected: Expectation | None = None


class Proposals(NamedTuple):
    """Ranked proposals and who made them, for example ``"rulebook"``; ``note`` names a fallback."""

    author: str
    ranked: tuple[Proposal, ...]
    note: str = ""


class Planner(Protocol):
    """Proposes configs. Holds no tool that changes anything; what it returns is validated again by
    the caller. Never raises for a model's failure: it falls back and says so in ``note``."""

    async def propose(
        self, study: Study, space: SearchSpace, trials: Sequence[Trial], limit: int
    ) -> Proposals: ...


class LanguageModel(Protocol):
    """Answers a question in text. It is given no tool; whoever asks checks what it says.

    Raises NoAnswer, and nothing else, where there is no complete answer.
    """

    async def answer(self, question: Question) -> Answer: ...


class Notifier(Protocol):
    """Tells people and dashboards what happened. Best effort: never raises, never blocks long."""

    async def notify(self, event: Event) -> None: ...
