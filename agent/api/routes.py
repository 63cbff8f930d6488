"""The JSON routes. Every one but ``/healthz`` names its Actor; a POST writes one row, no more."""

import uuid
from collections.abc import Callable
from typing import Annotated

from fastapi import APIRouter, Depends, Query

from agent.api import reading
from agent.api.auth import Access
from agent.api.bodies import AnswerBody, CommandBody, documented, sent
from agent.api.report_schemas import ReportView
from agent.api.rollout_schemas import ApprovalView, OpenApproval, RolloutDetail, RolloutView
from agent.api.schemas import CommandView, ErrorView, EventView, StatusView
from agent.api.study_schemas import StudyDetail, StudyView
from agent.live import LiveState
from agent.store import Store
from domain.approval import Command
from domain.errors import Conflict
from domain.events import EventKind
from domain.ports import Clock

Limit = Annotated[int, Query(ge=1, le=500)]


def json_routes(
    store: Store, access: Access, clock: Clock, live: Callable[[], LiveState]
) -> APIRouter:
    """All of ``/api``."""
    router = APIRouter(
        prefix="/api",
        dependencies=[Depends(access.actor)],
        responses={"default": {"model": ErrorView, "description": "One sentence on what is wrong"}},
    )
    _add_readings(router, store, clock, live)
    _add_decisions(router, store, access, clock)
    return router


def _add_readings(
    router: APIRouter, store: Store, clock: Clock, live: Callable[[], LiveState]
) -> None:
    @router.get("/status")
    def status() -> StatusView:
        return StatusView.of(live(), clock.now())

    @router.get("/studies")
    def studies(limit: Limit = 50) -> list[StudyView]:
        with store.view() as uow:
            return [StudyView.of(study) for study in uow.studies.latest(limit)]

    @router.get("/studies/{study_id}")
    def study(study_id: str) -> StudyDetail:
        with store.view() as uow:
            return reading.study_detail(uow, study_id, clock.now())

    @router.get("/studies/{study_id}/report")
    def report(study_id: str) -> ReportView:
        with store.view() as uow:
            return reading.study_report(uow, study_id, simulated=live().simulated)

    @router.get("/rollouts")
    def rollouts(limit: Limit = 50) -> list[RolloutView]:
        with store.view() as uow:
            return [RolloutView.of(rollout) for rollout in uow.rollouts.latest(limit)]

    @router.get("/rollouts/{rollout_id}")
    def rollout(rollout_id: str) -> RolloutDetail:
        with store.view() as uow:
            return reading.rollout_detail(uow, rollout_id)

    @router.get("/events")
    def events(
        limit: Limit = 50, kind: Annotated[list[EventKind] | None, Query()] = None
    ) -> list[EventView]:
        with store.view() as uow:
            return [EventView.of(event) for event in uow.events.latest(limit, kind)]

    @router.get("/approvals")
    def approvals() -> list[OpenApproval]:
        with store.view() as uow:
            return reading.open_approvals(uow, clock.now())


def _add_decisions(router: APIRouter, store: Store, access: Access, clock: Clock) -> None:
    @router.post("/approvals/{request_id}", openapi_extra=documented(AnswerBody))
    def answer(
        request_id: str,
        body: Annotated[AnswerBody, Depends(sent(AnswerBody))],
        actor: Annotated[str, Depends(access.actor)],
    ) -> ApprovalView:
        with store.work() as uow:
            asked = uow.approvals.get(request_id)
            if (body.digest, body.rollout_version) != (asked.digest, asked.rollout_version):
                raise Conflict("The answer is to another config or version than the question is.")
            answered = uow.approvals.answer(request_id, body.answer, actor, clock.now())
            uow.commit()
        return ApprovalView.of(answered)

    @router.post("/commands", status_code=202, openapi_extra=documented(CommandBody))
    def command(
        body: Annotated[CommandBody, Depends(sent(CommandBody))],
        actor: Annotated[str, Depends(access.actor)],
    ) -> CommandView:
        ordered = Command(
            id=uuid.uuid4().hex,
            kind=body.kind,
            rollout_id=body.rollout_id,
            actor=actor,
            created_s=clock.now(),
        )
        with store.work() as uow:
            pending = uow.commands.add(ordered)
            uow.commit()
        return CommandView.of(pending)
