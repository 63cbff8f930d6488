"""What the controller knows this moment and no table holds; filled by the composition root.

A value, never a handle: whoever reads it can change nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from domain.approval import Autonomy
from domain.engine import EngineConfig
from domain.fleet import Replica, Split
from domain.slo import SLO
from domain.traffic import TrafficShape


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveState:
    """The last cycle: its sentence, when it was said (Unix seconds), and what it saw.

    ``active`` is production's config. ``split`` is ``None`` where the gateway could not be read,
    ``shape`` where there is no traffic data. ``simulated`` is whether engines are simulated.
    """

    at_s: float
    sentence: str
    simulated: bool
    paused: bool
    autonomy: Autonomy
    slo: SLO
    active: EngineConfig
    split: Split | None = None
    replicas: tuple[Replica, ...] = ()
    shape: TrafficShape | None = None
