"""An in-memory Gateway that splits as HAProxy does, and the means to disturb it from outside."""

from dataclasses import dataclass, field
from random import Random

import xxhash

from domain.errors import BadInput, GatewayUnverified, Temporary
from domain.fleet import Role, Slot, SlotTraffic, Split

BUCKETS = 10_000


def bucket(session: str) -> int:
    """The bucket of a session, 0 to 9999: the candidate's where it is below weight × 100."""
    return xxhash.xxh32_intdigest(session.encode()) % BUCKETS


@dataclass(slots=True)
class _Counts:
    in_flight: int = 0
    requests: int = 0
    errors: int = 0


@dataclass(slots=True)
class _DataPlane:
    """What outlives the gateway object: the kept state and, while it runs, the counts."""

    random: Random
    weight: int = 0
    admitted: set[str] = field(default_factory=set)
    up: dict[str, bool] = field(default_factory=dict)
    counts: dict[str, _Counts] = field(default_factory=dict)
    running: bool = False


class FakeGateway:
    """Every slot is up unless ``set_up`` says otherwise. While ``stuck``, changes are taken and
    not made. ``route`` and ``end`` stand for the requests."""

    def __init__(
        self, slots: tuple[Slot, ...], *, seed: int = 0, plane: _DataPlane | None = None
    ) -> None:
        self._slots = slots
        self._plane = plane or _DataPlane(Random(seed), up={slot.name: True for slot in slots})
        self.stuck = False

    def restarted(self) -> "FakeGateway":
        """The gateway as a controller finds it after its own restart."""
        return FakeGateway(self._slots, plane=self._plane)

    async def start(self) -> None:
        if not self._plane.running:
            self._plane.counts = {slot.name: _Counts() for slot in self._slots}
        self._plane.running = True

    async def stop(self) -> None:
        self._plane.running = False

    async def set_weight(self, weight: int) -> None:
        if not 0 <= weight <= 100:
            raise BadInput(f"A weight is 0 to 100 percent, not {weight}.")
        self._check_running()
        if not self.stuck:
            self._plane.weight = weight
        if self._plane.weight != weight:
            raise GatewayUnverified(f"The gateway was set to {weight} % and did not take it.")

    async def admit(self, slot: str) -> None:
        await self._set_admission(slot, True)

    async def drain(self, slot: str) -> None:
        await self._set_admission(slot, False)

    async def read(self) -> Split:
        self._check_running()
        plane = self._plane
        return Split(
            weight=plane.weight,
            slots=tuple(
                SlotTraffic(
                    slot=slot.name,
                    role=slot.role,
                    admitted=slot.name in plane.admitted,
                    up=plane.up[slot.name],
                    in_flight=plane.counts[slot.name].in_flight,
                    requests=plane.counts[slot.name].requests,
                    errors=plane.counts[slot.name].errors,
                )
                for slot in self._slots
            ),
        )

    def set_up(self, slot: str, up: bool) -> None:
        """Let the health checks of ``slot`` succeed or fail."""
        self._plane.up[slot] = up

    def change_by_hand(self, weight: int, drained: str) -> None:
        """What a person does behind the controller's back."""
        self._plane.weight = weight
        self._plane.admitted.discard(drained)

    def route(self, session: str | None = None) -> str | None:
        """Send one request in and name the slot that carries it; ``None`` where none can."""
        if not self._plane.running:
            return None
        drawn = self._plane.random.randrange(BUCKETS) if session is None else bucket(session)
        arm = Role.CANARY if drawn < self._plane.weight * 100 else Role.PRODUCTION
        usable = [s for s in self._slots if s.name in self._plane.admitted and self._is_up(s)]
        choices = [s for s in usable if s.role is arm] or usable
        if not choices:
            return None
        chosen = choices[drawn % len(choices)].name
        self._plane.counts[chosen].requests += 1
        self._plane.counts[chosen].in_flight += 1
        return chosen

    def end(self, slot: str, *, failed: bool = False) -> None:
        """Let one request that ``slot`` carries end."""
        self._plane.counts[slot].in_flight -= 1
        self._plane.counts[slot].errors += failed

    def _is_up(self, slot: Slot) -> bool:
        return self._plane.up[slot.name]

    def _check_running(self) -> None:
        if not self._plane.running:
            raise Temporary("The gateway is not running.")

    async def _set_admission(self, name: str, admitted: bool) -> None:
        known = [slot.name for slot in self._slots]
        if name not in known:
            raise BadInput(f"The gateway has no slot {name!r} (known: {', '.join(known)}).")
        self._check_running()
        if not self.stuck:
            (self._plane.admitted.add if admitted else self._plane.admitted.discard)(name)
        if (name in self._plane.admitted) != admitted:
            raise GatewayUnverified(f"The gateway was asked to change {name} and did not.")
