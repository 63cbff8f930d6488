"""The words of a study's end, with every figure filled in from the verdict.

Pure. No text of a planner decides here, so a conclusion cannot contradict its numbers: the
planner's reason is quoted last and as such.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from agent.graph.rules import Ending, Winner
from domain.fidelity import Fidelity
from domain.study import Recommendation, Study
from domain.verdict import Effect

_RELATION = {"ratio": "times the baseline's", "difference": "above the baseline's"}


class Conclusion(NamedTuple):
    """The study as it ended, and what it recommends where it does."""

    study: Study
    recommendation: Recommendation | None


def put_into_words(study: Study, ending: Ending) -> Conclusion:
    winner = ending.winner
    if winner is None:
        sentence = " ".join(ending.reasons)
        return Conclusion(replace(study, state=ending.state, conclusion=sentence), None)
    sentence = _sentence(study, winner)
    tried = f"It was tried because – {winner.trial.hypothesis}"
    recommendation = Recommendation(
        study_id=study.id,
        config=winner.trial.config,
        verdict=winner.verdict,
        rationale=" ".join(
            filter(None, (sentence, winner.answers, _trust(winner.fidelity), tried))
        ),
    )
    return Conclusion(replace(study, state=ending.state, conclusion=sentence), recommendation)


def _sentence(study: Study, winner: Winner) -> str:
    changes = ", ".join(map(str, study.baseline.diff(winner.trial.config)))
    figures = "; ".join(map(_figure, winner.verdict.effects))
    return f"Change {changes}: {figures or winner.verdict.reason.rstrip('.')}."


def _trust(fidelity: Fidelity | None) -> str:
    if fidelity is None:
        return "How closely the rehearsal reproduces production was not looked at."
    grade, reasons = fidelity.grade, " ".join(fidelity.reasons)
    return f"The rehearsal {grade.words} (grade {grade.value}). {reasons}"


def _figure(effect: Effect) -> str:
    interval = effect.interval
    return (
        f"{effect.metric} {effect.candidate:.4g} against {effect.baseline:.4g}, "
        f"{effect.estimate:.3g} {_RELATION[effect.unit]} ({interval.percent} interval "
        f"{interval.low:.3g} to {interval.high:.3g}, n={interval.n})"
    )
