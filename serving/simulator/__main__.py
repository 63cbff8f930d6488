"""``python -m serving.simulator serve MODEL …``: takes what ``vllm serve`` takes, and serves it.

It alone reads the environment, writes the log and ends the process.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import sys
from types import FrameType

import uvicorn
import uvloop

from domain.engine import EngineConfig
from domain.errors import BadInput
from serving import flags
from serving.simulator import faults, profile, startup
from serving.simulator.core import Core
from serving.simulator.faults import Fault, Injection
from serving.simulator.profile import Profile
from serving.simulator.server import VLLM_VERSION, Server
from serving.simulator.startup import NotStarted

FAULT_VARIABLE = "SERINUS_SIMULATOR_FAULT"
_SEED = 0


def main(argv: list[str]) -> None:
    """Serve until a signal; exit code 2 for a command line that cannot be understood."""
    parser = argparse.ArgumentParser("serving.simulator", allow_abbrev=False)
    parser.add_argument("command", choices=["serve"])
    parser.add_argument("model", help="a profile's name, or the path of a profile's TOML file")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--served-model-name", default=None)
    known, rest = parser.parse_known_args(argv)
    try:
        config = flags.parse(rest, os.environ)
        chosen = profile.load(known.model)
        text = os.environ.get(FAULT_VARIABLE)
        injection = faults.parse(text) if text else None
    except BadInput as error:
        parser.error(str(error))
    try:
        listener = socket.create_server((known.host, known.port), backlog=2048)
    except OSError as error:
        _log(f"OSError: {error}")
        sys.exit(1)
    name = known.served_model_name or known.model
    _log(
        f"This is a SIMULATION of vLLM {VLLM_VERSION}: no model runs here. "
        f"Profile {chosen.name}, model {name}, http://{known.host}:{known.port}, {config}."
    )
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(chosen, config, name, injection, listener))


def _log(*lines: str) -> None:
    for line in lines:
        print(line, file=sys.stderr, flush=True)


def _die(log: tuple[str, ...]) -> None:
    """End as a broken engine does: at once, with every stream cut off in the middle."""
    _log(*log)
    os._exit(1)


class _Uvicorn(uvicorn.Server):
    """Ends at the first signal without waiting for streams, as vLLM does."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.should_exit = self.force_exit = True


async def _serve(
    chosen: Profile,
    config: EngineConfig,
    name: str,
    injection: Injection | None,
    listener: socket.socket,
) -> None:
    early = injection is not None and injection.fault is Fault.HEALTHY_WHILE_COLD
    server = Server(chosen, name, healthy_while_cold=early)
    http = _Uvicorn(uvicorn.Config(server.app, http="httptools", lifespan="off", log_config=None))
    life = asyncio.create_task(_live(chosen, config, injection, server))
    life.add_done_callback(_fail_loudly)
    try:
        await http.serve(sockets=[listener])
    finally:
        life.cancel()
        _log("Shutting down: running requests are aborted.")


def _fail_loudly(life: asyncio.Task[None]) -> None:
    """An engine that ended by a fault of its own code must not look like one that hangs."""
    if not life.cancelled() and (error := life.exception()) is not None:
        _die((f"{type(error).__name__}: {error}",))


async def _live(
    chosen: Profile, config: EngineConfig, injection: Injection | None, server: Server
) -> None:
    """Start up as long as the profile says, then run the engine, or die of what stops it."""
    await asyncio.sleep(chosen.start_s)
    if injection is not None and injection.fault in faults.NEVER_STARTS:
        _die(faults.log_lines(injection.fault))
    outcome = startup.start(chosen, config)
    if isinstance(outcome, NotStarted):
        _die(outcome.log)
    else:
        core = Core(chosen, outcome, _SEED, injection)
        _log("INFO:     Application startup complete.")
        await server.ready(core, _die).run()


if __name__ == "__main__":
    main(sys.argv[1:])
