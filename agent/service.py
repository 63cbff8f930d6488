"""`serinus up` and `serinus down`: run the composed service in this process, or stop its fleet."""

from __future__ import annotations

import asyncio
import logging
import signal
import time

from agent import gateways
from agent.bootstrap import LEAST_LEASE_S, Service
from agent.settings import Settings
from domain.errors import BadInput
from domain.ports import Clock


async def serve(settings: Settings, clock: Clock | None = None) -> None:
    """Run until SIGINT or SIGTERM. Engines and gateway keep serving for the next controller.

    ``clock`` tells the time instead of the system's.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    for noisy in ("httpx", "httpcore", "httpx2", "httpcore2", "openai", "alembic"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    service = Service(settings, clock)
    try:
        await service.start()
        print(_banner(service), flush=True)
        stop = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        await service.run(stop)
        print(f"The controller ended; engines and gateway keep serving. {_ended_by(settings)}")
    finally:
        await service.close()


async def shut_down(settings: Settings) -> str:
    """Stop engines and gateway; refused while a controller runs, which would start them again."""
    service = Service(settings)
    try:
        deadline_s = time.monotonic() + LEAST_LEASE_S + 4 * settings.cycle_s
        while not service.leadership.renew(time.time()):
            if time.monotonic() > deadline_s:
                raise BadInput("A controller is running; end it with Ctrl-C first.")
            await asyncio.sleep(0.5)
        held = await service.stop_fleet(drain_s=min(settings.drain_s, 10.0))
        service.leadership.release()
    finally:
        await service.close()
    engines = f"{', '.join(held)} stopped" if held else "no engine was running"
    if settings.haproxy_socket is None:
        return f"Down: {engines}; the gateway is stopped."
    return f"Down: {engines}; your HAProxy is left running, with the candidate's weight at 0 %."


def _ended_by(settings: Settings) -> str:
    return f"`serinus down` stops {'the engines' if settings.haproxy_socket else 'them'}."


def _banner(service: Service) -> str:
    settings = service.settings
    at = f"at {gateways.url(settings)}/v1"
    if settings.haproxy_socket is not None:
        at = f"behind your HAProxy at {settings.haproxy_socket}"
    lines = [
        f"Serinus serves {service.model} {at}",
        f"Dashboard: http://127.0.0.1:{settings.api_port}/",
        f"SLO: {service.slo}. Autonomy: {settings.autonomy.value}.",
    ]
    if settings.simulated:
        lines.append("SIMULATED engines: nothing here measures a real GPU.")
    return "\n".join(lines)
