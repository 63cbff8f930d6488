"""What the API says of the present, as pydantic models, each made from its nouns by ``of``.

No query and no decision stands here. Units are part of the names; times are Unix seconds. A number
that is not finite is given as ``null``.
"""

from __future__ import annotations

from typing import Self

from pydantic import BaseModel, ConfigDict

from agent.live import LiveState
from domain.approval import Command
from domain.engine import EngineConfig, Value
from domain.events import Event
from domain.fleet import Replica, SlotTraffic
from domain.traffic import Burstiness, Distribution, TrafficShape


class View(BaseModel):
    """Base of everything the API says."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class ErrorView(View):
    """Every answer that is not a success: the kind of error, and one sentence for a person."""

    error: str
    sentence: str


class ConfigView(View):
    digest: str
    values: dict[str, Value]

    @classmethod
    def of(cls, config: EngineConfig) -> Self:
        return cls(digest=config.digest, values=config.as_dict())


class ChangeView(View):
    """One knob that differs; ``null`` is vLLM's default."""

    knob: str
    before: Value | None
    after: Value | None

    @classmethod
    def between(cls, before: EngineConfig, after: EngineConfig) -> list[Self]:
        return [cls(**change._asdict()) for change in before.diff(after)]


class LengthsView(View):
    mean: float | None
    p50: float | None
    p95: float | None

    @classmethod
    def of(cls, lengths: Distribution) -> Self:
        return cls(mean=lengths.mean, p50=lengths.quantile(0.5), p95=lengths.quantile(0.95))


class BurstinessView(View):
    """The variance over the mean of arrivals, 1 for a Poisson stream, and where it lies at 95 %."""

    scale_s: float
    dispersion: float
    low: float
    high: float
    intervals: int

    @classmethod
    def of(cls, burstiness: Burstiness) -> Self:
        return cls(
            scale_s=burstiness.scale_s,
            dispersion=burstiness.dispersion,
            low=burstiness.interval.low,
            high=burstiness.interval.high,
            intervals=burstiness.interval.n,
        )


class ShapeView(View):
    """``burstiest`` says in words at which scale most burstiness is sure."""

    end_s: float
    window_s: float
    rate_rps: float
    running: float
    waiting: float
    isl: LengthsView
    osl: LengthsView
    ttft_p95_ms: float | None
    tpot_p95_ms: float | None
    itl_p95_ms: float | None
    e2el_p95_ms: float | None
    output_tok_s: float | None
    prefix_hit_rate: float | None
    draft_acceptance: float | None
    burstiest: str | None
    burstiness: list[BurstinessView]
    covered: float | None
    finish_reasons: dict[str, float]

    @classmethod
    def of(cls, shape: TrafficShape) -> Self:
        return cls(
            end_s=shape.end_s,
            window_s=shape.window_s,
            rate_rps=shape.rate_rps,
            running=shape.running,
            waiting=shape.waiting,
            isl=LengthsView.of(shape.isl),
            osl=LengthsView.of(shape.osl),
            ttft_p95_ms=shape.latencies.ttft_p95_ms,
            tpot_p95_ms=shape.latencies.tpot_p95_ms,
            itl_p95_ms=shape.latencies.itl_p95_ms,
            e2el_p95_ms=shape.latencies.e2el_p95_ms,
            output_tok_s=shape.output_tok_s,
            prefix_hit_rate=shape.prefix_hit_rate,
            draft_acceptance=shape.draft_acceptance,
            burstiest=str(shape.burstiest) if shape.burstiest else None,
            burstiness=[BurstinessView.of(one) for one in shape.burstiness],
            covered=shape.covered,
            finish_reasons=dict(shape.finish_reasons),
        )


class SlotView(View):
    """One slot as the launcher and the gateway see it; ``null`` where one of them does not."""

    slot: str
    role: str | None
    state: str | None
    digest: str | None
    detail: str
    admitted: bool | None
    in_flight: int | None
    requests: int | None
    errors: int | None

    @classmethod
    def of(cls, slot: str, replica: Replica | None, traffic: SlotTraffic | None) -> Self:
        return cls(
            slot=slot,
            role=traffic.role.value if traffic else None,
            state=replica.state.value if replica else None,
            digest=replica.config.digest if replica else None,
            detail=replica.detail if replica else "",
            admitted=traffic.admitted if traffic else None,
            in_flight=traffic.in_flight if traffic else None,
            requests=traffic.requests if traffic else None,
            errors=traffic.errors if traffic else None,
        )


class StatusView(View):
    """What the controller is doing; ``weight`` is the candidate's share asked for, in percent."""

    at_s: float
    now_s: float
    sentence: str
    simulated: bool
    paused: bool
    autonomy: str
    slo: str
    active: ConfigView
    weight: int | None
    slots: list[SlotView]
    shape: ShapeView | None

    @classmethod
    def of(cls, live: LiveState, now: float) -> Self:
        replicas = {replica.slot: replica for replica in live.replicas}
        traffic = {slot.slot: slot for slot in live.split.slots} if live.split else {}
        return cls(
            at_s=live.at_s,
            now_s=now,
            sentence=live.sentence,
            simulated=live.simulated,
            paused=live.paused,
            autonomy=live.autonomy.value,
            slo=str(live.slo),
            active=ConfigView.of(live.active),
            weight=live.split.weight if live.split else None,
            slots=[
                SlotView.of(slot, replicas.get(slot), traffic.get(slot))
                for slot in [*traffic, *(name for name in replicas if name not in traffic)]
            ],
            shape=ShapeView.of(live.shape) if live.shape else None,
        )


class EventView(View):
    at_s: float
    kind: str
    sentence: str
    subject: str

    @classmethod
    def of(cls, event: Event) -> Self:
        return cls(
            at_s=event.at_s, kind=event.kind.value, sentence=event.sentence, subject=event.subject
        )


class CommandView(View):
    """An order, ``rollout_id`` empty where it is for the controller; ``outcome`` is ``null`` until
    the loop has taken it."""

    id: str
    kind: str
    rollout_id: str
    actor: str
    created_s: float
    outcome: str | None

    @classmethod
    def of(cls, command: Command) -> Self:
        return cls(
            id=command.id,
            kind=command.kind.value,
            rollout_id=command.rollout_id,
            actor=command.actor,
            created_s=command.created_s,
            outcome=command.outcome,
        )
