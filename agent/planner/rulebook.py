"""The planner that needs no language model: known switches, in an order that a small budget bears.

Pure and deterministic. First everything it believes in is stacked into one config, so that effects
that add up are found in one trial; then it climbs from the best config so far, one switch at a
time, and takes single switches out again to find the one that harms. It never proposes what was
tried, what the space forbids, or what contains the cause of a failure; and what was measured to
give nothing it leaves alone, so that the search may draw what no rule knows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, zip_longest

from agent.planner import history
from agent.planner.diagnosis import diagnose, figures
from agent.planner.history import Changes, History
from agent.planner.switches import Role, Scene, Switch, known_switches
from domain.engine import EngineConfig, SearchSpace
from domain.ports import Proposal, Proposals
from domain.study import Study, Trial

AUTHOR = "rulebook"

WORTH = 1.01
"""Least gain for which a switch counts as an improvement."""

HARM = 0.95
"""Gain below which a switch that is believed in is believed in no more: nearer to 1, two starts of
one engine differ as much by chance."""


class Rulebook:
    """A Planner that always answers."""

    async def propose(
        self, study: Study, space: SearchSpace, trials: Sequence[Trial], limit: int
    ) -> Proposals:
        ranked: list[Proposal] = []
        past = history.read(study, space, trials)
        for proposal in _ideas(study, space, trials, past):
            new = all(proposal.config != earlier.config for earlier in ranked)
            if new and _admissible(space, past, proposal.config):
                ranked.append(proposal)
        return Proposals(AUTHOR, tuple(ranked[: max(limit, 0)]))


def _admissible(space: SearchSpace, past: History, config: EngineConfig) -> bool:
    return (
        config != past.baseline
        and space.fault(config) is None
        and config not in past.tried
        and past.suspect(config) is None
    )


def _ideas(
    study: Study, space: SearchSpace, trials: Sequence[Trial], past: History
) -> Iterator[Proposal]:
    """All ideas, best first; some may be known, forbidden or repeated."""
    scene = Scene(
        space=space,
        diagnosis=diagnose(study, space, trials),
        seen=figures(study, space, trials),
        current=past.incumbent,
    )
    current = _held(space, past, known_switches(scene))
    switches = known_switches(scene._replace(current=current))
    effects = {switch: past.effect(switch.changes) for switch in switches}
    worthy = [s for s in switches if _worthy(s, effects[s])]
    because = scene.diagnosis.sentence

    def added(chosen: Iterable[Switch]) -> list[Proposal]:
        missing = [s for s in chosen if _with(space, current, s.changes) != current]
        return [_adding(space, current, s, because) for s in missing]

    yield from _stack(space, past, current, worthy, because)
    yield from added(s for s in worthy if s.role is not Role.TUNING)
    unproven = [s for s in switches if past.effect(s.changes, whole=True) is None]
    yield from _alternating(
        _removing(space, past, current, unproven), added(s for s in worthy if s.role is Role.TUNING)
    )


def _held(space: SearchSpace, past: History, switches: Sequence[Switch]) -> EngineConfig:
    """The config that the next switches are tried on: the best so far, except that the baseline
    gives way to what is believed in where one start each cannot tell the two apart."""
    if past.incumbent != past.baseline:
        return past.incumbent
    believed = [switch for switch in switches if switch.role is Role.BELIEVED]

    def holds(config: EngineConfig) -> bool:
        return bool(believed) and all(
            _with(space, config, switch.changes) == config for switch in believed
        )

    stacks = [m.config for m in past.measured if m.config != past.baseline and holds(m.config)]
    alike = [stack for stack in stacks if (past.gain_over_baseline(stack) or 0.0) >= HARM]
    return alike[0] if alike else past.baseline


def _worthy(switch: Switch, effect: float | None) -> bool:
    """Whether it may still gain, for all that was measured of it."""
    return effect is None or effect >= (HARM if switch.role is Role.BELIEVED else WORTH)


def _stack(
    space: SearchSpace,
    past: History,
    current: EngineConfig,
    switches: Sequence[Switch],
    because: str,
) -> Iterator[Proposal]:
    """Everything believed in and not lossy, on the current config."""
    config, stacked = current, list[Switch]()
    for switch in switches:
        candidate = _with(space, config, switch.changes)
        if (
            switch.role is Role.BELIEVED
            and candidate != config
            and space.fault(candidate) is None
            and space.lossy_changes(candidate) == space.lossy_changes(config)
            and past.suspect(candidate) is None
        ):
            config = candidate
            stacked.append(switch)
    if stacked:
        reasons = "; ".join(f"{switch.shown} because {switch.why}" for switch in stacked)
        yield Proposal(
            config=config,
            hypothesis=f"These should add up: {reasons}. {because}",
            metric=stacked[0].metric.value,
        )


def _adding(space: SearchSpace, current: EngineConfig, switch: Switch, because: str) -> Proposal:
    return Proposal(
        config=_with(space, current, switch.changes),
        hypothesis=f"{switch.shown} should improve {switch.metric.value}: {switch.why}. {because}",
        metric=switch.metric.value,
    )


def _removing(
    space: SearchSpace, past: History, current: EngineConfig, switches: Iterable[Switch]
) -> Iterator[Proposal]:
    """The current config with one switch that is in force set back to the baseline's."""
    times = past.gain_over_baseline(current)
    joint = "" if times is None else f", {times:.2f} times the baseline in all"
    for switch in switches:
        before = frozenset((knob, past.baseline.get(knob)) for knob, _ in switch.changes)
        if _with(space, current, switch.changes) == current:
            yield Proposal(
                config=_with(space, current, before),
                hypothesis=f"{switch.shown} came in together with others{joint}; without it "
                f"{switch.metric.value} may be as good or better, and this tells.",
                metric=switch.metric.value,
            )


def _alternating(one: Iterable[Proposal], other: Iterable[Proposal]) -> Iterator[Proposal]:
    pairs = zip_longest(one, other)
    return (proposal for proposal in chain.from_iterable(pairs) if proposal is not None)


def _with(space: SearchSpace, config: EngineConfig, changes: Changes) -> EngineConfig:
    return space.normalised(config.having(dict(changes)))
