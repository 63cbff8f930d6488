"""A real gateway between one production engine, one candidate and a client."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeAlias

from canary.gateways.envoy import EnvoyGateway
from canary.gateways.haproxy import HAProxyGateway
from canary.gateways.topology import Listening
from domain.fleet import Role, Slot, SlotTraffic
from tests.fakes.http_engine import Client, HttpEngine
from tests.fakes.loopback import free_port
from tests.fakes.users_haproxy import TendedGateway

DEADLINE_S = 15.0
Real: TypeAlias = HAProxyGateway | TendedGateway | EnvoyGateway


async def until(met: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not await met():
            await asyncio.sleep(0.02)


class Stage:
    """Both engines, behind a gateway that ``make`` makes as its classes are made."""

    def __init__(
        self, make: Callable[..., Real], directory: Path, *, log_requests: bool = False
    ) -> None:
        self.production, self.candidate = HttpEngine("production-0"), HttpEngine("canary-0")
        self.directory = directory
        self.port = free_port()
        self.client = Client(self.port)
        self.topology = Listening(
            port=self.port,
            metrics_port=free_port(),
            slots=(
                Slot(name="production-0", role=Role.PRODUCTION, port=self.production.port),
                Slot(name="canary-0", role=Role.CANARY, port=self.candidate.port),
            ),
            log_requests=log_requests,
        )
        self.gateway = make(directory=directory, topology=self.topology)

    async def traffic(self, slot: str) -> SlotTraffic:
        traffic = (await self.gateway.read()).slot(slot)
        assert traffic is not None
        return traffic

    async def until_up(self) -> None:
        async def met() -> bool:
            return all(slot.up for slot in (await self.gateway.read()).slots)

        await until(met)


@asynccontextmanager
async def staged(
    make: Callable[..., Real], directory: Path, *, log_requests: bool = False
) -> AsyncIterator[Stage]:
    """A stage whose slots are both admitted and healthy; all of it ends with the block."""
    stage = Stage(make, directory, log_requests=log_requests)
    await stage.production.start()
    await stage.candidate.start()
    try:
        await stage.gateway.start()
        await stage.gateway.admit("production-0")
        await stage.gateway.admit("canary-0")
        await stage.until_up()
        yield stage
    finally:
        await stage.client.close()
        await stage.gateway.stop()
        await stage.production.stop()
        await stage.candidate.stop()
