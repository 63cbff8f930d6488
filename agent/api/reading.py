"""What the JSON routes and the page both show, read from the store in one consistent look each."""

from __future__ import annotations

from agent.api.report_schemas import ReportView
from agent.api.rollout_schemas import OpenApproval, RolloutDetail
from agent.api.schemas import CommandView, EventView, View
from agent.api.study_schemas import StudyDetail
from agent.report import assemble
from agent.store import Store, UnitOfWork


class Overview(View):
    """All of the store that the page shows: the newest study, the rollout that matters now."""

    study: StudyDetail | None
    rollout: RolloutDetail | None
    approvals: list[OpenApproval]
    commands: list[CommandView]
    events: list[EventView]


def overview(store: Store, now: float, *, events: int) -> Overview:
    """The page's content: the running or else the latest study and rollout, and the last events."""
    with store.view() as uow:
        study = uow.studies.running() or next(iter(uow.studies.latest(1)), None)
        rollout = uow.rollouts.active() or next(iter(uow.rollouts.latest(1)), None)
        return Overview(
            study=study_detail(uow, study.id, now) if study else None,
            rollout=rollout_detail(uow, rollout.id) if rollout else None,
            approvals=open_approvals(uow, now),
            commands=[CommandView.of(command) for command in uow.commands.pending()],
            events=[EventView.of(event) for event in uow.events.latest(events)],
        )


def study_detail(uow: UnitOfWork, study_id: str, now: float) -> StudyDetail:
    """The study at ``now``; NotFound where there is no such study."""
    study = uow.studies.get(study_id)
    return StudyDetail.of(study, uow.trials.of(study_id), uow.verdicts.of(study_id), now)


def study_report(uow: UnitOfWork, study_id: str, *, simulated: bool) -> ReportView:
    """NotFound where there is no such study; ``simulated`` is whether its engines were."""
    study = uow.studies.get(study_id)
    trials, verdicts = uow.trials.of(study_id), uow.verdicts.of(study_id)
    return ReportView.of(assemble(study, trials, verdicts, simulated=simulated))


def rollout_detail(uow: UnitOfWork, rollout_id: str) -> RolloutDetail:
    """NotFound where there is no such rollout."""
    rollout = uow.rollouts.get(rollout_id)
    return RolloutDetail.of(rollout, uow.verdicts.of(rollout_id), uow.approvals.of(rollout_id))


def open_approvals(uow: UnitOfWork, now: float) -> list[OpenApproval]:
    """The questions that can still be answered at ``now``, oldest first."""
    found = []
    for request in uow.approvals.open():
        rollout = uow.rollouts.get(request.rollout_id)
        if request.expires_s > now and request.rollout_version == rollout.version:
            found.append(OpenApproval.of(request, rollout, uow.verdicts.of(rollout.study_id)))
    return found
