"""The page for people, rendered on the server, and the way to sign in to it.

It shows what ``reading`` finds and posts to the JSON routes; it decides and stores nothing. All
text is escaped: names, reasons and log lines may come from anywhere.
"""

from collections.abc import Callable
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from agent.api import reading
from agent.api.auth import COOKIE, Access
from agent.api.bodies import LoginBody, sent
from agent.api.errors import Unauthenticated
from agent.api.rendering import environment
from agent.api.report_page import content_policy, page_of
from agent.api.schemas import StatusView
from agent.live import LiveState
from agent.store import Store
from domain.ports import Clock

SILENT_S = 30.0
_EVENTS = 30


def pages(store: Store, access: Access, clock: Clock, live: Callable[[], LiveState]) -> APIRouter:
    """The page, the fragment that renews it, the report of a study, and the sign-in form."""
    router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)
    templates = environment()

    def rendered(name: str, actor: str) -> str:
        now = clock.now()
        status = StatusView.of(live(), now)
        return templates.get_template(name).render(
            actor=actor,
            status=status,
            silent_s=now - status.at_s if now - status.at_s > SILENT_S else None,
            **dict(reading.overview(store, now, events=_EVENTS)),
        )

    @router.get("/")
    def page(request: Request) -> Response:
        try:
            actor = access.actor(request)
        except Unauthenticated:
            return RedirectResponse("/login", 303)
        return HTMLResponse(rendered("page.html", actor))

    @router.get("/fragment")
    def fragment(actor: Annotated[str, Depends(access.actor)]) -> str:
        return rendered("live.html", actor)

    @router.get("/studies/{study_id}/report")
    def report(request: Request, study_id: str) -> Response:
        try:
            access.actor(request)
        except Unauthenticated:
            return RedirectResponse("/login", 303)
        with store.view() as uow:
            found = reading.study_report(uow, study_id, simulated=live().simulated)
        return HTMLResponse(page_of(found), headers=content_policy())

    @router.get("/login")
    def login_form() -> str:
        return templates.get_template("login.html").render(failed=False)

    @router.post("/login")
    def login(request: Request, body: Annotated[LoginBody, Depends(sent(LoginBody))]) -> Response:
        try:
            access.actor_of(body.token)
        except Unauthenticated:
            return HTMLResponse(templates.get_template("login.html").render(failed=True), 401)
        response = RedirectResponse("/", 303)
        response.set_cookie(
            COOKIE,
            body.token.strip(),
            httponly=True,
            samesite="strict",
            secure=request.url.scheme == "https",
        )
        return response

    return router
