"""The system's clock, the only one the deployable reads."""

from __future__ import annotations

import asyncio
import time


class SystemClock:
    """Unix seconds of this machine, and the event loop's sleep."""

    def now(self) -> float:
        return time.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
