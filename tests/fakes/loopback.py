"""Ports for servers of tests and benchmarks, on a machine that others use too."""

from __future__ import annotations

from agent.demo.ports import free_ports

_given: set[int] = set()


def free_port() -> int:
    """A port that nothing listens on now, and that nobody in this process was given before."""
    while (port := free_ports()[0]) in _given:
        continue
    _given.add(port)
    return port
