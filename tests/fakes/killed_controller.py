"""Controllers that are killed before their first effect, before their second, and so on.

Run as a program: ``killed_controller.py (start|stop) DIRECTORY PORT...``. For the n-th port a
process of its own starts or stops an engine under ``DIRECTORY/n`` and ends itself by SIGKILL just
before its n-th effect on files or processes; one that had none left ends well. Prints how each
ended.
"""

import asyncio
import os
import signal
import sys
from pathlib import Path

from domain.engine import EngineConfig
from domain.fleet import Role, Slot
from serving.launchers.process import ProcessLauncher
from tests.fakes.clock import SystemClock

ENGINE = Path(__file__).with_name("engine_script.py")
CONFIG = EngineConfig.of({"variant": "one"})
EFFECTS = {"os.mkdir", "os.posix_spawn", "os.rename", "os.remove", "os.kill"}


def slot(port: int) -> Slot:
    return Slot(name="canary-0", role=Role.CANARY, port=port)


def launcher(directory: Path) -> ProcessLauncher:
    return ProcessLauncher(
        directory=directory,
        executable=(sys.executable, str(ENGINE)),
        model="tiny",
        served_model_name="tiny",
        render=lambda config: (tuple(f"--{k}={v}" for k, v in config.values), {}),
        start_timeout_s=60.0,
        clock=SystemClock(),
    )


def _die_before_effect(number: int, directory: Path) -> None:
    done = 0

    def watch(event: str, args: tuple[object, ...]) -> None:
        nonlocal done
        opened_here = event == "open" and str(args[0]).startswith(str(directory))
        if event in EFFECTS or opened_here:
            if done == number:
                os.kill(os.getpid(), signal.SIGKILL)
            done += 1

    dying = False

    def once(event: str, args: tuple[object, ...]) -> None:
        nonlocal dying
        if not dying:
            # The kill is an effect itself.
            dying = done == number
            watch(event, args)
            dying = False

    sys.addaudithook(once)


async def _act(action: str, directory: Path, port: int) -> None:
    controller = launcher(directory)
    if action == "start":
        await controller.start(slot(port), CONFIG)
    else:
        await controller.stop(slot(port), 0.0)


def main() -> None:
    action, directory, *ports = sys.argv[1:]
    for number, port in enumerate(ports):
        child = os.fork()
        if child == 0:
            own = Path(directory) / str(number)
            _die_before_effect(number, own)
            asyncio.run(_act(action, own, int(port)))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
