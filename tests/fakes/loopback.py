"""Ports for servers of tests and benchmarks, on a machine that others use too."""

from __future__ import annotations

import socket


def free_port() -> int:
    """A port that nothing listened on a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
