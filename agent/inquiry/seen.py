"""What was read for a question: the time that it is about and the time before, side by side."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from agent.inquiry.period import Period
from domain.engine import EngineConfig, SearchSpace, is_number
from domain.ports import MetricSource
from domain.slo import SLO
from domain.traffic import TrafficShape
from tools.engines import Engines, read_engines
from tools.means import Means, read_means
from tools.profiler import Missing, read_shape


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """All of one window."""

    shape: TrafficShape | Missing
    engines: Engines
    means: Means


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What is known of the fleet beside its metrics. ``seats`` is ``max_num_seqs`` of one engine;
    ``None`` where nobody knows, as for ``chunked``, whether prompts are read in chunks."""

    model: str
    arm: str | None
    slo: SLO
    seats: float | None = None
    chunked: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    setup: Setup
    period: Period
    now: Side
    before: Side


def setup(
    *, model: str, arm: str | None, slo: SLO, config: EngineConfig, space: SearchSpace
) -> Setup:
    """What the config that production runs says, by the defaults of the space where it does not."""
    seats: Any = space.effective(config, "max_num_seqs")
    chunked: Any = space.effective(config, "enable_chunked_prefill")
    return Setup(
        model=model,
        arm=arm,
        slo=slo,
        seats=float(seats) if is_number(seats) else None,
        chunked=chunked if isinstance(chunked, bool) else None,
    )


async def look(source: MetricSource, setup: Setup, period: Period, scrape_s: float) -> Seen:
    """Read both windows; what is missing is told as such, and nothing raises for it."""
    now, before = await asyncio.gather(
        _side(source, setup, period.end_s, period.seconds, scrape_s),
        _side(source, setup, period.start_s, period.seconds, scrape_s),
    )
    return Seen(setup=setup, period=period, now=now, before=before)


async def _side(
    source: MetricSource, setup: Setup, end_s: float, window_s: float, scrape_s: float
) -> Side:
    model, arm = setup.model, setup.arm
    shape, engines, means = await asyncio.gather(
        read_shape(
            source,
            model=model,
            arm=arm,
            end_s=end_s,
            window_s=window_s,
            scrape_s=scrape_s,
            with_arrivals=False,
        ),
        read_engines(source, model=model, arm=arm, end_s=end_s, window_s=window_s),
        read_means(source, model=model, arm=arm, end_s=end_s, window_s=window_s),
    )
    return Side(shape=shape, engines=engines, means=means)
