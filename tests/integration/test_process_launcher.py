"""The process launcher against real processes: what starts, what is found again, what ends."""

import asyncio
import json
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from domain.engine import EngineConfig
from domain.errors import BadInput, Conflict
from domain.fleet import Replica, ReplicaState, Role, Slot
from domain.study import FailureKind
from serving.launchers.process import ProcessLauncher
from tests.fakes import killed_controller
from tests.fakes.clock import SteeredClock
from tests.fakes.loopback import free_port

ENGINE = Path(__file__).parents[1] / "fakes" / "engine_script.py"
DEADLINE_S = 20.0
NOW_S = 1_000_000.0


class Place:
    """A directory, a slot and a clock, and launchers over them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.slot = Slot(name="canary-0", role=Role.CANARY, port=free_port(), gpu_ids=("2", "3"))
        # Grace periods pass ten times as fast.
        self.clock = SteeredClock(NOW_S, pace=0.1)
        self.launchers: list[ProcessLauncher] = []
        self.launcher = self.controller()

    @property
    def engines(self) -> Path:
        return self.directory / "engines"

    @property
    def record(self) -> Path:
        return self.engines / self.slot.name / "replica.json"

    @property
    def log(self) -> str:
        return (self.engines / self.slot.name / "engine.log").read_text()

    def controller(
        self, executable: tuple[str, ...] = (sys.executable, str(ENGINE)), engines: str = "engines"
    ) -> ProcessLauncher:
        launcher = ProcessLauncher(
            directory=self.directory / engines,
            executable=executable,
            model="tiny",
            served_model_name="canary",
            render=lambda config: (
                tuple(f"--{knob.replace('_', '-')}={value}" for knob, value in config.values),
                {"OMP_NUM_THREADS": "1"},
            ),
            extra_args=("--variant=extra",),
            start_timeout_s=300.0,
            clock=self.clock,
        )
        self.launchers.append(launcher)
        return launcher

    def switch(self, name: str) -> Path:
        """A file that turns an engine's knob on while it exists."""
        path = self.directory / name
        path.touch()
        return path

    async def start(self, **knobs: str | int) -> None:
        await self.launcher.start(self.slot, EngineConfig.of(knobs))

    async def until(self, wanted: Callable[[Replica | None], bool]) -> Replica | None:
        async with asyncio.timeout(DEADLINE_S):
            while True:
                replica = next(iter(await self.launcher.observe()), None)
                if wanted(replica):
                    return replica
                await asyncio.sleep(0.02)

    async def in_state(self, state: ReplicaState) -> Replica:
        replica = await self.until(lambda r: r is not None and r.state is state)
        assert replica is not None
        return replica

    async def logged(self, text: str, times: int = 1) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while self.log.count(text) < times:
                await asyncio.sleep(0.02)


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    place = Place(tmp_path)
    yield place
    await place.launcher.stop(place.slot, 0.0)
    for launcher in place.launchers:
        await launcher.aclose()


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    """A process that is none of ours to touch."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        yield process
        process.kill()


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def engines_on(port: int) -> list[int]:
    """Processes whose command line is that of an engine on this port."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            line = process.cmdline()
            if "serve" in line and str(port) in line:
                found.append(process.pid)
    return found


# What is started


