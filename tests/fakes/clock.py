"""Clocks for tests: the real one, and one that moves only when it is told or slept on."""

import asyncio
import time


class SystemClock:
    """``domain.ports.Clock`` over the system's clock."""

    def now(self) -> float:
        return time.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class FakeClock:
    """Simulated time: ``sleep`` moves it by itself, at no cost, and yields to other tasks."""

    def __init__(self, now: float = 0.0) -> None:
        self._now = now

    def now(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        self._now += seconds

    async def sleep(self, seconds: float) -> None:
        self._now += seconds
        await asyncio.sleep(0)


class SteeredClock(FakeClock):
    """Simulated time that stands still in a sleep, which lasts ``pace`` of its real length: for
    code that waits for real processes while the test decides what time it is."""

    def __init__(self, now: float = 0.0, pace: float = 1.0) -> None:
        super().__init__(now)
        self._pace = pace

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds * self._pace)
