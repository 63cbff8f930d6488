"""Whether engines that hold requests still generate: one that hangs may well call itself healthy.

It marks such a replica dead in what was observed; what follows from that is decided elsewhere.
Missing metrics mark nothing.
"""

from __future__ import annotations

from dataclasses import replace

from canary.rollout import Observed
from domain.fleet import Replica, ReplicaState
from domain.metrics import Sample
from domain.ports import MetricSource
from domain.study import Failure, FailureKind
from tools import queries


class Progress:
    """One caller at a time.

    ``stuck_s`` is how long an engine may hold requests without a token, ``model`` the served
    model's name: another fleet may have replicas of the same names.
    """

    def __init__(self, source: MetricSource, *, model: str, stuck_s: float) -> None:
        self._source = source
        self._where = queries.where(model_name=model)
        self._stuck_s = stuck_s
        self._busy_since_s: dict[tuple[str, float], float] = {}

    async def seen(self, observed: Observed, now: float) -> Observed:
        """What was observed, with each warm replica that has made no progress marked as dead."""
        busy = self._busy(observed, now)
        if not busy:
            return observed
        rise = queries.increase(queries.GENERATION_TOKENS, self._stuck_s, self._where)
        answer = await self._source.read(replace(rise, by=("replica",)), now)
        if not isinstance(answer, Sample):
            return observed
        generated = answer.by("replica")
        stuck = {name: replica for name, replica in busy.items() if generated.get(name) == 0.0}
        if not stuck:
            return observed
        marked = {name: self._dead(replica) for name, replica in stuck.items()}
        return replace(observed, replicas={**observed.replicas, **marked})

    def _busy(self, observed: Observed, now: float) -> dict[str, Replica]:
        """Warm replicas that have held requests at every look for ``stuck_s``."""
        split = observed.split
        holding = {
            (name, replica.started_s): replica
            for name, replica in observed.replicas.items()
            if replica.state is ReplicaState.WARM
            and split is not None
            and (traffic := split.slot(name)) is not None
            and traffic.in_flight > 0
        }
        # A clock that was set back begins the time anew.
        self._busy_since_s = {key: min(self._busy_since_s.get(key, now), now) for key in holding}
        return {
            key[0]: replica
            for key, replica in holding.items()
            if now - self._busy_since_s[key] >= self._stuck_s
        }

    def _dead(self, replica: Replica) -> Replica:
        failure = Failure(
            kind=FailureKind.HUNG,
            sentence=f"It holds requests and generated nothing for {self._stuck_s:.0f} s.",
        )
        return replace(replica, state=ReplicaState.DEAD, detail=failure.sentence, failure=failure)
