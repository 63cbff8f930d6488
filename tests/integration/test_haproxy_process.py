"""HAProxy's own life: it outlives the controller, is found again, and ends only when asked."""

import asyncio
import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from canary.gateways import haproxy_process
from canary.gateways.haproxy import HAProxyGateway
from canary.gateways.haproxy_runtime import ControlSocket
from domain.errors import BadInput, GatewayUnverified, Temporary
from domain.fleet import Role, Slot
from tests.fakes.loopback import free_port

ROOT = Path(__file__).parents[2]
SLOT = Slot(name="canary-0", role=Role.CANARY, port=9)

# A controller that holds a lock on a file it would let a child inherit, starts the gateway, makes
# a change and then waits to be killed.
CONTROLLER = """
import asyncio, fcntl, os, sys, time
from pathlib import Path
from canary.gateways.haproxy import HAProxyGateway
from domain.fleet import Role, Slot

directory, port, metrics_port = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
lock = open(directory.parent / "lock", "w")
os.set_inheritable(lock.fileno(), True)
fcntl.flock(lock, fcntl.LOCK_EX)

async def main():
    slot = Slot(name="canary-0", role=Role.CANARY, port=9)
    gateway = HAProxyGateway(
        directory=directory, port=port, metrics_port=metrics_port, slots=(slot,)
    )
    await gateway.start()
    await gateway.admit("canary-0")
    await gateway.set_weight(30)

asyncio.run(main())
print("ready", flush=True)
time.sleep(60)
"""


def gateway_on(directory: Path, **changed: object) -> HAProxyGateway:
    values = {"port": free_port(), "metrics_port": free_port(), "slots": (SLOT,)} | changed
    return HAProxyGateway(directory=directory, **values)