async def test_the_command_line_and_the_environment_of_an_engine(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERINUS_API_TOKEN", "quiet")
    monkeypatch.setenv("HF_TOKEN", "quiet")
    monkeypatch.setenv("HF_HOME", str(place.directory))
    await place.start(show_start="yes")
    await place.in_state(ReplicaState.WARM)
    lines = dict(line.split(": ", 1) for line in place.log.splitlines() if ": " in line)
    assert lines["arguments"] == (
        f"serve tiny --host 127.0.0.1 --port {place.slot.port} --served-model-name canary "
        "--show-start=yes --variant=extra"
    )
    names = lines["environment"].split()
    assert {"HF_HOME", "OMP_NUM_THREADS", "PATH", "SERINUS_ENGINE_TOKEN"} <= set(names)
    assert not {"SERINUS_API_TOKEN", "HF_TOKEN"} & set(names)
    assert lines["GPUs"] == "2,3"
    assert lines["leads its session"] == "True"
    assert lines["input"] == "''"


async def test_an_engine_holds_no_file_of_the_controller(place: Place) -> None:
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    await place.start()
    await place.in_state(ReplicaState.WARM)
    os.close(writer)
    # With the engine holding the other end this would block instead of telling the end.
    os.set_blocking(reader, False)
    assert os.read(reader, 1) == b""
    os.close(reader)


async def test_the_log_of_the_start_before_is_kept(place: Place) -> None:
    await place.start(say="first")
    await place.in_state(ReplicaState.WARM)
    await place.launcher.stop(place.slot, 0.0)
    assert place.launcher.log_tail(place.slot).startswith("first")
    await place.start(say="second")
    await place.in_state(ReplicaState.WARM)
    assert place.launcher.log_tail(place.slot).startswith("second")
    kept = place.engines / place.slot.name / "engine.previous.log"
    assert kept.read_text().startswith("first")


# What cannot be started


@pytest.mark.parametrize("kind", ["missing", "not executable", "a directory", "not a program"])
async def test_what_cannot_be_run_is_named_and_leaves_nothing(place: Place, kind: str) -> None:
    path = place.directory / "engine"
    if kind == "not executable":
        path.touch(mode=0o644)
    elif kind == "a directory":
        path.mkdir()
    elif kind == "not a program":
        path.write_bytes(b"\x00nothing")
        path.chmod(0o755)
    place.launcher = place.controller(executable=(str(path),))
    with pytest.raises(BadInput, match=str(path)):
        await place.start()
    assert await place.launcher.observe() == ()
    assert not place.record.exists()


async def test_a_port_in_use_is_named_with_its_slot(place: Place) -> None:
    with socket.create_server(("127.0.0.1", place.slot.port)):
        with pytest.raises(Conflict, match=f"Port {place.slot.port} of slot canary-0 is not free"):
            await place.start()
        assert await place.launcher.observe() == ()
    await place.start()
    await place.in_state(ReplicaState.WARM)


async def test_a_directory_that_cannot_be_written_is_named(place: Place) -> None:
    (place.directory / "a-file").touch()
    place.launcher = place.controller(engines="a-file")
    with pytest.raises(BadInput, match="a-file"):
        await place.start()
    assert engines_on(place.slot.port) == []


async def test_a_full_disk_starts_nothing(place: Place) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        with pytest.raises(BadInput, match="has room"):
            await place.start()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert engines_on(place.slot.port) == []
    assert await place.launcher.observe() == ()
    await place.start()
    await place.in_state(ReplicaState.WARM)


async def test_a_slot_on_another_port_is_another_place(place: Place) -> None:
    await place.start()
    moved = Slot(name=place.slot.name, role=Role.CANARY, port=free_port(), gpu_ids=("2", "3"))
    with pytest.raises(Conflict, match=str(moved.port)):
        await place.launcher.start(moved, EngineConfig())


# Ready and warm


async def test_health_alone_is_not_warm(place: Place) -> None:
    """A replica gets traffic only after a completed inference (vllm#30561)."""
    hold = place.switch("hold")
    await place.start(hold_completions_while=str(hold))
    await place.until(lambda r: r is not None and "inference is under way" in r.detail)
    for _ in range(3):
        replica = await place.in_state(ReplicaState.STARTING)
        assert replica.detail == "the warm-up inference is under way"
    hold.unlink()
    await place.in_state(ReplicaState.WARM)


async def test_an_inference_without_a_token_is_not_warm(place: Place) -> None:
    await place.start(no_tokens="yes")
    replica = await place.until(lambda r: r is not None and "no token" in r.detail)
    assert replica is not None
    assert replica.state is ReplicaState.STARTING


async def test_a_warm_up_lost_with_its_controller_is_repeated(place: Place) -> None:
    hold = place.switch("hold")
    await place.start(hold_completions_while=str(hold))
    await place.until(lambda r: r is not None and "inference is under way" in r.detail)
    await place.launcher.aclose()
    place.launcher = place.controller()
    assert (await place.in_state(ReplicaState.STARTING)).pid is not None
    hold.unlink()
    await place.in_state(ReplicaState.WARM)


# Late, hung and dead


async def test_a_late_engine_is_dead_and_can_be_stopped(place: Place) -> None:
    await place.start(never_ready="yes")
    replica = await place.in_state(ReplicaState.STARTING)
    place.clock.advance(301.0)
    dead = await place.in_state(ReplicaState.DEAD)
    assert dead.failure is not None
    assert dead.failure.kind is FailureKind.START_TIMEOUT
    assert dead.detail == dead.failure.sentence
    assert dead.detail.startswith("Not ready 300 s after its start: /health")
    with pytest.raises(Conflict, match="Not ready 300 s after its start"):
        await place.start(never_ready="yes")
    await place.launcher.stop(place.slot, 60.0)
    assert replica.pid is not None
    assert not alive(replica.pid)


async def test_a_warm_engine_that_stops_answering_is_hung_for_good(place: Place) -> None:
    hang = place.directory / "hang"
    await place.start(hang_while=str(hang))
    await place.in_state(ReplicaState.WARM)
    hang.touch()
    replica = await place.in_state(ReplicaState.WARM)
    assert "1 look" in replica.detail
    place.clock.advance(20.0)
    dead = await place.in_state(ReplicaState.DEAD)
    assert dead.failure is not None
    assert dead.failure.kind is FailureKind.HUNG
    hang.unlink()
    assert await place.in_state(ReplicaState.DEAD) == dead
    place.launcher = place.controller()
    assert await place.in_state(ReplicaState.DEAD) == dead


async def test_out_of_memory_at_the_start_is_told_with_its_line(place: Place) -> None:
    line = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    await place.start(say=line, exit_at_start=1)
    dead = await place.in_state(ReplicaState.DEAD)
    assert dead.failure is not None
    assert dead.failure.kind is FailureKind.OUT_OF_MEMORY
    assert dead.detail == f"The engine ran out of memory before it was ready: {line}"
    assert line in place.launcher.log_tail(place.slot)


async def test_an_exit_without_a_word_is_told_with_its_code(place: Place) -> None:
    await place.start(exit_at_start=7)
    dead = await place.in_state(ReplicaState.DEAD)
    assert dead.failure is not None
    assert dead.failure.kind is FailureKind.START
    assert dead.detail == "The engine ended with exit code 7 before it was ready."


async def test_an_engine_killed_from_outside_is_told_with_the_signal(place: Place) -> None:
    await place.start()
    replica = await place.in_state(ReplicaState.WARM)
    assert replica.pid is not None
    os.kill(replica.pid, signal.SIGKILL)
    dead = await place.in_state(ReplicaState.DEAD)
    assert dead.failure is not None
    assert dead.failure.kind is FailureKind.KILLED
    assert "after it had served" in dead.detail


# Whose process it is


async def test_a_reused_pid_is_never_touched(
    place: Place, bystander: subprocess.Popen[bytes]
) -> None:
    await place.start()
    replica = await place.in_state(ReplicaState.WARM)
    assert replica.pid is not None
    os.kill(replica.pid, signal.SIGKILL)
    record = json.loads(place.record.read_text())
    reused = {"pid": bystander.pid, "created_s": record["created_s"] - 60}
    place.record.write_text(json.dumps({**record, **reused}))
    place.launcher = place.controller()
    assert (await place.in_state(ReplicaState.DEAD)).pid == bystander.pid
    await place.launcher.stop(place.slot, 60.0)
    assert await place.launcher.observe() == ()
    assert bystander.poll() is None


async def test_a_jump_of_the_clock_does_not_lose_an_engine(place: Place) -> None:
    """The system derives creation times from its clock; the token holds through a jump."""
    await place.start()
    before = await place.in_state(ReplicaState.WARM)
    record = json.loads(place.record.read_text())
    place.record.write_text(json.dumps({**record, "created_s": record["created_s"] - 3600}))
    place.launcher = place.controller()
    assert await place.in_state(ReplicaState.WARM) == before


async def test_no_controller_killed_while_starting_loses_or_doubles_an_engine(
    tmp_path: Path,
) -> None:
    ports = [free_port() for _ in range(14)]
    endings = await killed("start", tmp_path, ports)
    assert {-signal.SIGKILL, 0} == set(endings), "each effect, and then none, was cut off"
    for number, port in enumerate(ports):
        slot = killed_controller.slot(port)
        launcher = killed_controller.launcher(tmp_path / str(number))
        observed = await launcher.observe()
        running = engines_on(port)
        assert len(running) <= 1
        assert [replica.pid for replica in observed] == running
        await launcher.start(slot, killed_controller.CONFIG)
        again = engines_on(port)
        assert len(again) == 1
        assert again == running or not running
        await launcher.stop(slot, 0.0)
        assert engines_on(port) == []
        await launcher.aclose()


async def test_a_stop_is_finished_whenever_its_controller_was_killed(tmp_path: Path) -> None:
    ports = [free_port() for _ in range(12)]
    for number, port in enumerate(ports):
        launcher = killed_controller.launcher(tmp_path / str(number))
        await launcher.start(killed_controller.slot(port), killed_controller.CONFIG)
        await launcher.aclose()
    endings = await killed("stop", tmp_path, ports)
    assert {-signal.SIGKILL, 0} == set(endings), "each effect, and then none, was cut off"
    for number, port in enumerate(ports):
        launcher = killed_controller.launcher(tmp_path / str(number))
        record = tmp_path / str(number) / "canary-0" / "replica.json"
        async with asyncio.timeout(DEADLINE_S):
            if record.exists() and json.loads(record.read_text())["stop_by_s"] is None:
                # Killed before the stop was on disk: it was never asked for.
                await launcher.stop(killed_controller.slot(port), 0.0)
            while replicas := await launcher.observe():
                assert [r.state for r in replicas] == [ReplicaState.STOPPING]
                await asyncio.sleep(0.05)
        assert engines_on(port) == []
        await launcher.aclose()


async def killed(action: str, directory: Path, ports: list[int]) -> list[int]:
    program = await asyncio.create_subprocess_exec(
        sys.executable,
        str(Path(killed_controller.__file__)),
        action,
        str(directory),
        *map(str, ports),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    output, _ = await program.communicate()
    assert program.returncode == 0
    return [int(line) for line in output.split()]


# Stopping


async def test_a_stop_waits_for_running_requests(place: Place) -> None:
    busy = place.switch("busy")
    await place.start(busy_while=str(busy))
    replica = await place.in_state(ReplicaState.WARM)
    assert replica.pid is not None
    stop = asyncio.ensure_future(place.launcher.stop(place.slot, 600.0))
    await place.logged("GET /metrics", times=4)
    assert alive(replica.pid)
    assert (await place.in_state(ReplicaState.STOPPING)).pid == replica.pid
    busy.unlink()
    await stop
    assert not alive(replica.pid)
    assert not place.record.exists()


async def test_gauges_that_cannot_be_read_count_as_in_use_until_the_drain_is_over(
    place: Place,
) -> None:
    await place.start(no_metrics="yes")
    replica = await place.in_state(ReplicaState.WARM)
    assert replica.pid is not None
    stop = asyncio.ensure_future(place.launcher.stop(place.slot, 600.0))
    await place.logged("GET /metrics", times=4)
    assert alive(replica.pid)
    place.clock.advance(601.0)
    await stop
    assert not alive(replica.pid)


async def test_a_second_stop_can_shorten_the_wait(place: Place) -> None:
    busy = place.switch("busy")
    await place.start(busy_while=str(busy))
    await place.in_state(ReplicaState.WARM)
    patient = asyncio.ensure_future(place.launcher.stop(place.slot, 600.0))
    await place.logged("GET /metrics")
    await place.launcher.stop(place.slot, 0.0)
    await patient
    assert await place.launcher.observe() == ()


async def test_a_caller_that_gives_up_does_not_call_off_the_stop(place: Place) -> None:
    busy = place.switch("busy")
    await place.start(busy_while=str(busy))
    await place.in_state(ReplicaState.WARM)
    stop = asyncio.ensure_future(place.launcher.stop(place.slot, 600.0))
    await place.logged("GET /metrics")
    stop.cancel()
    await place.in_state(ReplicaState.STOPPING)
    busy.unlink()
    await place.until(lambda replica: replica is None)


async def test_an_engine_that_ignores_the_request_to_end_is_killed(place: Place) -> None:
    await place.start(ignore_terminate="yes")
    replica = await place.in_state(ReplicaState.WARM)
    assert replica.pid is not None
    await place.launcher.stop(place.slot, 0.0)
    assert not alive(replica.pid)


@pytest.mark.parametrize("parent", ["alive", "killed before"])
async def test_workers_in_sessions_of_their_own_end_with_their_engine(
    place: Place, parent: str
) -> None:
    await place.start(workers=2)
    replica = await place.in_state(ReplicaState.WARM)
    assert replica.pid is not None
    workers = [int(line.split()[1]) for line in place.log.splitlines() if "worker:" in line]
    if parent == "killed before":
        os.kill(replica.pid, signal.SIGKILL)
        await place.in_state(ReplicaState.DEAD)
    assert [alive(worker) for worker in workers] == [True, True]
    await place.launcher.stop(place.slot, 0.0)
    assert [alive(worker) for worker in workers] == [False, False]


# With the simulated engine


@pytest.fixture
def simulated(place: Place) -> Place:
    flags = pytest.importorskip("serving.flags", reason="there is no renderer of configs yet")
    pytest.importorskip("serving.simulator.__main__", reason="there is no simulated engine yet")
    place.launcher = ProcessLauncher(
        directory=place.engines,
        executable=(sys.executable, "-m", "serving.simulator"),
        model="demo-hybrid",
        served_model_name="canary",
        render=flags.command_line,
        start_timeout_s=300.0,
        clock=place.clock,
    )
    place.launchers.append(place.launcher)
    return place


async def test_the_simulated_engine_is_started_warmed_and_drained(simulated: Place) -> None:
    await simulated.start(max_num_seqs=64)
    replica = await simulated.in_state(ReplicaState.WARM)
    assert replica.pid is not None
    await simulated.launcher.stop(simulated.slot, 600.0)
    assert not alive(replica.pid)


async def test_the_simulated_engine_s_failures_are_told_apart(
    simulated: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERINUS_SIMULATOR_FAULT", "oom_at_start")
    await simulated.start(max_num_seqs=64)
    dead = await simulated.in_state(ReplicaState.DEAD)
    assert dead.failure is not None
    assert dead.failure.kind is FailureKind.OUT_OF_MEMORY
    await simulated.launcher.stop(simulated.slot, 0.0)
    monkeypatch.setenv("SERINUS_SIMULATOR_FAULT", "start_failure")
    await simulated.start(max_num_seqs=64)
    dead = await simulated.in_state(ReplicaState.DEAD)
    assert dead.failure is not None
    assert dead.failure.kind is FailureKind.START
