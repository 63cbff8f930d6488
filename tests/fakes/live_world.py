"""A controller's world whose engines serve what the gateway gives them and show it as vLLM does.

A step is judged by the real evidence over what was scraped of them. Tests say how many requests
come, how an engine answers, and what is wrong with its metrics.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from agent.evidence import LiveEvidence
from agent.leadership import Leadership
from agent.store import Store
from agent.tuning import TuningPolicy
from domain.engine import EngineConfig
from domain.fleet import Role
from domain.traffic import TrafficShape
from domain.verdict import Verdict
from tests.fakes.controller_world import CANARY, CANDIDATE, POLICY, ControllerWorld, Judge
from tests.fakes.metrics import FakeEngineMetrics, FakeMetricSource, target
from tests.fakes.shapes import shape
from tools.live_shape import LiveShape
from tools.profiler import Missing

MODEL = "m"
LANE = CANARY.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Manner:
    """How an engine answers: so many of ten requests as given by ``odd_ttft_s`` or failing, the
    others alike. Lengths are tokens."""

    ttft_s: float = 0.2
    tpot_s: float = 0.02
    osl: int = 128
    prefix_hits: int = 256
    slow_of_ten: int = 0
    odd_ttft_s: float = 8.0
    failing_of_ten: int = 0


class LiveWorld(ControllerWorld):
    """``per_cycle`` requests come in each cycle, or ``arriving`` by slot where that is set.

    ``manners`` are the engines' by slot. ``shown`` may change an engine's exposition, ``None``
    being a failed scrape; nothing is scraped while ``late``. ``live`` reads the shape from the
    metrics as well.
    """

    def __init__(
        self,
        store: Store,
        *,
        policy: TuningPolicy = POLICY,
        per_cycle: int = 40,
        live: bool = False,
    ) -> None:
        self.source = FakeMetricSource()
        self.per_cycle = per_cycle
        self.arriving: dict[str, int] | None = None
        self.manners: dict[str, Manner] = {}
        self.shown: Callable[[str, str], str | None] = lambda slot, text: text
        self.late = False
        self.served: dict[str, int] = {}
        self.metrics: dict[tuple[str, EngineConfig], FakeEngineMetrics] = {}
        self._live = LiveShape(self.source, model=MODEL, arm=Role.PRODUCTION.arm, scrape_s=2.0)
        self._is_live = live
        super().__init__(store, policy=policy)

    def verdicts(self) -> list[Verdict]:
        """All that were kept of the newest rollout, the first one first."""
        rollout = self.rollout()
        assert rollout is not None
        with self.store.view() as uow:
            return [given.verdict for given in uow.verdicts.of(rollout.id)]

    async def recommended(self) -> None:
        """Production has served for a while and a study has just recommended the candidate."""
        await self.settle()
        await self.until(lambda: self.studies.begun)
        await self.tick(16)
        self.studies.recommend(CANDIDATE)

    async def at_step(self, step: int = 0) -> None:
        """The step's weight is in force and bakes."""

        def bakes() -> bool:
            rollout = self.rollout()
            return rollout is not None and rollout.step == step and bool(rollout.baking_since_s)

        await self.until(bakes)

    async def tick(self, times: int = 1) -> str:
        sentence = ""
        for _ in range(times):
            await self.serve()
            sentence = await super().tick()
        return sentence

    async def serve(self) -> None:
        """The requests of one cycle are answered, and the engines scraped."""
        engines = self.launcher.engines
        for slot, config in engines.items():
            self.metrics.setdefault((slot, config), FakeEngineMetrics(MODEL))
        for slot, requests in (self.arriving or self._routed()).items():
            if slot in engines:
                self._answered(slot, self.metrics[slot, engines[slot]], requests)
        if not self.late:
            self.source.scrape(self.clock.now(), self._scraped())

    def _routed(self) -> dict[str, int]:
        """By slot, as the gateway gives them."""
        given: dict[str, int] = {}
        for _ in range(self.per_cycle):
            slot = self.gateway.route()
            if slot is not None:
                self.gateway.end(slot)
                given[slot] = given.get(slot, 0) + 1
        return given

    def _answered(self, slot: str, engine: FakeEngineMetrics, requests: int) -> None:
        manner = self.manners.get(slot, Manner())
        for _ in range(requests):
            place = self.served[slot] = self.served.get(slot, 0) + 1
            # Spread evenly, so that any stretch of requests has its share of them.
            odd = place * 7 % 10
            engine.finish(
                osl=manner.osl,
                ttft_s=manner.odd_ttft_s if odd < manner.slow_of_ten else manner.ttft_s,
                tpot_s=manner.tpot_s,
                prefix_hits=manner.prefix_hits,
                reason="error" if odd < manner.failing_of_ten else "stop",
            )

    def _scraped(self) -> dict[tuple[tuple[str, str], ...], str | None]:
        roles = {slot.name: slot.role for slot in (*self.production, CANARY)}
        return {
            target(arm=roles[slot].arm, replica=slot, config=config.digest): self.shown(
                slot, self.metrics[slot, config].text()
            )
            for slot, config in self.launcher.engines.items()
        }

    def _judge_for(self, leadership: Leadership) -> Judge:
        return LiveEvidence(self.source, POLICY.slo, leadership, model=MODEL).verdict

    async def _read_shape(self, end_s: float, window_s: float) -> TrafficShape | Missing:
        if self._is_live:
            return await self._live.read(end_s, window_s)
        return replace(shape(), end_s=end_s, window_s=window_s)
