"""The page for people, rendered on the server, and the way to sign in to it.

It shows what ``reading`` finds and posts to the JSON routes; it decides and stores nothing. All
text is escaped: names, reasons and log lines may come from anywhere.
"""

import math
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from agent.api import reading
from agent.api.auth import COOKIE, Access
from agent.api.bodies import LoginBody, sent
from agent.api.errors import Unauthenticated
from agent.api.plots import interval_marks
from agent.api.schemas import StatusView
from agent.live import LiveState
from agent.store import Store
from domain.ports import Clock

SILENT_S = 30.0
_EVENTS = 30
_TEMPLATES = Path(__file__).parent / "templates"


def pages(store: Store, access: Access, clock: Clock, live: Callable[[], LiveState]) -> APIRouter:
    """The page, the fragment that renews it, and the sign-in form."""
    router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)
    templates = _environment()

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


def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["number"] = _number
    environment.filters["percent"] = _percent
    environment.filters["clock"] = _clock
    environment.filters["moment"] = _moment
    environment.filters["words"] = lambda name: name.replace("_", " ")
    environment.filters["knob_value"] = lambda value: "default" if value is None else str(value)
    environment.globals["interval_marks"] = interval_marks
    return environment


def _number(value: float | None, digits: int = 3) -> str:
    """At least ``digits`` significant digits, thousands set apart; a dash for what is unknown."""
    if value is None or not math.isfinite(value):
        return "–"
    if value == 0:
        return "0"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{min(decimals, 4)}f}"
    return (text.rstrip("0").rstrip(".") if "." in text else text).replace(",", "\u202f")


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{_number(share * 100)} %"


def _clock(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%H:%M:%S")


def _moment(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%d %B at %H:%M:%S")
