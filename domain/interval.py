"""How sure a figure is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A confidence interval at ``level`` (0–1), the method that gave it and its sample size."""

    low: float
    high: float
    level: float
    method: str
    n: int

    @property
    def percent(self) -> str:
        """Its level, as 99.5 %: several looks share one error, and no interval is of 100 %."""
        return f"{100 * self.level:.4g} %"
