"""The tool that tells of trials: what was tried in the latest studies, and what came of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from domain.errors import NotFound
from domain.figure import Figure, Unit
from domain.study import Measurement, Study, Trial, TrialState
from tools.catalog.tool import Row, Told, Tool, integer

MOST_STUDIES: Final = 5
MOST_TRIALS: Final = 20


class Studied(NamedTuple):
    study: Study
    trials: tuple[Trial, ...]


ReadStudies: TypeAlias = Callable[[int], Sequence[Studied]]
"""So many of the latest studies with their trials, newest first."""


def trials(read: ReadStudies) -> Tool:
    async def run(given: Mapping[str, Any]) -> Told:
        found = read(MOST_STUDIES)
        if given["back"] >= len(found):
            raise NotFound(f"The store holds {len(found)} of the latest studies; ask for fewer.")
        study, tried = found[given["back"]]
        about = {
            "study": study.id,
            "state": study.state.value,
            "because": study.reason,
            "conclusion": study.conclusion or "none yet",
            "baseline": str(study.baseline),
            "SLO": str(study.slo),
            "trials": str(len(tried)),
        }
        return Told(about=about, rows=tuple(map(_row, tried[-MOST_TRIALS:])))

    return Tool(
        name="trials",
        about="Tells the trials of a recent study: configs, results, failures and log lines.",
        arguments={"back": integer(0, MOST_STUDIES - 1, "0 for the latest study, 1 for the last")},
        run=run,
    )


def _row(trial: Trial) -> Row:
    words = {
        "trial": str(trial.number),
        "config": str(trial.config),
        "purpose": trial.purpose.value,
        "state": trial.state.value,
    }
    if trial.cut_short:
        words["cut short"] = trial.cut_short
    if trial.failure is not None:
        words |= {"failed": trial.failure.sentence, "log": trial.failure.log_tail or "none"}
    measured = trial.measurement if trial.state is TrialState.MEASURED else None
    return Row(words=words, figures=_figures(trial, measured) if measured else ())


def _figures(trial: Trial, measured: Measurement) -> tuple[Figure, ...]:
    source = f"trial {trial.number} of study {trial.study_id}, n={measured.requests}"
    values = {
        "goodput": (measured.goodput_rps, Unit.REQUESTS_A_SECOND),
        "output": (measured.output_tok_s, Unit.TOKENS_A_SECOND),
        "ttft_p95": (_p95(measured.ttft_ms), Unit.MILLISECONDS),
        "tpot_p95": (_p95(measured.tpot_ms), Unit.MILLISECONDS),
        "hit_rate": (measured.prefix_hit_rate, Unit.SHARE),
    }
    return tuple(
        Figure(name=f"t{trial.number}_{name}", value=value, unit=unit, source=source)
        for name, (value, unit) in values.items()
        if value is not None
    )


def _p95(values: Sequence[float]) -> float | None:
    """The nearest rank."""
    return sorted(values)[-(-95 * len(values) // 100) - 1] if values else None
