"""What an engine says of itself over HTTP: its health, one inference, its running requests.

Every question is bounded in time and none raises: an engine that does not answer is an answer.
Nothing here decides what follows from it.
"""

from __future__ import annotations

import asyncio
import re
from typing import NamedTuple

import httpx

HEALTH_TIMEOUT_S = 0.8
METRICS_TIMEOUT_S = 2.0
WARM_UP_TIMEOUT_S = 60.0
_WARM_UP_TOKENS = 4

_IN_FLIGHT = re.compile(r"^vllm:num_requests_(running|waiting)(?:\{.*\})?\s+(\S+)", re.MULTILINE)


class Answer(NamedTuple):
    """Whether the engine did what it was asked, and if not, why, in a clause."""

    ok: bool
    fault: str = ""


class Probe:
    """Asks engines. Safe to call concurrently."""

    def __init__(self) -> None:
        # Loopback only, so no proxy of the environment; and no connection is kept, so that none
        # leads to an engine that has been replaced.
        self._client = httpx.AsyncClient(
            trust_env=False, limits=httpx.Limits(max_keepalive_connections=0), timeout=None
        )

    async def health(self, url: str) -> Answer:
        try:
            async with asyncio.timeout(HEALTH_TIMEOUT_S):
                response = await self._client.get(f"{url}/health")
        except (httpx.HTTPError, TimeoutError) as error:
            return Answer(False, f"/health does not answer ({_named(error)})")
        if response.status_code != httpx.codes.OK:
            return Answer(False, f"/health answers {response.status_code}")
        return Answer(True)

    async def warm_up(self, url: str, model: str) -> Answer:
        """One short inference through the engine's own endpoint; ok once it gave a token."""
        try:
            async with asyncio.timeout(WARM_UP_TIMEOUT_S):
                response = await self._client.post(
                    f"{url}/v1/completions",
                    json={
                        "model": model,
                        "prompt": "Hello",
                        "max_tokens": _WARM_UP_TOKENS,
                        "temperature": 0,
                    },
                )
        except (httpx.HTTPError, TimeoutError) as error:
            return Answer(False, f"the warm-up inference failed ({_named(error)})")
        if response.status_code != httpx.codes.OK:
            return Answer(False, f"the warm-up inference was answered {response.status_code}")
        if not _tokens(response):
            return Answer(False, "the warm-up inference gave no token")
        return Answer(True)

    async def in_flight(self, url: str) -> float | None:
        """Requests running or waiting in the engine; ``None`` where it does not say."""
        try:
            async with asyncio.timeout(METRICS_TIMEOUT_S):
                response = await self._client.get(f"{url}/metrics")
        except (httpx.HTTPError, TimeoutError):
            return None
        return in_flight(response.text) if response.status_code == httpx.codes.OK else None

    async def aclose(self) -> None:
        await self._client.aclose()


def in_flight(metrics: str) -> float | None:
    """The sum of vLLM's running and waiting gauges over its engine cores; pure."""
    found = _IN_FLIGHT.findall(metrics)
    if {name for name, _ in found} != {"running", "waiting"}:
        return None
    try:
        total = sum(float(value) for _, value in found)
    except ValueError:
        return None
    return total if total >= 0 else None


def _tokens(response: httpx.Response) -> int:
    try:
        answer = response.json()
        return int(answer["usage"]["completion_tokens"])
    except (ValueError, KeyError, TypeError):
        return 0


def _named(error: Exception) -> str:
    return str(error) or type(error).__name__
