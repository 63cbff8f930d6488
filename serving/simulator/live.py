"""The engine in real time: iterations on an absolute schedule, tokens into each request's mailbox.

It knows nothing of HTTP. An iteration that Python ends late is made up for by the next ones, so
that the model's timing does not drift; a pause of the whole process is not made up for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeAlias

from serving.simulator.core import Core, EngineDied
from serving.simulator.metrics import EngineMetrics
from serving.simulator.scheduler import Request

_FORGIVEN_LAG_S = 0.5
_HUNG_POLL_S = 0.05

Mailbox: TypeAlias = "asyncio.Queue[int]"
"""Gets the number of tokens of each iteration, and the last with the request's ``finish`` set."""


class LiveEngine:
    """``run`` is one task for the engine's life; ``die`` is called when the engine breaks."""

    def __init__(
        self, core: Core, metrics: EngineMetrics, die: Callable[[tuple[str, ...]], None]
    ) -> None:
        self.core = core
        self.metrics = metrics
        self._die = die
        self._mailboxes: dict[Request, tuple[Mailbox, int]] = {}
        self._wake = asyncio.Event()

    def submit(self, request: Request, max_tokens: int) -> Mailbox:
        mailbox: Mailbox = asyncio.Queue()
        self._mailboxes[request] = (mailbox, max_tokens)
        self.core.submit(request)
        self._wake.set()
        return mailbox

    def abort(self, request: Request) -> None:
        """End a request early; nothing happens where it has ended."""
        if entry := self._mailboxes.pop(request, None):
            self.core.scheduler.abort(request)
            self.metrics.ended(request, entry[1])

    async def run(self) -> None:
        now = asyncio.get_running_loop().time
        due_s = now()
        while True:
            if not self.core.scheduler.busy:
                self._wake.clear()
                await self._wake.wait()
                due_s = now()
            if self.core.hangs:
                await asyncio.sleep(_HUNG_POLL_S)
                due_s = now()
                continue
            try:
                step = self.core.step(now())
            except EngineDied as death:
                self._die(death.log)
                return
            due_s = max(due_s + step.seconds, now() - _FORGIVEN_LAG_S)
            await asyncio.sleep(max(due_s - now(), 0))
            advances = self.core.scheduler.complete(step.batch, now())
            self.metrics.iterated(step.batch, advances)
            for request, tokens, _ in advances:
                mailbox, max_tokens = self._mailboxes[request]
                mailbox.put_nowait(tokens)
                if request.finish is not None:
                    del self._mailboxes[request]
                    self.metrics.ended(request, max_tokens)
