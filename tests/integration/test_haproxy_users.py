"""A HAProxy that somebody else runs: what it lacks is named, what it forgets is set again, and
nobody but them starts, ends or configures it."""

import asyncio
import os
import re
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from canary.gateways.haproxy_pasted import MAP_NAME
from canary.gateways.haproxy_users import UsersHAProxyGateway
from domain.errors import BadInput, Temporary
from domain.fleet import Role, Slot
from tests.fakes.gateway_stage import Stage, staged
from tests.fakes.http_engine import Client
from tests.fakes.loopback import free_port
from tests.fakes.users_haproxy import TendedGateway, UsersHAProxy

BOTH = {"production-0", "canary-0"}


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    async with staged(TendedGateway, tmp_path / "gateway") as stage:
        yield stage


@pytest.fixture
def theirs(tmp_path: Path) -> Iterator[UsersHAProxy]:
    slots = (
        Slot(name="production-0", role=Role.PRODUCTION, port=free_port()),
        Slot(name="canary-0", role=Role.CANARY, port=free_port()),
    )
    theirs = UsersHAProxy(tmp_path / "theirs", port=free_port(), slots=slots)
    try:
        yield theirs
    finally:
        theirs.kill()


def restarted(stage: Stage) -> UsersHAProxyGateway:
    """The gateway of a controller that finds what runs."""
    return stage.gateway.theirs.gateway(stage.directory)


async def in_force(gateway: UsersHAProxyGateway) -> tuple[int, set[str]]:
    split = await gateway.read()
    return split.weight, {slot.slot for slot in split.slots if slot.admitted}


async def test_a_reload_leaves_production_serving_and_is_no_change_by_hand(stage: Stage):
    """Whoever reads is told that all was forgotten; ``start`` sets it again."""
    theirs, gateway = stage.gateway.theirs, restarted(stage)
    await gateway.set_weight(100)
    stream = Client(stage.port)
    begun = await stream.begin("s")
    assert begun.slot == "canary-0"
    await asyncio.to_thread(theirs.reload)
    await stage.client.close()
    assert {(await stage.client.ask(f"s{n}")).slot for n in range(50)} == {"production-0"}
    for call in (gateway.read(), gateway.set_weight(50), gateway.drain("production-0")):
        with pytest.raises(Temporary, match="was started or reloaded, and has forgotten"):
            await call
    await gateway.start()
    assert await in_force(gateway) == (100, BOTH)
    assert (await stage.client.ask("s")).slot == "canary-0"
    stage.candidate.release()
    assert await stream.rest(begun) == b"firstlast"
    await stream.close()


async def test_production_that_was_drained_is_drained_again_behind_a_candidate_that_serves(
    stage: Stage,
):
    gateway = restarted(stage)
    await gateway.set_weight(100)
    await gateway.drain("production-0")
    await asyncio.to_thread(stage.gateway.theirs.reload)
    await gateway.start()
    assert await in_force(gateway) == (100, {"canary-0"})


async def test_what_somebody_set_by_hand_since_a_reload_stays(stage: Stage):
    gateway = restarted(stage)
    await gateway.set_weight(25)
    await asyncio.to_thread(stage.gateway.theirs.reload)
    await stage.gateway.theirs.by_hand(40, "production-0")
    await gateway.start()
    assert await in_force(gateway) == (40, {"canary-0"})
    await gateway.start()
    assert await in_force(gateway) == (40, {"canary-0"})


async def test_a_controller_that_was_killed_while_it_set_all_again_is_followed_by_one_that_does(
    stage: Stage,
):
    theirs, gateway = stage.gateway.theirs, restarted(stage)
    await gateway.set_weight(25)
    await asyncio.to_thread(theirs.reload)
    await theirs.control.order("set server serinus_production/canary-0 weight 100")
    await restarted(stage).start()
    assert await in_force(gateway) == (25, BOTH)


async def test_a_reload_that_keeps_the_servers_states_never_takes_out_the_arm_that_serves(
    stage: Stage,
):
    """With production drained and down, the candidate serves on, without a controller."""
    theirs, gateway = stage.gateway.theirs, restarted(stage)
    theirs.write(
        replaced("defaults serinus", "defaults serinus\n    load-server-state-from-file global")
    )
    await asyncio.to_thread(theirs.reload)
    await gateway.start()
    await gateway.set_weight(100)
    await gateway.drain("production-0")
    await stage.production.stop()
    state = await theirs.control.ask("show servers state")
    (theirs.directory / "servers.state").write_text(state)
    await asyncio.to_thread(theirs.reload)
    await stage.client.close()
    assert {(await stage.client.ask(f"s{n}")).slot for n in range(50)} == {"canary-0"}
    await gateway.start()
    assert await in_force(gateway) == (100, {"canary-0"})


async def test_it_is_never_ended_nor_configured(stage: Stage):
    theirs, gateway = stage.gateway.theirs, restarted(stage)
    before = {path.name: path.read_bytes() for path in theirs.directory.iterdir() if path.is_file()}
    await gateway.set_weight(100)
    await gateway.stop()
    await gateway.stop()
    assert await in_force(gateway) == (0, BOTH)
    assert (await stage.client.ask("s")).slot == "production-0"
    await restarted(stage).start()
    assert await in_force(gateway) == (0, BOTH)
    after = {path.name: path.read_bytes() for path in theirs.directory.iterdir() if path.is_file()}
    assert after == before


