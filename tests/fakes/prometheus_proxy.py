"""Stands between Serinus and a real Prometheus, and answers worse than that when it is told."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum

import httpx

from tests.fakes.json_server import Answer, Asked, served


class Fault(Enum):
    """EMPTY and NAN answer each query with nothing, or with no number; WARNS adds what a server
    says that could reach some of its parts only."""

    EMPTY = "empty"
    NAN = "nan"
    WARNS = "warns"


class PrometheusProxy:
    """``fault`` may be changed at any time."""

    def __init__(self, upstream: str) -> None:
        self._client = httpx.Client(base_url=upstream, trust_env=False)
        self.fault: Fault | None = None

    @contextmanager
    def running(self) -> Iterator[str]:
        """Its URL."""
        with self._client, served(self._answer) as url:
            yield url

    def _answer(self, asked: Asked) -> Answer:
        kind = asked.headers.get("content-type", "")
        try:
            given = self._client.request(
                asked.method,
                asked.path,
                content=asked.body,
                headers={"content-type": kind} if kind else {},
            )
        except httpx.TransportError:
            return Answer(502, b"bad gateway", "text/plain")
        if self.fault is None or given.status_code != 200:
            return Answer(given.status_code, given.content)
        return Answer(200, json.dumps(worse(given.json(), self.fault)).encode())


def worse(said: dict, fault: Fault) -> dict:
    """The answer with its fault."""
    match fault:
        case Fault.EMPTY:
            return {**said, "data": {**said["data"], "result": []}}
        case Fault.NAN:
            return {**said, "data": {**said["data"], "result": list(map(_nan, _rows(said)))}}
        case Fault.WARNS:
            return {**said, "warnings": ["a store did not answer in time"]}


def _rows(said: dict) -> list[dict]:
    return said["data"]["result"]


def _nan(row: dict) -> dict:
    if "value" in row:
        return {**row, "value": [row["value"][0], "NaN"]}
    return {**row, "values": [[at_s, "NaN"] for at_s, _ in row["values"]]}
