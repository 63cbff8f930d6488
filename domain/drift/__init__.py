"""Drift: the live shape has left the shape that production was tuned for.

``distance`` says how far and in what two shapes lie apart, ``noise`` how far windows of this
traffic lie apart without any change, ``detector`` when the one is more than the other for long
enough. Pure; a study is the caller's decision.
"""

from domain.drift.detector import Drift, DriftRules, DriftState, advance, counts
from domain.drift.distance import Component, Distance, Lengths, Window, distance

__all__ = [
    "Component",
    "Distance",
    "Drift",
    "DriftRules",
    "DriftState",
    "Lengths",
    "Window",
    "advance",
    "counts",
    "distance",
]