async def test_one_that_does_not_run_is_left_with_a_weight_of_zero(stage: Stage):
    theirs, gateway = stage.gateway.theirs, restarted(stage)
    await gateway.set_weight(25)
    await asyncio.to_thread(theirs.kill)
    await gateway.stop()
    with pytest.raises(Temporary, match=r"not running: its control socket .*admin\.sock is closed"):
        await gateway.start()
    await asyncio.to_thread(theirs.launch)
    await gateway.start()
    assert await in_force(gateway) == (0, BOTH)


async def test_one_that_is_no_longer_configured_for_serinus_is_let_go_of(stage: Stage):
    theirs, gateway = stage.gateway.theirs, restarted(stage)
    await gateway.set_weight(25)
    theirs.write(replaced(f"int.{MAP_NAME}", "int(weight.map"))
    (theirs.directory / "weight.map").write_text("weight 0\n")
    await asyncio.to_thread(theirs.reload)
    await gateway.stop()
    with pytest.raises(BadInput, match="reads no map"):
        await gateway.start()


async def test_their_own_requests_are_left_alone(stage: Stage):
    for weight in (0, 100):
        await stage.gateway.set_weight(weight)
        answer = await stage.client.ask("s", path="/theirs/and/more")
        assert (answer.body, answer.slot, answer.arm) == (b"theirs", "", "")


async def test_their_limits_do_not_reach_the_arms(stage: Stage):
    """Their servers take one request at a time, which would queue behind a stream."""
    streams = [Client(stage.port) for _ in range(3)]
    begun = [await client.begin(f"s{n}") for n, client in enumerate(streams)]
    assert {answer.slot for answer in begun} == {"production-0"}
    stage.production.release()
    for client, answer in zip(streams, begun, strict=True):
        assert await client.rest(answer) == b"firstlast"
        await client.close()


def replaced(pattern: str, by: str) -> Callable[[str], str]:
    return partial(re.sub, pattern, by)


def unchecked(config: str) -> str:
    return re.sub(r"(server canary-0 .*) check .*", r"\1", config).replace(
        " track serinus_candidate/canary-0", ""
    )


LACKING: dict[str, tuple[Callable[[str], str], str]] = {
    "a backend": (
        replaced("serinus_candidate", "other"),
        "has no backend serinus_candidate with a server",
    ),
    "a server": (
        replaced(r"(server |/)canary-0 ", r"\1lane "),
        "has no server serinus_candidate/canary-0",
    ),
    "a port": (
        replaced(r"(server canary-0 127.0.0.1:)\d+ (.* check)", r"\g<1>9 \2"),
        "has serinus_candidate/canary-0 at 127.0.0.1:9, and its engine listens at 127.0.0.1:",
    ),
    "an address": (
        replaced("server canary-0 127.0.0.1", "server canary-0 127.0.0.2"),
        "has serinus_candidate/canary-0 at 127.0.0.2:",
    ),
    "a backup": (
        replaced("production-0 backup", "production-0"),
        "has serinus_candidate/production-0 not as a backup",
    ),
    "an arm of its own": (
        replaced(r"(server canary-0 .* check)", r"\1 backup"),
        "has serinus_candidate/canary-0 as a backup",
    ),
    "a health check": (unchecked, "does not check the health of serinus_candidate/canary-0"),
    "the map": (
        replaced(f"int.{MAP_NAME}", "int(weight.map"),
        f"reads no map whose file is named {MAP_NAME}",
    ),
    "one map alone": (
        replaced(
            "backend theirs",
            f"backend theirs\n    http-request set-var(txn.a) str(a),map(other-{MAP_NAME})",
        ),
        f"reads 2 maps whose files are named {MAP_NAME}",
    ),
    "the right to change anything": (
        replaced("level admin", "level operator"),
        "has the level 'operator'.*level admin",
    ),
}


@pytest.mark.parametrize(("edited", "sentence"), LACKING.values(), ids=LACKING)
async def test_the_first_thing_that_is_missing_is_named(
    theirs: UsersHAProxy, tmp_path: Path, edited: Callable[[str], str], sentence: str
):
    for name in ("weight.map", f"other-{MAP_NAME}"):
        (theirs.directory / name).write_text("weight 0\n")
    theirs.write(edited)
    await asyncio.to_thread(theirs.launch)
    with pytest.raises(BadInput, match=sentence) as refused:
        await theirs.gateway(tmp_path / "gateway").start()
    assert str(refused.value).count("\n") == 0
    assert not (tmp_path / "gateway").exists()


async def test_a_socket_of_something_else_is_refused(theirs: UsersHAProxy, tmp_path: Path):
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(b"Unknown command\n")
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_unix_server(serve, theirs.socket):
        with pytest.raises(BadInput, match="haproxy_socket is no `stats socket`"):
            await theirs.gateway(tmp_path / "gateway").start()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may use every socket")
async def test_a_socket_that_this_user_may_not_use_is_named(theirs: UsersHAProxy, tmp_path: Path):
    await asyncio.to_thread(theirs.launch)
    theirs.socket.chmod(0)
    with pytest.raises(BadInput, match="may not use the control socket"):
        await theirs.gateway(tmp_path / "gateway").start()


async def test_two_controllers_never_set_at_once(stage: Stage):
    gateway = restarted(stage)
    with gateway._kept.alone(), pytest.raises(Temporary, match="Another controller is starting"):
        await gateway.start()


async def test_before_serinus_has_told_it_anything_production_serves(theirs: UsersHAProxy):
    await asyncio.to_thread(theirs.launch)
    state = await theirs.control.ask("show servers state")
    weights = {tuple(line.split()[1:4:2]): line.split()[7] for line in state.splitlines()[2:-1]}
    assert set(weights.values()) == {"0", "100"}
    assert {name for (_, name), weight in weights.items() if weight == "100"} == {"production-0"}
