"""The controller's own search on the simulated station, in virtual time.

``python -m benchmarks.ladder`` runs the whole study (planner, search, trials, confirmation, judge
and evaluation set) twice, at 256 and at 4 streams of 512 tokens in and 512 out, with output tokens
a second as the objective. The engines are SIMULATED; nothing here measures a GPU.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import NamedTuple

from agent.graph import Conclusion
from agent.loads import TrialLength
from agent.planner.rulebook import Rulebook
from agent.rehearsals import Rehearsals, unresolved
from benchmarks.given import TrialList, exactly, given_shape, given_study
from canary.quality import questions, score
from canary.trial import Rehearsal
from domain.engine import EngineConfig, SearchSpace
from domain.fleet import Role, Slot
from domain.study import (
    EngineCounters,
    QualityScore,
    Study,
    StudyState,
    Trial,
    TrialPurpose,
    TrialState,
)
from serving.flags import catalogue
from serving.simulator import profile, startup
from serving.simulator.answers import answer, lossy_salt, wrong_chance
from serving.simulator.profile import Profile
from serving.simulator.setup import SIMULATED
from serving.simulator.startup import NotStarted
from serving.simulator.virtual import VirtualClock, VirtualLane
from serving.space import search_space

PROFILE = "dgx-station-hybrid"
LANE = Slot(name="canary-0", role=Role.CANARY, port=8201)
TOKENS = 512
BUDGET = 12
QUESTIONS = 400
SEED = 11


class Searched(NamedTuple):
    """One study's end, its trials, and the virtual seconds that engines were up for it."""

    conclusion: Conclusion
    trials: tuple[Trial, ...]
    engine_s: float


async def search(streams: int) -> Searched:
    """One study at ``streams`` closed streams, from vLLM's defaults."""
    chosen, clock, log = profile.load(PROFILE), VirtualClock(), TrialList()
    lane = VirtualLane(chosen, clock, seed=SEED)

    async def read_counters(url: str) -> EngineCounters | None:
        return lane.counters(LANE)

    async def ask_quality(url: str) -> QualityScore | None:
        (replica,) = await lane.observe()
        return quality(chosen, replica.config)

    rehearsal = Rehearsal(
        launcher=lane,
        load=lane,
        slot=LANE,
        model=PROFILE,
        clock=clock,
        read_counters=read_counters,
        ask_quality=ask_quality,
        may_act=lambda: True,
        start_timeout_s=600.0,
        poll_s=1.0,
    )
    rehearsals = Rehearsals(
        log=log,
        planner=Rulebook(),
        space=space_of(chosen),
        rehearse=rehearsal.run,
        resolve=unresolved,
        length=TrialLength(
            warm_up_s=60.0, measured_s=120.0, screened_s=40.0, min_requests=20, rounds=1
        ),
        fidelity_limit=None,
        clock=clock,
        new_id=iter(map(str, range(1000))).__next__,
    )
    study = studied(streams)
    conclusion = await rehearsals.graph_for(study).run(study)
    return Searched(conclusion, log.trials(study.id), lane.engine_seconds)


def space_of(chosen: Profile) -> SearchSpace:
    """The knobs of the profile's model and GPU whose effect is simulated."""
    knobs = catalogue(hardware=chosen.hardware.kind)
    beside = {knob.name for knob in knobs.knobs} - SIMULATED
    return search_space(knobs, chosen.facts, chosen.hardware, without=beside)


def studied(streams: int) -> Study:
    exact = exactly(TOKENS)
    return given_study(
        "ladder",
        given_shape(PROFILE, streams=streams, isl=exact, osl=exact),
        reason=f"{streams} streams of {TOKENS} tokens in and out.",
        trials=BUDGET,
        seed=SEED,
    )


def quality(chosen: Profile, config: EngineConfig) -> QualityScore | None:
    """The evaluation set put to the simulated model's answers, without an engine between."""
    started = startup.start(chosen, config)
    if isinstance(started, NotStarted):
        return None
    wrong, salt = wrong_chance(chosen.wrong, started.setup), lossy_salt(started.setup)
    asked = questions(seed=1, n=QUESTIONS)
    right = 0
    for question in asked:
        given = answer((), question.prompt, 64, False, wrong, salt)
        right += score(question, given.text(0, given.osl))
    return QualityScore(right=right, asked=len(asked))


def steps(trials: Sequence[Trial]) -> list[dict[str, object]]:
    """Each search trial that beat all before it, with its change against the one it beat."""
    climbed: list[dict[str, object]] = []
    best: Trial | None = None
    for trial in trials:
        explored = trial.purpose in (TrialPurpose.BASELINE, TrialPurpose.SEARCH)
        if not explored or trial.state is not TrialState.MEASURED or trial.measurement is None:
            continue
        rate = trial.measurement.output_tok_s
        if best is None or best.measurement is None or rate > best.measurement.output_tok_s:
            before = best.config if best else trial.config
            changes = [str(change) for change in before.diff(trial.config)]
            climbed.append({"trial": trial.number, "tok_s": round(rate), "changes": changes})
            best = trial
    return climbed


def drafts(space: SearchSpace, config: EngineConfig) -> int:
    """Drafted tokens a step; 0 without speculation."""
    if space.effective(config, "speculative_method") == "none":
        return 0
    return int(space.effective(config, "num_speculative_tokens") or 0)


async def ladder() -> dict[str, object]:
    space = space_of(profile.load(PROFILE))
    many, few = await search(256), await search(4)
    best, best_few = many.conclusion.recommendation, few.conclusion.recommendation
    if best is None or best_few is None:
        return {"error": f"{many.conclusion.study.conclusion} {few.conclusion.study.conclusion}"}
    output = next(e for e in best.verdict.effects if e.metric == "output_tok_s")
    assert many.conclusion.study.state is StudyState.RECOMMENDED
    return {
        "simulated": PROFILE,
        "baseline_tok_s": round(output.baseline),
        "best_tok_s": round(output.candidate),
        "ratio": round(output.estimate, 3),
        "steps": steps(many.trials),
        "drafts_at_256": drafts(space, best.config),
        "drafts_at_4": drafts(space, best_few.config),
        "best_config": best.config.as_dict(),
        "trials": len(many.trials),
        "engine_s": round(many.engine_s),
    }


def main() -> None:
    print(json.dumps(asyncio.run(ladder())))


if __name__ == "__main__":
    main()
