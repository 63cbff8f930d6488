"""`serinus report`: one study's report, as JSON or as a page, from the store alone."""

from __future__ import annotations

from pathlib import Path

from agent.api import reading
from agent.api.report_page import page_of
from agent.status import existing
from agent.store import UnitOfWork
from domain.errors import BadInput, NotFound

LISTED = 5


def text(url: str, study_id: str, *, as_json: bool, simulated: bool) -> str:
    """The report; NotFound, with the ids of the latest studies, where there is no such one."""
    with existing(url) as store, store.view() as uow:
        try:
            report = reading.study_report(uow, study_id, simulated=simulated)
        except NotFound as error:
            raise NotFound(f"{str(error).rstrip('.')}; {_known(uow)}.") from None
    return report.model_dump_json(indent=2) if as_json else page_of(report)


def written(told: str, path: Path) -> str:
    """Write ``told`` to the file, in folders that are made for it; a sentence that says so."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(told, encoding="utf-8")
    except OSError as error:
        why = error.strerror or "it is not writable"
        raise BadInput(
            f"The report cannot be written to {path} ({why}); name another file with --out."
        ) from None
    return f"The report is in {path}."


def _known(uow: UnitOfWork) -> str:
    ids = [study.id for study in uow.studies.latest(LISTED)]
    return f"the latest are {', '.join(ids)}" if ids else "this store holds none yet"