@pytest.fixture
def directory(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    path = tmp_path / getattr(request, "param", "gateway")
    yield path
    haproxy_process.end(path)


async def test_it_outlives_a_killed_controller_and_takes_nothing_of_it_along(directory: Path):
    port, metrics_port = free_port(), free_port()
    controller = subprocess.Popen(
        [sys.executable, "-c", CONTROLLER, directory, str(port), str(metrics_port)],
        stdout=subprocess.PIPE,
        start_new_session=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "SECRET": "s3cret"},
    )
    try:
        assert controller.stdout is not None
        assert controller.stdout.readline() == b"ready\n"
        os.killpg(controller.pid, signal.SIGKILL)
        # The pipe closes only when nobody holds its other end any more.
        assert controller.stdout.read() == b""
    finally:
        controller.kill()
        controller.wait()
        assert controller.stdout is not None
        controller.stdout.close()
    [process] = haproxy_process.find(directory)
    assert os.getsid(process.pid) == process.pid
    assert "SECRET" not in process.environ()
    with (directory.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    gateway = gateway_on(directory, port=port, metrics_port=metrics_port)
    await gateway.start()
    assert haproxy_process.find(directory) == [process]
    split = await gateway.read()
    assert (split.weight, split.slots[0].admitted) == (30, True)
    await gateway.stop()
    assert haproxy_process.find(directory) == []
    assert not psutil.pid_exists(process.pid) or process.status() == psutil.STATUS_ZOMBIE


async def test_it_comes_back_with_its_state_also_when_started_by_hand(directory: Path):
    gateway = gateway_on(directory)
    await gateway.start()
    await gateway.admit("canary-0")
    await gateway.set_weight(30)
    await gateway.stop()
    haproxy_process.launch(haproxy_process.bundled_binary(), directory)
    split = await gateway.read()
    assert (split.weight, split.slots[0].admitted) == (30, True)


async def test_a_change_kept_by_a_controller_that_was_killed_before_making_it(directory: Path):
    """What is in force is told until HAProxy restarts; the change may be made again."""
    gateway = gateway_on(directory)
    await gateway.start()
    await gateway.set_weight(30)
    state = (directory / "state.json").read_text()
    (directory / "state.json").write_text(state.replace("30", "50"))
    await gateway.start()
    assert (await gateway.read()).weight == 30
    await gateway.admit("canary-0")
    assert (await gateway.read()).weight == 30
    await gateway.set_weight(50)
    assert (await gateway.read()).weight == 50


async def test_two_controllers_never_start_two(directory: Path):
    gateway = gateway_on(directory)
    directory.mkdir()
    with (directory / "start.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(Temporary, match="Another controller is starting"):
            await gateway.start()
    assert haproxy_process.find(directory) == []
    await gateway.start()
    assert len(haproxy_process.find(directory)) == 1


async def test_a_taken_port_is_named(directory: Path, tmp_path: Path):
    """Also one that another gateway holds: two on one port would each take half the requests."""
    gateway = gateway_on(directory)
    await gateway.start()
    port = int(gateway.url.rpartition(":")[2])
    with pytest.raises(BadInput, match=f"Port {port} is in use"):
        await gateway_on(tmp_path / "other", port=port).start()
    assert haproxy_process.find(tmp_path / "other") == []


async def test_other_slots_than_those_it_runs_with_are_refused(directory: Path):
    gateway = gateway_on(directory)
    await gateway.start()
    with pytest.raises(BadInput, match="other slots or ports"):
        await gateway_on(directory).start()
    assert (await gateway.read()).weight == 0


@pytest.mark.parametrize("binary", ["missing", "state.json", "."])
async def test_a_binary_that_does_not_run_is_named(directory: Path, binary: str):
    with pytest.raises(BadInput, match="HAProxy cannot be run at"):
        await gateway_on(directory, binary=directory / binary).start()


async def test_a_directory_that_cannot_be_used_is_named(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="file/gateway: Not a directory"):
        await gateway_on(tmp_path / "file" / "gateway").start()


async def test_a_full_disk_is_named_and_changes_nothing(directory: Path):
    gateway = gateway_on(directory)
    await gateway.start()
    await gateway.set_weight(30)
    (directory / "state.json.new").symlink_to("/dev/full")
    with pytest.raises(Temporary, match="No space left on device"):
        await gateway.set_weight(50)
    assert (await gateway.read()).weight == 30
    await gateway.stop()
    with pytest.raises(BadInput, match="No space left on device"):
        await gateway.start()
    (directory / "state.json.new").unlink()
    await gateway.start()
    assert (await gateway.read()).weight == 30


async def test_a_state_that_nobody_wrote_is_refused(directory: Path):
    directory.mkdir()
    (directory / "state.json").write_text('{"weight": "much"}')
    with pytest.raises(BadInput, match=r"state\.json is not a state"):
        await gateway_on(directory).start()


@pytest.mark.parametrize("directory", ["a long name " * 15], indirect=True)
async def test_a_path_longer_than_a_socket_may_have(directory: Path):
    gateway = gateway_on(directory)
    await gateway.start()
    await gateway.set_weight(30)
    assert (await gateway.read()).weight == 30


async def test_one_that_hangs_is_told_as_not_answering_and_is_ended_all_the_same(directory: Path):
    gateway = gateway_on(directory)
    await gateway.start()
    [process] = haproxy_process.find(directory)
    process.suspend()
    with pytest.raises(Temporary, match="does not answer in time"):
        await gateway.read()
    with pytest.raises(Temporary, match="and does not answer; stop it"):
        await gateway.start()
    await gateway.stop()
    assert haproxy_process.find(directory) == []


class DeafHAProxy:
    """A control socket that takes every command and changes nothing."""

    def __init__(self, answers: dict[str, str]) -> None:
        self._answers = answers

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        command = (await reader.readline()).decode().strip()
        writer.write(self._answers.get(command, "\n").encode())
        await writer.drain()
        writer.close()
        await writer.wait_closed()


async def test_a_change_that_was_taken_and_not_made_is_unverified(directory: Path):
    gateway = gateway_on(directory)
    await gateway.start()
    asked = ("show map weight.map", "show servers state", "show stat")
    answers = {command: await ControlSocket(directory).ask(command) for command in asked}
    await gateway.stop()
    server = await asyncio.start_unix_server(DeafHAProxy(answers).serve, directory / "control.sock")
    async with server:
        with pytest.raises(GatewayUnverified, match="set to 30 % and reads 0 %"):
            await gateway.set_weight(30)
        with pytest.raises(GatewayUnverified, match="asked to admit canary-0"):
            await gateway.admit("canary-0")
        await gateway.drain("canary-0")
